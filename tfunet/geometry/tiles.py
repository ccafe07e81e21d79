"""Tiles that cover an image, and how their predictions are put together."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from tfunet.geometry.windows import AxisPart, axis_parts, padding_before

# As in nnU-Net (Isensee et al. 2021): half of a window overlaps the next, and its Gaussian weights
# have a standard deviation of an eighth of the window.
OVERLAP = 0.5
DEVIATION = 1 / 8

# Takes the starts of windows and yields the logits (*window, classes) of each.
Predict = Callable[[Sequence[tuple[int, ...]]], Iterable[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Windows that cover a padded image: all combinations of the parts of its axes.

    Args:
        extent: Spatial shape of the image.
        before: Voxels of padding in front of it.
        window: Spatial shape of each window.
        axes: The windows along each axis of the padded image.
        weights: Along each axis, how much each voxel of a window counts, float32. Those outside of
            its own part count for nothing.
    """

    extent: tuple[int, ...]
    before: tuple[int, ...]
    window: tuple[int, ...]
    axes: tuple[tuple[AxisPart, ...], ...]
    weights: tuple[np.ndarray, ...]

    @cached_property
    def totals(self) -> tuple[np.ndarray, ...]:
        """Along each axis, the sum of the weights of all windows at each voxel."""
        totals = [np.zeros(max(part.stop for part in axis), np.float32) for axis in self.axes]
        for total, axis, weights in zip(totals, self.axes, self.weights, strict=True):
            for part in axis:
                total[part.start : part.stop] += weights[_inside(part, part.start)]
        return tuple(totals)

    @property
    def num_windows(self) -> int:
        """Number of windows of the image."""
        return math.prod(map(len, self.axes))

    def rows_done(self, rows: int) -> int:
        """Return how many of the first `rows` rows of the image are complete bands of `bands`."""
        starts = [max(part.start - self.before[0], 0) for part in self.axes[0]]
        return max((start for start in [*starts, self.extent[0]] if start <= rows), default=0)

    def windows_from(self, row: int) -> int:
        """Return how many windows count for the rows of the image from `row` on."""
        per_row = self.num_windows // len(self.axes[0])
        return per_row * sum(part.stop > row + self.before[0] for part in self.axes[0])


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
        axes.append(tuple(axis_parts(size, length, margin, step)))
    return Tiling(
        extent=tuple(extent),
        before=(0,) * len(padded),
        window=cut,
        axes=tuple(axes),
        weights=tuple(np.ones(length, np.float32) for length in cut),
    )


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
                AxisPart(start, start, start + length, start + length)
                for start in _even_starts(size, length)
            )
            for size, length in zip(padded, window, strict=True)
        ),
        weights=tuple(
            _gaussian(length, alone=size == length)
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
    ends = [part.start for part in tiling.axes[0][1:]] + [len(tiling.totals[0])]
    for part, end in zip(tiling.axes[0], ends, strict=True):
        if part.stop <= done:
            continue
        missing = part.stop - done - len(held)
        held = np.concatenate([held, np.zeros((max(missing, 0), *rest, num_logits), np.float32)])
        corners = list(product([part], *tiling.axes[1:]))
        starts = [tuple(along.begin for along in corner) for corner in corners]
        for corner, logits in zip(corners, predict(starts), strict=True):
            _add(held, done, corner, logits, tiling.weights)
        stop = min(end, bottom)
        if stop > done:
            yield _averaged(held[: stop - done], tiling, done)[(slice(None), *inside)]
            held = held[stop - done :].copy()
            done = stop


def _add(
    held: np.ndarray,
    done: int,
    corner: Sequence[AxisPart],
    logits: np.ndarray,
    weights: Sequence[np.ndarray],
) -> None:
    """Add the logits of a window to the rows that are held; the first of them is row `done`."""
    # The rows before `done` are written already.
    firsts = [max(corner[0].start, done), *(part.start for part in corner[1:])]
    target = [slice(first, part.stop) for first, part in zip(firsts, corner, strict=True)]
    target[0] = slice(firsts[0] - done, corner[0].stop - done)
    source = tuple(map(_inside, corner, firsts))
    part = logits[source]
    for axis, (along, inside) in enumerate(zip(weights, source, strict=True)):
        part = part * _along(along[inside], axis, part.ndim)
    held[tuple(target)] += part


def _inside(part: AxisPart, first: int) -> slice:
    """Return where a window holds its own part, from a voxel `first` of the image on."""
    return slice(first - part.begin, part.stop - part.begin)


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
