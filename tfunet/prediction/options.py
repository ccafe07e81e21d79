"""How to predict: the options of `tfunet predict`, `tfunet evaluate` and of Python. No NumPy."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tfunet.config.typed_values import convert_fields
from tfunet.config.words import check_known
from tfunet.machine.environment import DEFAULTS
from tfunet.prediction.best_file import check_run, say_best

WAYS = ("gaussian", "halo")
FORMATS = ("tiff", "nifti", "zarr", "png")
LABELS, MASKS = "labels", "masks"
VALUES = (LABELS, MASKS)
# What an option shows in the help, beside those that are switches.
EXAMPLES = {
    "tiles": "WAY",
    "window": "512,512",
    "halo": "N",
    "weights": "best.keras",
    "pixel_size": "0.1,0.1",
    "ensemble": "RUN",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to predict.

    Args:
        tiles: "gaussian": windows overlap by half and are blended, weighted by a Gaussian
            (nnU-Net). "halo": each voxel comes from one window with context around it, so the
            result is that of the whole image at once.
        window: Spatial shape of a window. By default the patch of the training; with a halo at
            least eight times the halo in a plane, and four times in a volume.
        halo: Voxels of context to each side. By default as far as the network looks: exact.
        devices: Devices of this host that predict together, each with a process of its own. By
            default all GPUs, or all CPU cores as one device.
        batch: Windows that the device takes at once; by default as many as have 65,536 voxels.
        format: tiff, nifti, zarr or png. By default that of the image, PNG for JPEG, or TIFF.
        probabilities: Write the probabilities of each class or region, too.
        weights: A file of weights in the run's folder; by default those that it ended with.
        overlay: Draw the labels over the image, too: NAME_overlay.png; of an evaluation, cases with
            their errors: errors/NAME.png. Only where matplotlib is installed.
        pixel_size: Pixel size of the images, if the run resampled them and they do not state it.
        ensemble: Further runs. The prediction is the mean of the probabilities of all runs.
        mirror: Predict mirrored windows, too, along the axes along which training images were
            mirrored, and take the mean of the logits (nnU-Net).
        values: "labels": the prediction holds 0, 1, 2, ... "masks": it holds the values, or
            colours, of the masks that the run was trained on.
    """

    tiles: str = "gaussian"
    window: tuple[int, ...] | None = None
    halo: int | None = None
    devices: int | None = None
    batch: int | None = None
    format: str | None = None
    probabilities: bool = False
    weights: str | None = None
    overlay: bool = True
    pixel_size: tuple[float, ...] | None = None
    ensemble: tuple[Path, ...] = ()
    mirror: bool = False
    values: str = LABELS

    def __post_init__(self) -> None:
        for name, value in convert_fields(type(self), vars(self)).items():
            object.__setattr__(self, name, value)
        check_known("tiles", self.tiles, WAYS)
        check_known("values", self.values, VALUES)
        if self.format is not None:
            check_known("format", self.format, FORMATS)
        if self.window is not None and min(self.window, default=0) < 1:
            raise ValueError(
                f"--window must have positive sizes, got {','.join(map(str, self.window))}."
            )
        if self.halo is not None and self.tiles != "halo":
            raise ValueError("--halo is for --tiles halo: give that too.")
        if self.halo is not None and self.halo < 0:
            raise ValueError(f"--halo must not be negative, got {self.halo}.")
        for name in ("batch", "devices"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}.")


def as_json(options: Options) -> dict[str, Any]:
    """Return the options as JSON can hold them."""
    return {**vars(options), "ensemble": list(map(str, options.ensemble))}


def checked_options(run: Path, given: Mapping[str, Any]) -> Options:
    """Return the options of a prediction, after all that is known before TensorFlow is imported.

    Prints what a best.json stands for. Raises ValueError.
    """
    names = [field.name for field in fields(Options)]
    for name in given:
        check_known("option", name, names)
    say_best(run)
    values = dict(given)
    runs = given.get("ensemble") or ()  # There may be one, or none.
    values["ensemble"] = tuple(map(Path, [runs] if isinstance(runs, str | Path) else runs))
    check_run(run, given.get("weights"), values["ensemble"])
    options = Options(**values)
    # What the processes of a run set before they import TensorFlow.
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    return options
