"""The options by which files become images, as a record holds them. Imports no TensorFlow."""

import math
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from tfunet.config.words import check_known
from tfunet.data.formats.units import METRES
from tfunet.data.image_files import ALPHA
from tfunet.data.preprocess import Intensity, check_channels, check_intensity
from tfunet.files.typed import Positive, typed
from tfunet.record import as_recorded

# Sizes of pixels, in any unit of length.
LEAST, MOST = 1e-15, 1e15


class RecordedPreparation(TypedDict):
    """What data.json holds of a `tfunet.prediction.prepare.Preparation`."""

    num_files: NotRequired[Positive]
    intensity: str | list[float] | dict[str, list[float]]
    grey: NotRequired[bool]
    axes: NotRequired[str | None]
    alpha: NotRequired[str | None]
    fill: NotRequired[float | None]
    pixel_size: NotRequired[float | list[float] | None]
    target_pixel_size: NotRequired[float | list[float] | None]
    unit: NotRequired[str]


def read_preparation(recorded: Any) -> dict[str, Any]:
    """Return the options that a record holds; ValueError names one that cannot be used."""
    typed(recorded, RecordedPreparation)
    for name in recorded:
        check_known("option", name, RecordedPreparation.__annotations__)
    check_axes(recorded.get("axes"))
    check_alpha_and_fill(recorded.get("alpha"), recorded.get("fill"))
    if unit := recorded.get("unit"):
        check_known("unit", unit, METRES)
    intensity: Intensity = check_intensity(recorded["intensity"])
    return {**recorded, "intensity": intensity}


def check_preparation(preparation: Mapping[str, Any], num_axes: int, channels: int) -> None:
    """Raise ValueError for a preparation that gives no images of so many axes and channels."""
    options = read_preparation(as_recorded(preparation))
    check_channels(options["intensity"], channels)
    num_files = options.get("num_files", 1)
    if num_files > channels:
        raise ValueError(f"num_files={num_files} for images with channels={channels}.")
    axes = options.get("axes")
    if axes is not None and len(set(axes) - {"c"}) != num_axes:
        raise ValueError(f"axes={axes!r} for images with {num_axes} spatial axes.")
    for name in ("pixel_size", "target_pixel_size"):
        if options.get(name) is not None:
            sizes_along(options[name], num_axes)
    if options.get("pixel_size") is not None and options.get("target_pixel_size") is None:
        raise ValueError("pixel_size needs target_pixel_size, the size to resample to.")


def check_axes(axes: str | None) -> None:
    """Raise ValueError for letters that do not name the axes of an image's array."""
    if axes is not None and (
        not {"y", "x"} <= set(axes) <= set("zyxc") or len(set(axes)) < len(axes)
    ):
        raise ValueError(
            f"axes={axes!r}; allowed: y and x, with z for planes and c for channels, each once, "
            "in the order of the files' arrays, such as 'cyx'."
        )


def check_alpha_and_fill(alpha: str | None, fill: float | None) -> None:
    """Raise ValueError for what a channel tagged alpha, or a pixel without data, cannot become."""
    if alpha is not None and alpha not in ALPHA:
        raise ValueError(
            f"alpha={alpha!r}; allowed: 'drop' leaves this channel out, 'keep' makes it a channel "
            "of the image, 'mask' takes pixels where it is 0 as without data."
        )
    if fill is not None and not math.isfinite(fill):
        raise ValueError(f"fill={fill!r}; allowed: the number that pixels without data become.")


def sizes_along(given: Any, num_axes: int) -> tuple[float, ...]:
    """Return the pixel size along each axis, of one number or of one for each axis."""
    several = given if isinstance(given, list | tuple) else [given] * num_axes
    try:
        are_sizes = not any(isinstance(size, bool) for size in several)
        sizes = tuple(map(float, several)) if are_sizes else ()
    except (TypeError, ValueError):
        sizes = ()
    # NaN fails this comparison too.
    if len(sizes) != num_axes or not all(LEAST <= size <= MOST for size in sizes):
        raise ValueError(
            f"pixel size {given!r}; allowed: a positive number, or {num_axes} of them, one an "
            "axis, with points for decimals"
        )
    return sizes
