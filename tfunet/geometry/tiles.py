"""Tiles that cover an image, and how their predictions are put together."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from tfunet.geometry.windows import axis_windows, padding_before

# As in nnU-Net (Isensee et al. 2021): half of a window overlaps the next, and its Gaussian weights
# have a standard deviation of an eighth of the window.
OVERLAP = 0.5
DEVIATION = 1 / 8

# Takes the starts of windows and yields the logits (*window, classes) of each.
Predict = Callable[[Sequence[tuple[int, ...]]], Iterable[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A window along one axis; it counts from its voxel `begin` on with these float32 weights."""

    start: int
    begin: int
    weights: np.ndarray

    @property
    def end(self) -> int:
        """One past the last voxel that it counts for."""
        return self.begin + len(self.weights)


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Windows that cover a padded image: all combinations of the tiles of its axes."""

    extent: tuple[int, ...]
    before: tuple[int, ...]
    window: tuple[int, ...]
    axes: tuple[tuple[Tile, ...], ...]

    @cached_property
    def totals(self) -> tuple[np.ndarray, ...]:
        """Along each axis, the sum of the weights of all tiles at each voxel."""
        totals = [np.zeros(max(tile.end for tile in axis), np.float32) for axis in self.axes]
        for total, axis in zip(totals, self.axes, strict=True):
            for tile in axis:
                total[tile.begin : tile.end] += tile.weights
        return tuple(totals)

    @property
    def num_windows(self) -> int:
        """Number of windows of the image."""
        return math.prod(map(len, self.axes))

    def rows_done(self, rows: int) -> int:
        """Return how many of the first `rows` rows of the image are complete bands of `bands`."""
        starts = [max(tile.begin - self.before[0], 0) for tile in self.axes[0]]
        return max((start for start in [*starts, self.extent[0]] if start <= rows), default=0)

    def windows_from(self, row: int) -> int:
        """Return how many windows count for the rows of the image from `row` on."""
        per_row = self.num_windows // len(self.axes[0])
        return per_row * sum(tile.end > row + self.before[0] for tile in self.axes[0])


def with_halo(
    extent: Sequence[int], window: Sequence[int], halo: Sequence[int], alignment: Sequence[int]
) -> Tiling:
    """Cover an image so that each voxel comes from one window, with `halo` voxels around it.

    The image is padded at its end to a multiple of `alignment`, and windows start at multiples:
    the network sees each voxel as it would in the whole image. A window is cut to the image.
    """
    padded = [-(-size // step) * step for size, step in zip(extent, alignment, strict=True)]
    cut = tuple(map(min, window, padded))
    axes = []
    for size, length, margin, step in zip(padded, cut, halo, alignment, strict=True):
        if length < size and length - 2 * margin < step:
            raise ValueError(
                f"A window of {length} voxels with a halo of {margin} on each side leaves less "
                f"than {step}, the least by which windows move. Choose a window of at least "
                f"{2 * margin + step}, or a smaller --halo, which is no longer exact."
            )
        if length % step:
            raise ValueError(
                f"A window of {length} voxels is no multiple of {step}, by which this network "
                f"pools. Choose {-(-length // step) * step}."
            )
        axes.append(
            tuple(
                Tile(start=start, begin=start + first, weights=np.ones(stop - first, np.float32))
                for start, first, stop in axis_windows(size, length, margin, step)
            )
        )
    return Tiling(extent=tuple(extent), before=(0,) * len(padded), window=cut, axes=tuple(axes))


def blended(extent: Sequence[int], window: Sequence[int]) -> Tiling:
    """Cover an image by windows that overlap by half, with Gaussian weights about their middle.

    A smaller image is centred in the window and padded. After nnU-Net, Isensee et al. 2021.
    """
    padded = [max(sizes) for sizes in zip(extent, window, strict=True)]
    return Tiling(
        extent=tuple(extent),
        before=padding_before(extent, window),
        window=tuple(window),
        axes=tuple(
            tuple(
                Tile(start=start, begin=start, weights=_gaussian(length, alone=size == length))
                for start in _even_starts(size, length)
            )
            for size, length in zip(padded, window, strict=True)
        ),
    )


def bands(
    tiling: Tiling, predict: Predict, num_logits: int, first_row: int = 0
) -> Iterator[np.ndarray]:
    """Yield the logits in bands (rows, *rest, num_logits) float32, from a row of `rows_done` on."""
    rest = [len(total) for total in tiling.totals[1:]]
    top, bottom = tiling.before[0], tiling.before[0] + tiling.extent[0]
    done = top + first_row
    held = np.zeros((0, *rest, num_logits), np.float32)
    inside = tuple(
        slice(first, first + size)
        for first, size in zip(tiling.before[1:], tiling.extent[1:], strict=True)
    )
    ends = [tile.begin for tile in tiling.axes[0][1:]] + [len(tiling.totals[0])]
    for tile, end in zip(tiling.axes[0], ends, strict=True):
        if tile.end <= done:
            continue
        missing = tile.end - done - len(held)
        held = np.concatenate([held, np.zeros((max(missing, 0), *rest, num_logits), np.float32)])
        corners = list(product([tile], *tiling.axes[1:]))
        starts = [tuple(tile.start for tile in corner) for corner in corners]
        for corner, logits in zip(corners, predict(starts), strict=True):
            _add(held, done, corner, logits)
        stop = min(end, bottom)
        if stop > done:
            yield _averaged(held[: stop - done], tiling, done)[(slice(None), *inside)]
            held = held[stop - done :].copy()
            done = stop


def _add(held: np.ndarray, done: int, corner: Sequence[Tile], logits: np.ndarray) -> None:
    """Add the logits of a window to the rows that are held; the first of them is row `done`."""
    top, *others = corner
    # The rows before `done` are written already.
    first = max(top.begin, done)
    rows = top.weights[first - top.begin :]
    target = [slice(first - done, top.end - done)]
    source = [slice(first - top.start, top.end - top.start)]
    target += [slice(tile.begin, tile.end) for tile in others]
    source += [slice(tile.begin - tile.start, tile.end - tile.start) for tile in others]
    part = logits[tuple(source)]
    for axis, weights in enumerate([rows, *(tile.weights for tile in others)]):
        part = part * _along(weights, axis, part.ndim)
    held[tuple(target)] += part


def _averaged(held: np.ndarray, tiling: Tiling, done: int) -> np.ndarray:
    for axis, total in enumerate(tiling.totals):
        weights = total[done : done + len(held)] if axis == 0 else total
        held = held / _along(weights, axis, held.ndim)
    return held


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def _gaussian(length: int, *, alone: bool) -> np.ndarray:
    if alone:
        return np.ones(length, np.float32)
    distance = (np.arange(length) - (length - 1) / 2) / (length * DEVIATION)
    return np.exp(-0.5 * distance**2).astype(np.float32)


def _even_starts(length: int, window: int) -> list[int]:
    """Return starts at equal distances, so that windows overlap by at least OVERLAP."""
    steps = int(np.ceil((length - window) / (window * (1 - OVERLAP))))
    return (
        [round(index * (length - window) / steps) for index in range(steps + 1)] if steps else [0]
    )
