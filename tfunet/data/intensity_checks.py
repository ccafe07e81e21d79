"""What the intensities of an image say of a mistake. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from tfunet.data.lazy_image import LazyImage
from tfunet.data.preprocess import INSIDE, NONZERO, Intensity

# Values that programs write where there is no data.
MARKS = np.array([-9999, -99999, -32768, -3.4028235e38, 3.4028235e38, -1e30, 1e20], np.float32)

# A window of CT leaves out the air, which may be most of an image.
MOST = 0.95

# Values above by more than so many times the range are of another scale, such as 16 bits instead of
# 8. A few of them are none: metal in CT.
FAR = 8
FEW = 0.01
# More above the range, by however little, are no bone nor metal: such as 10 bits instead of 8.
MANY = 0.2
# Deviations from the mean within which values are likely.
LIKELY = 10

# If a larger share of pixels has the value of the first one, it is what lies outside.
OUTSIDE = 0.2


@final
class IntensityChecks:
    """Looks at an image, whole or part by part.

    Args:
        scale: How its intensities are normalised.
        trained: The least and the largest intensity of the training images as the network saw
            them, where known.
    """

    def __init__(self, scale: Intensity, trained: Sequence[float] = ()) -> None:
        self._range, self._meant = _range_of(scale, trained)
        self._needs_zeros = scale == NONZERO
        self._first: float | None = None
        self._num_zeros = self._num_first = 0
        self._marks: set[float] = set()
        self._low, self._high = np.inf, -np.inf
        self._num_values = self._num_outside = self._num_above = 0

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
        if self._range is not None:
            low, high = self._range
            num_above = int((part > high).sum())
            self._num_values += part.size
            self._num_above += num_above
            self._num_outside += num_above + int((part < low).sum())

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
        if self._range is None:
            return notes
        low, high = self._range
        outside, above = (
            number / max(self._num_values, 1) for number in (self._num_outside, self._num_above)
        )
        if outside > MOST:
            notes.append(f"{outside:.0%} of its values lie outside {self._meant}")
        elif above > MANY or (above > FEW and self._high - high > FAR * (high - low)):
            notes.append(
                f"{above:.0%} of its values, up to {self._high:g}, lie above {self._meant}"
            )
        elif 0 < span < 0.02 * (high - low):
            notes.append(
                f"its values, {self._low:g} to {self._high:g}, fill only {span / (high - low):.1%} "
                f"of {self._meant}"
            )
        return notes


def watched(image: LazyImage, checks: IntensityChecks) -> LazyImage:
    """Return an image whose parts are looked at as they are read."""

    def read(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        pixels = image.read(start, stop)
        checks.add(pixels)
        return pixels

    return replace(image, read=read)


def _range_of(scale: Intensity, trained: Sequence[float]) -> tuple[tuple[float, float] | None, str]:
    """Return where intensities should lie, and this in words; None if any are as good."""
    if isinstance(scale, tuple):
        return scale, "intensity = [{:g}, {:g}]".format(*scale)
    if isinstance(scale, Mapping) and "mean" in scale:
        mean, deviation = np.array(scale["mean"]), np.array(scale["deviation"])
        low = np.min(scale.get("low", mean - LIKELY * deviation))
        high = np.max(scale.get("high", mean + LIKELY * deviation))
        return (float(low), float(high)), f"{low:g} to {high:g}, which follow from intensity"
    if scale == "none" and len(trained) == 2:
        low, high = trained
        return (low, high), f"those of the training images, {low:g} to {high:g}"
    return None, ""
