"""The values of a mask's pixels: numbers, colours or channels. Imports no TensorFlow."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tfunet.data.defects import BadFileError

# Number of channels of a one-hot mask, to the value that each stands for.
ChannelValues = Callable[[int], Sequence[int]]


def no_values(channels: int) -> Sequence[int]:
    """Return that the channels of a mask stand for nothing."""
    return ()


def as_mask(
    path: Path,
    values: np.ndarray,
    *,
    colours: bool = False,
    fractions: bool = False,
    channel_values: ChannelValues = no_values,
) -> np.ndarray:
    """Return decoded values (*spatial, channels), or a part of them, as `read_mask` does."""
    if colours:
        return _colours(path, values)
    if values.shape[-1] > 1 and (values != values[..., :1]).any():
        return _of_one_hot(path, values, channel_values(values.shape[-1]))
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadFileError(path, "holds NaN or infinity; a mask needs a value in every pixel.")
    return values[..., 0] if fractions else _whole_numbers(path, values[..., 0])


def _of_one_hot(path: Path, values: np.ndarray, meanings: Sequence[int]) -> np.ndarray:
    """Return the value of the one channel that each pixel is in; 0 for a pixel in none."""
    present = values != 0
    most = int(present.sum(-1).max(initial=0))
    if not meanings or most > 1 or len(np.unique(values[present])) > 1:
        raise BadFileError(
            path,
            f"has {values.shape[-1]} different channels; a mask must have one value a pixel"
            + (", or be one-hot: in each pixel one channel with 1" if meanings else "")
            + ". Store it as grey values, or give each class its colour in classes=, such as "
            f"'#ff0000', or, for a one-hot mask, its channel.{lossy_hint(path)}",
        )
    labels = np.zeros(values.shape[:-1], np.int64)
    for channel, meaning in enumerate(meanings):
        labels[present[..., channel]] = meaning
    return labels


def _whole_numbers(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "buif":
        raise BadFileError(path, f"has values of type {values.dtype}; a mask needs whole numbers.")
    if values.dtype.kind != "f":
        return values.astype(np.uint8) if values.dtype == bool else values
    rounded = np.rint(values)
    # Scaled NIfTI labels come back as 1.0000000591; interpolated labels are farther off.
    if np.abs(values - rounded).max(initial=0) > 1e-4:
        odd = values[np.abs(values - rounded) > 1e-4]
        raise BadFileError(
            path,
            f"holds {float(odd[0]):g}; labels must be whole numbers. "
            "Was the mask resampled with interpolation? Use nearest neighbour. For a map of "
            "probabilities say masks = { CLASS = PATTERN } and threshold=.",
        )
    return rounded.astype(np.int64)


def _colours(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype != np.uint8 or values.shape[-1] not in (1, 3):
        raise BadFileError(
            path,
            f"has {values.shape[-1]} channels of {values.dtype}; the colours in classes= need a "
            "mask with 3 channels of uint8.",
        )
    red, green, blue = np.moveaxis(np.broadcast_to(values, (*values.shape[:-1], 3)), -1, 0)
    return (red.astype(np.int64) << 16) | (green.astype(np.int64) << 8) | blue


def lossy_hint(path: Path) -> str:
    """Return a warning about JPEG for messages about a mask; "" for other formats."""
    if path.suffix.lower() not in (".jpg", ".jpeg"):
        return ""
    return " JPEG changes pixel values slightly: save masks as PNG."
