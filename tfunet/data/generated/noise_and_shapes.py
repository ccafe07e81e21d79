"""Smooth noise, blur and shapes for the generated images. Imports no TensorFlow.

All arithmetic is float32, elementwise and in a fixed order: the same bits in any process.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import iadd

import numpy as np


def smooth_field(rng: np.random.Generator, shape: Sequence[int], wavelength: int) -> np.ndarray:
    """Return float32 noise of mean 0 and deviation about 1: a cubic B-spline of random knots.

    `wavelength` is the distance between the knots in pixels.
    """
    knots = [length // wavelength + 5 for length in shape]
    field = rng.standard_normal(knots, dtype=np.float32)
    for axis, length in enumerate(shape):
        place = rng.uniform(0, 1) + np.arange(length) / wavelength
        first = np.floor(place).astype(np.int64)
        part = place - first
        weights = (
            (1 - part) ** 3 / 6,
            (3 * part**3 - 6 * part**2 + 4) / 6,
            (-3 * part**3 + 3 * part**2 + 3 * part + 1) / 6,
            part**3 / 6,
        )
        column = [1] * field.ndim
        column[axis] = length
        field = _sum(
            field.take(first + tap, axis) * weight.astype(np.float32).reshape(column)
            for tap, weight in enumerate(weights)
        )
    # The squares of a cubic B-spline's weights sum to 0.48 on average, on each axis.
    return field / np.float32(0.48 ** (len(shape) / 2))


def blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Return the image as float32 under a Gaussian of `sigma` pixels, mirrored at its edges."""
    image = image.astype(np.float32, copy=False)
    reach = max(1, int(3 * sigma + 0.5))
    taps = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for axis, length in enumerate(image.shape):
        widths = [(reach, reach) if other == axis else (0, 0) for other in range(image.ndim)]
        padded = np.pad(image, widths, mode="symmetric")
        before = (slice(None),) * axis
        image = _sum(
            padded[(*before, slice(tap, tap + length))] * weight for tap, weight in enumerate(taps)
        )
    return image


def ellipsoid(
    grid: np.ndarray, centre: Sequence[float] | np.ndarray, half_axes: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return each point's distance from the centre, 1 on the surface; `grid`: (axes, *spatial)."""
    squares = (
        ((places - np.float32(middle)) / np.float32(half)) ** 2
        for places, middle, half in zip(grid, centre, half_axes, strict=True)
    )
    return np.sqrt(_sum(squares))


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-values)) without overflow."""
    return np.float32(0.5) + np.float32(0.5) * np.tanh(values * np.float32(0.5))


def _sum(parts: Iterable[np.ndarray]) -> np.ndarray:
    return reduce(iadd, parts)
