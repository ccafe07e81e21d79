"""NumPy's .npy."""

from pathlib import Path

import numpy as np

from tfunet.data.formats.stored import Region, Stored, plain


def stored(path: Path) -> Stored:
    """Describe the array from its header."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of arrays (.npz); save each with numpy.save")
    return plain(array.shape, array.dtype)


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what it is and the array."""
    array = np.load(path, allow_pickle=False)
    return plain(array.shape, array.dtype), array


def region(path: Path) -> Region | None:
    """Return the reader of boxes."""
    # Mapped anew for each box: pages of an earlier one are not this process's memory any more.
    return lambda box: np.array(np.load(path, mmap_mode="r", allow_pickle=False)[box])
