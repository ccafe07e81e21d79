"""Objects of one class that lie in files of their own, or are numbered. Imports no TensorFlow."""

from pathlib import Path
from typing import final

import numpy as np

# No object has this number.
NONE = np.iinfo(np.int32).max


@final
class Overlap:
    """Counts the pixels that several files of a class share."""

    def __init__(self) -> None:
        self._first: Path | None = None
        self._num_pixels = 0

    def add(self, path: Path, shared: np.ndarray) -> None:
        """Look at the pixels of a file, or of a part of it, that an earlier file has, too."""
        if count := int(np.count_nonzero(shared)):
            self._first = self._first or path
            self._num_pixels += count

    def notes(self) -> list[tuple[Path, str]]:
        """Return the first file that overlaps an earlier one, with what may be wrong."""
        if self._first is None:
            return []
        what = (
            f"overlaps other objects of its image, in {self._num_pixels} pixels of all its files. "
            "Is an object there twice, or a mask of several objects?"
        )
        return [(self._first, what)]


@final
class Borders:
    """Finds where two objects meet."""

    def __init__(self) -> None:
        self._numbers: np.ndarray | None = None
        self._last = 0

    def add(self, mask: np.ndarray) -> None:
        """Add the objects of a mask, which numbers them; True is a single one."""
        if self._numbers is None:
            self._numbers = np.zeros(mask.shape, np.int32)
        if mask.dtype == bool:
            self._last += 1
            self._numbers[mask] = self._last
            return
        values, numbers = np.unique(mask, return_inverse=True)
        is_object = mask != 0
        self._numbers[is_object] = numbers.reshape(mask.shape)[is_object] + 1 + self._last
        self._last += len(values)

    def pixels(self) -> np.ndarray:
        """Return the pixels that lie in two objects, where each reaches a pixel further."""
        if self._numbers is None:
            raise ValueError("Borders need the objects of at least one mask.")
        highest = _neighbours(self._numbers, np.maximum, 0)
        lowest = _neighbours(np.where(self._numbers == 0, NONE, self._numbers), np.minimum, NONE)
        return (highest > 0) & (lowest != highest)


def _neighbours(numbers: np.ndarray, choose: np.ufunc, outside: int) -> np.ndarray:
    """Return the highest or lowest number of each pixel and its neighbours, diagonal ones too."""
    for axis in range(numbers.ndim):
        width = [(1, 1) if other == axis else (0, 0) for other in range(numbers.ndim)]
        padded = np.pad(numbers, width, constant_values=outside)
        length = numbers.shape[axis]
        before, same, after = (
            padded.take(range(start, start + length), axis) for start in range(3)
        )
        numbers = choose(choose(before, same), after)
    return numbers
