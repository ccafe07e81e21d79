"""The planes and channels of a case that a person is shown. Imports no TensorFlow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

# Larger images are kept with every second, third, ... pixel.
MOST_PIXELS = 384


@final
@dataclass(frozen=True, kw_only=True)
class Plane:
    """Every `step`-th pixel of an image, or of the plane at voxel `at` of an axis of a volume."""

    axis: int | None
    at: int
    step: int

    def cut(self, voxels: np.ndarray, corner: Sequence[int], canvas: np.ndarray) -> None:
        """Copy what a part of a case, from the voxel `corner` on, has of this plane."""
        taken: list[Any] = []
        filled: list[Any] = []
        for axis, (first, size) in enumerate(zip(corner, voxels.shape, strict=False)):
            if axis == self.axis:
                if not first <= self.at < first + size:
                    return
                taken.append(self.at - first)
                continue
            skipped = -first % self.step
            begin = (first + skipped) // self.step
            taken.append(slice(skipped, None, self.step))
            filled.append(slice(begin, begin + len(range(skipped, size, self.step))))
        canvas[tuple(filled)] = voxels[tuple(taken)]

    def of(self, voxels: Any) -> np.ndarray:
        """Return this plane of a whole case (*spatial) or (*spatial, channels)."""
        plane = voxels if self.axis is None else voxels.take(self.at, self.axis)
        return np.asarray(plane[:: self.step, :: self.step])

    def title(self, shape: Sequence[int]) -> str:
        """Return where the plane lies; empty for an image."""
        if self.axis is None:
            return ""
        return f"axis {self.axis + 1}, plane {self.at + 1} of {shape[self.axis]}"


def planes_through(mask: np.ndarray, most_pixels: int = MOST_PIXELS) -> list[Plane]:
    """Return the whole image, or a plane along each axis of a volume, through the middle of what
    is marked.
    """
    step = math.ceil(max(mask.shape) / most_pixels)
    if mask.ndim == 2:
        return [Plane(axis=None, at=0, step=step)]
    planes = []
    for axis, size in enumerate(mask.shape):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        counts = (mask > 0).sum(others)
        total = counts.sum()
        at = round(float(counts @ np.arange(size) / total)) if total else size // 2
        planes.append(Plane(axis=axis, at=at, step=step))
    return planes


@dataclass(frozen=True, kw_only=True)
class ShownPlane:
    """An image or a plane of a volume: pixels, mask and predicted labels (rows, columns).

    Pixels are grey values, or in colour (rows, columns, 3).
    """

    title: str
    image: np.ndarray
    mask: np.ndarray
    labels: np.ndarray


def shown_channels(image: np.ndarray, *, in_colour: bool) -> np.ndarray:
    """Return what a picture shows of an image (*spatial, channels): the first channel in grey, or
    in colour red, green and blue (rows, columns, 3).
    """
    return image[..., :3] if in_colour else image[..., 0]


def brightness(planes: Sequence[np.ndarray], *, in_colour: bool) -> tuple[float, float]:
    """Return what a picture shows as black and as white: not quite the least and the most.

    They are the same for red, green and blue, and black is at most 0, so that colours stay true.
    NaN does not count.
    """
    low, high = np.nanpercentile(np.concatenate([plane.ravel() for plane in planes]), (0.5, 99.5))
    return min(low, 0.0) if in_colour else low, high


def scaled(plane: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return pixels in 8 bits, with black and white at these values; NaN becomes white."""
    scale = 255 / (high - low) if high > low else 0.0
    shades = np.where(np.isnan(plane), 255, (plane - low) * scale)
    return np.clip(shades, 0, 255).astype(np.uint8)


def in_8_bits(planes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return planes of a case in 8 bits, darkest and brightest pixels cut off."""
    low, high = brightness(planes, in_colour=planes[0].ndim == 3)
    return [scaled(plane, low, high) for plane in planes]
