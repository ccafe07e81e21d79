"""Which pixels of an image have no data. Imports no TensorFlow."""

import numpy as np

from tfunet.data.formats.stored import Stored

# The label of pixels that were filled: they count neither in losses nor in scores.
IGNORED = 255
# GDAL, and programs that write its value in few digits, mean the nearest floating point number.
TOLERANCE = 1e-5


def without_data(
    pixels: np.ndarray, stored: Stored, hidden: np.ndarray | None
) -> tuple[np.ndarray | None, str]:
    """Return where an image has no data, as bool (*spatial), and why in words; None for nowhere.

    Args:
        pixels: (*spatial, channels), in the stored type, or a part of it.
        stored: What the file says of them.
        hidden: Where a mask of the file says that there is no data.
    """
    places = []
    if pixels.dtype.kind not in "bui":
        unusable = ~np.isfinite(pixels)
        if count := int(unusable.sum()):
            why = f"holds NaN or infinity in {count} of {pixels.size} values"
            places.append((unusable.any(-1), why + _because(stored.nodata_from)))
    marked = _marked(pixels, stored.nodata)
    if marked is not None and marked.any():
        words = f"has no data in {int(marked.sum())} of {marked.size} pixels"
        places.append((marked, words + _because(stored.nodata_from)))
    if hidden is not None and hidden.shape == pixels.shape[:-1] and hidden.any():
        words = f"has no data in {int(hidden.sum())} of {hidden.size} pixels"
        places.append((hidden, f"{words} (its mask leaves them out)"))
    if not places:
        return None, ""
    return np.logical_or.reduce([place for place, _ in places]), "; it ".join(w for _, w in places)


def _because(statement: str) -> str:
    return f" ({statement})" if statement else ""


def _marked(pixels: np.ndarray, nodata: float | None) -> np.ndarray | None:
    """Return where the pixels have the file's value for missing data."""
    if nodata is None or not np.isfinite(nodata):
        return None
    if pixels.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            same = np.abs(pixels - pixels.dtype.type(nodata)) <= TOLERANCE * abs(nodata)
    else:
        same = pixels == nodata
    # In 8 bits a single channel may have that value where there is data, as pure red has 0.
    return same.all(-1) if pixels.dtype.itemsize == 1 else same.any(-1)
