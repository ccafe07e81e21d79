"""Draws one 2D microscopy-like image of cells and its mask. Imports no TensorFlow."""

import numpy as np

from tfunet.data.generated.noise_and_shapes import blur, smooth_field


def cell_case(
    rng: np.random.Generator, *, size: int, noise: float, border: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return one image, float32 (size, size, 1), not normalised, and its mask."""
    radius = rng.uniform(6, 11) * min(1, size / 64)
    places = _scatter(rng, size, radius, coverage=rng.uniform(0.12, 0.38))
    instances, depth = _paint(rng, size, places)
    stain = _stain(rng, instances, depth, radius)

    # Background that is as bright as the cells.
    blurred_places = _scatter(rng, size, 1.3 * radius, coverage=rng.uniform(0.03, 0.15))
    haze = _stain(rng, *_paint(rng, size, blurred_places), radius)
    haze = blur(haze, rng.uniform(3.0, 4.5)) * rng.uniform(0.7, 1.4)
    clutter = _debris(rng, size) + _fibres(rng, size)
    background = rng.uniform(0.15, 0.4) * (1 + 0.5 * smooth_field(rng, (size, size), size // 6))

    scene = _light(rng, size) * (background + stain + haze + clutter)
    scene = blur(scene.clip(0), rng.uniform(0.7, 1.6))
    if noise > 0:
        photons = np.exp(rng.uniform(np.log(20), np.log(150))) / noise**2
        scene = rng.poisson(scene.astype(np.float64) * photons) / photons
        scene = scene + rng.normal(0, 0.03 * noise, scene.shape)
    mask = (instances > 0).astype(np.uint8)
    mask[_seams(instances)] = 2 if border else 0
    return scene[..., np.newaxis].astype(np.float32), mask


def _scatter(rng: np.random.Generator, size: int, radius: float, coverage: float) -> np.ndarray:
    """Return row, column and radius of each cell; most cells lie next to another one."""
    crowding = rng.uniform(0.35, 0.85)
    places = np.zeros((0, 3))
    # The number of tries is bounded: a crowded image may have no room for another cell.
    for _ in range(400):
        if len(places) and np.pi * (places[:, 2] ** 2).sum() >= coverage * size**2:
            break
        cell_radius = radius * rng.uniform(0.7, 1.35)
        at = rng.uniform(-0.3 * radius, size + 0.3 * radius, 2)
        if len(places) and rng.random() < crowding:
            other = places[int(rng.integers(len(places)))]
            angle = rng.uniform(0, 2 * np.pi)
            apart = (cell_radius + other[2]) * rng.uniform(0.8, 1.0)
            at = other[:2] + apart * np.array([np.sin(angle), np.cos(angle)])
        inside = (at > -cell_radius / 2).all() and (at < size + cell_radius / 2).all()
        distances = np.hypot(places[:, 0] - at[0], places[:, 1] - at[1])
        if inside and (distances > 0.75 * (places[:, 2] + cell_radius)).all():
            places = np.vstack([places, [*at, cell_radius]])
    return places


def _paint(
    rng: np.random.Generator, size: int, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return cell numbers from 1 and the depth in each: 0 at its outline, 1 at its centre."""
    instances = np.zeros((size, size), np.int32)
    depth = np.zeros((size, size), np.float32)
    waves = np.arange(2, 6)[:, np.newaxis, np.newaxis]
    for number, (row, column, radius) in enumerate(places, start=1):
        amplitude = (rng.normal(0, 1, 4) * (0.16, 0.07, 0.05, 0.03)).reshape(4, 1, 1)
        phase = rng.uniform(0, 2 * np.pi, (4, 1, 1))
        window, rows, columns = _window(size, row, column, 1.7 * radius)
        outline = 1 + (amplitude * np.cos(waves * np.arctan2(rows, columns) + phase)).sum(0)
        inside = 1 - np.hypot(rows, columns) / (radius * np.clip(outline, 0.55, 1.6))
        nearer = inside > depth[window]
        instances[window][nearer] = number
        depth[window][nearer] = inside[nearer]
    return instances, depth


def _window(
    size: int, row: float, column: float, reach: float
) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """Return the square around a place, and the rows and columns in it, counted from the place."""
    top, left = (max(0, int(at - reach)) for at in (row, column))
    bottom, right = (max(0, min(size, int(at + reach) + 1)) for at in (row, column))
    rows = np.arange(top, bottom)[:, np.newaxis] - row
    return (slice(top, bottom), slice(left, right)), rows, np.arange(left, right) - column


def _stain(
    rng: np.random.Generator, instances: np.ndarray, depth: np.ndarray, radius: float
) -> np.ndarray:
    """Return the brightness of painted cells: a bright rim, a dim and grainy body, some faint."""
    count = int(instances.max()) + 1
    strength = np.exp(rng.normal(0, 0.3, count)) * rng.uniform(0.7, 1.1)
    body = rng.uniform(0.1, 0.5, count) + rng.uniform(0, 0.35)
    nucleus = rng.uniform(-0.3, 0.5, count)
    rim = np.exp(-(((depth - 0.1) * radius / 1.6) ** 2))
    grain = 0.6 * blur(rng.standard_normal(instances.shape, dtype=np.float32), 1.0)
    inner = body[instances] * (1 + grain) + nucleus[instances] * (depth > 0.6)
    stain = strength[instances] * np.maximum(rim, inner) * (instances > 0)
    return stain.astype(np.float32)


def _debris(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return bright specks."""
    scene = np.zeros((size, size))
    for _ in range(int(rng.integers(3, 12) * (size / 128) ** 2) + 2):
        width = rng.uniform(0.6, 2.2)
        row, column = rng.uniform(0, size, 2)
        window, rows, columns = _window(size, row, column, 4 * width)
        scene[window] += rng.uniform(0.5, 1.5) * np.exp(-(rows**2 + columns**2) / (2 * width**2))
    return scene


def _fibres(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return up to three bright curved lines across the image."""
    scene = np.zeros((size, size))
    rows, columns = np.arange(size)[:, np.newaxis], np.arange(size)
    for _ in range(int(rng.integers(0, 4))):
        angle = rng.uniform(0, np.pi)
        along = rows * np.cos(angle) + columns * np.sin(angle)
        across = columns * np.cos(angle) - rows * np.sin(angle)
        bend = size * rng.uniform(0.03, 0.1) * np.sin(along * rng.uniform(1, 5) / size * np.pi)
        offset, width = rng.uniform(-0.5, 1) * size, rng.uniform(0.6, 1.6)
        scene += rng.uniform(0.3, 0.9) * np.exp(-(((across - offset - bend) / width) ** 2))
    return scene


def _light(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return uneven illumination: brightest somewhere, falling off to the edges."""
    places = np.arange(size) / size
    row, column = rng.uniform(0, 1, 2)
    distance = (places[:, np.newaxis] - row) ** 2 + (places - column) ** 2
    return 0.35 + np.exp(-distance / (2 * rng.uniform(0.35, 0.8) ** 2))


def _seams(instances: np.ndarray) -> np.ndarray:
    """Return where a pixel of a cell has one of another cell below it or to its right."""
    seams = np.zeros(instances.shape, bool)
    down, right = (instances[:-1], instances[1:]), (instances[:, :-1], instances[:, 1:])
    for (here, there), part in ((down, seams[:-1]), (right, seams[:, :-1])):
        part |= (here != there) & (here > 0) & (there > 0)
    return seams
