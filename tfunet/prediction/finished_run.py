"""What a prediction needs of a finished run's record, checked before TensorFlow is imported."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tfunet.config.run import RunConfig
from tfunet.files.regular import open_to_read
from tfunet.files.typed import RecordError
from tfunet.learning.region_labels import region_labels
from tfunet.record import DATA, MODEL, RunFolder

# The weights in a .keras file, which is a ZIP archive; and the first bytes of an HDF5 file.
WEIGHTS_MEMBER = "model.weights.h5"
HDF5 = b"\x89HDF\r\n\x1a\n"


@final
@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The record of a finished run: its configuration, data.json and the file of its weights."""

    config: RunConfig
    data: dict[str, Any]
    weights: Path


def read_finished_run(folder: RunFolder, weights: str | None = None) -> FinishedRun:
    """Return the record of a finished run; ValueError says what is missing or damaged.

    `weights` names a file in its folder to use instead of the last epoch's.
    """
    if not folder.path.is_dir():
        raise ValueError(f"There is no folder {str(folder.path)!r}. Name that of a finished run.")
    config, data, path = folder.read_config(), folder.read_data(), folder.model_path()
    if config is None:
        raise ValueError(f"{folder.path} holds no run: it has no config.json.")
    if not folder.is_done() or path is None:
        raise ValueError(
            f"The run in {folder.path} is not finished: it has no result.json or no {MODEL}. "
            "Run the command that started it again: it goes on."
        )
    if weights is not None:
        path = folder.path / weights
        if not path.is_file() or path.suffix not in (".keras", ".h5"):
            known = sorted(file.name for file in folder.path.glob("*.keras"))
            raise ValueError(
                f"{path} is no file of weights (.keras, .weights.h5). The folder holds: "
                f"{', '.join(known) or 'none'}."
            )
    folder.check_programs(config, ["model"])
    if not _is_whole(path):
        raise damaged(path)
    if data is None:
        raise ValueError(
            f"{folder.path} has no data.json, which says what the network was trained on: an "
            "earlier version made it. Train the network again."
        )
    if missing := [key for key in DATA if key not in data]:
        raise RecordError(folder.path / "data.json", f"it has no {missing[0]}")
    if config.has_regions:
        _check_regions(folder, data.get("regions") or {})
    if data.get("targets"):
        raise ValueError(
            f"The run in {folder.path} learned to predict numbers ({', '.join(data['targets'])}), "
            "and this command writes masks. Its predictions of the validation cases are in "
            f"errors.csv; for other images load {path.name} with Keras."
        )
    if data.get("arrays"):
        raise ValueError(
            f"The run in {folder.path} was trained on arrays, and this command reads images. Load "
            f"{path.name} with Keras, and call its predict."
        )
    return FinishedRun(config=config, data=data, weights=path)


def damaged(path: Path) -> ValueError:
    """Return the error for a file of weights that cannot be read."""
    size = path.stat().st_size
    others = sorted(file.name for file in path.parent.glob("*.keras") if file != path)
    other = f", or use another file of it: --weights {others[0]}" if others else ""
    return ValueError(
        f"{path} is damaged ({size} bytes): it holds no readable weights. Copy it again from where "
        f"the run was trained{other}, or train the network again."
    )


def _is_whole(path: Path) -> bool:
    """Whether a file of weights is not cut short; its bytes are not all read."""
    if path.suffix == ".keras":
        if not zipfile.is_zipfile(path):  # The directory is at the end of the archive.
            return False
        with zipfile.ZipFile(path) as archive:
            return WEIGHTS_MEMBER in archive.namelist()
    with open_to_read(path) as file:
        return file.read(len(HDF5)) == HDF5


def _check_regions(folder: RunFolder, regions: Mapping[str, Sequence[int]]) -> None:
    """Raise RecordError for regions that are not those of a network."""
    path = folder.path / "data.json"
    if not regions:
        raise RecordError(path, "it has no regions")
    try:
        region_labels(regions)
    except ValueError as error:
        raise RecordError(path, str(error)) from error
