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
class ObjectNumbers:
    """Numbers the objects of several masks.

    Attributes:
        numbers: The number of the object in each pixel, int32, 0 where none is; a later mask covers
            an earlier one.
    """

    def __init__(self) -> None:
        self.numbers = np.zeros(0, np.int32)
        self._last = 0

    def add(self, mask: np.ndarray) -> None:
        """Add the objects of a mask, which numbers them; True is a single one."""
        if not self._last:
            self.numbers = np.zeros(mask.shape, np.int32)
        self._last += 1
        if mask.dtype == bool:
            self.numbers[mask] = self._last
            return
        values, numbers = np.unique(mask, return_inverse=True)
        is_object = mask != 0
        self.numbers[is_object] = numbers.reshape(mask.shape)[is_object] + self._last
        self._last += len(values)

    def borders(self) -> np.ndarray:
        """Return whether pixels lie in two objects, where each reaches a pixel further."""
        from scipy import ndimage  # It takes a tenth of a second, and few data sets need it.

        # The pixel and its neighbours, diagonal ones too.
        highest = ndimage.maximum_filter(self.numbers, size=3, mode="constant", cval=0)
        objects = np.where(self.numbers == 0, NONE, self.numbers)
        lowest = ndimage.minimum_filter(objects, size=3, mode="constant", cval=NONE)
        return (highest > 0) & (lowest != highest)
