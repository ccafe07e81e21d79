"""What the intensities of an image say of a mistake. Imports no TensorFlow."""

from typing import final

import numpy as np

from tfunet.data.preprocess import INSIDE, NONZERO, Intensity

# Values that programs write where there is no data.
MARKS = np.array([-9999, -99999, -32768, -3.4028235e38, 3.4028235e38, -1e30, 1e20], np.float32)

# A window of CT leaves out the air, which may be most of an image.
MOST = 0.95

# Of a constant around what there is to see, which is not 0.
OUTSIDE = 0.2


@final
class IntensityChecks:
    """Looks at an image, whole or part by part.

    Args:
        scale: How its intensities are normalised.
    """

    def __init__(self, scale: Intensity) -> None:
        self._scale = scale if isinstance(scale, tuple) else None
        self._needs_zeros = scale == NONZERO
        self._first: float | None = None
        self._num_zeros = self._num_first = 0
        self._marks: set[float] = set()
        self._low, self._high = np.inf, -np.inf
        self._num_values = self._num_clipped = 0

    def add(self, part: np.ndarray) -> None:
        """Look at a part of it, with its intensities as in the file; NaN is no intensity."""
        gaps = np.isnan(part)
        part = part[~gaps] if gaps.any() else part
        if not part.size:
            return
        ends = np.array([part.min(), part.max()])
        marks = ends[np.isin(ends, MARKS)]
        others = part if not len(marks) else part[~np.isin(part, marks)]
        self._marks.update(map(float, marks))
        if others.size:
            self._low = min(self._low, float(others.min()))
            self._high = max(self._high, float(others.max()))
        if self._needs_zeros:
            self._first = float(part.flat[0]) if self._first is None else self._first
            self._num_values += part.size
            self._num_zeros += int((part == 0).sum())
            self._num_first += int((part == self._first).sum())
        if self._scale is not None:
            low, high = self._scale
            self._num_values += part.size
            self._num_clipped += int(((part < low) | (part > high)).sum())

    def notes(self) -> list[str]:
        """Return what may be a mistake."""
        span = self._high - self._low
        notes = [
            f"its value {mark:g} stands apart from the others ({self._low:g} to {self._high:g}), "
            "as a mark of missing data does. If it is one, replace it, or say so in the file "
            "(in a GeoTIFF with gdal_edit.py -a_nodata)"
            for mark in sorted(self._marks)
            if min(abs(mark - self._low), abs(mark - self._high)) > span >= 0
        ]
        if self._needs_zeros and not self._num_zeros and self._num_values:
            share = self._num_first / self._num_values
            if share > OUTSIDE:
                notes.append(
                    f"no value is 0, so intensity = {NONZERO!r} counts all pixels, and {share:.0%} "
                    f"have the value of the first, {self._first:g}; to leave them out: {INSIDE!r}"
                )
        if self._scale is None:
            return notes
        low, high = self._scale
        share = self._num_clipped / max(self._num_values, 1)
        if share > MOST:
            notes.append(f"{share:.0%} of its values lie outside intensity = [{low:g}, {high:g}]")
        elif 0 < span < 0.02 * (high - low):
            notes.append(
                f"its values, {self._low:g} to {self._high:g}, fill only {span / (high - low):.1%} "
                f"of intensity = [{low:g}, {high:g}]"
            )
        return notes
