"""Draws one volume with fractals of several categories, and its mask. Imports no TensorFlow.

A category is an iterated function system in three dimensions: a few affine maps that contract
space. The fractal is what they leave unchanged. Arithmetic is elementwise in a fixed order.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

MAPS = (4, 5, 6, 7)
# Largest sum of a row of a map's matrix: below 1 it contracts.
CONTRACTION = 0.95
STEPS = 24
# The least standard deviation of a fractal's points along each axis of its unit cube.
LEAST_SPREAD = 0.18
# How far the maps of one fractal lie from those of its category.
VARIATION = 0.03
OCTANTS = 8


@final
@dataclass(frozen=True)
class Category:
    """The maps x -> matrix x + shift of an iterated function system."""

    matrices: np.ndarray
    shifts: np.ndarray


@lru_cache(maxsize=64)
def category(number: int, seed: int) -> Category:
    """Return one of the categories of a seed; others are drawn until its fractal fills a cube."""
    rng = np.random.default_rng([seed, number, 7])
    while True:
        count = MAPS[number % len(MAPS)]
        matrices = rng.uniform(-1, 1, (count, 3, 3))
        matrices *= CONTRACTION / np.abs(matrices).sum(2).max(1).reshape(count, 1, 1)
        drawn = Category(matrices, rng.uniform(-1, 1, (count, 3)))
        if fractal_points(rng, drawn, 2000).std(0).min() >= LEAST_SPREAD:
            return drawn


def fractal_points(rng: np.random.Generator, system: Category, count: int) -> np.ndarray:
    """Return points (count, 3) of a fractal, moved and scaled into the unit cube."""
    points = np.zeros((count, 3))
    for _ in range(STEPS):
        chosen = rng.integers(len(system.shifts), size=count)
        matrix, moved = system.matrices[chosen], system.shifts[chosen]
        for axis in range(3):
            moved = moved + matrix[:, :, axis] * points[:, axis : axis + 1]
        points = moved
    low, high = points.min(0), points.max(0)
    return (points - low) / np.maximum(high - low, 1e-9)


def fractal_case(
    rng: np.random.Generator,
    *,
    size: int,
    noise: float,
    num_categories: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return one volume, float32 (size, size, size, 1), not normalised, and its mask.

    There is a fractal of each category, in an octant of its own. A voxel that it meets has its
    category's label. Brightness is at random, so that only its shape tells a category.
    """
    mask = np.zeros((size, size, size), np.uint8)
    image = np.zeros(mask.shape, np.float32)
    half = size // 2
    for number, octant in enumerate(rng.permutation(OCTANTS)[:num_categories].tolist()):
        own = category(number, seed)
        varied = Category(
            own.matrices * (1 + VARIATION * rng.normal(size=own.matrices.shape)), own.shifts
        )
        side = max(4, int(half * rng.uniform(0.8, 1)))
        # So many points that a fractal of dimension 2 is met nearly everywhere.
        places = (fractal_points(rng, varied, 12 * side**2) * (side - 1)).round().astype(np.int64)
        places += np.array([octant >> axis & 1 for axis in range(3)]) * half
        places += rng.integers(0, half - side + 1, 3)
        where = tuple(places.T)
        mask[where] = number + 1
        image[where] = rng.uniform(0.7, 1.3)
    image += np.float32(0.1 * noise) * rng.standard_normal(mask.shape, dtype=np.float32)
    return image[..., np.newaxis], mask
