"""Tiles that cover an image, and how their predictions are put together."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product

import numpy as np

from tfunet.geometry.windows import AxisPart, axis_parts, padding_before

# As in nnU-Net (Isensee et al. 2021): half of a window overlaps the next, and its Gaussian weights
# have a standard deviation of an eighth of the window.
OVERLAP = 0.5
DEVIATION = 1 / 8

# Takes the starts of windows and yields the logits (*window, classes) of each.
Predict = Callable[[Sequence[tuple[int, ...]]], Iterable[np.ndarray]]
# Takes the number of a line and returns its sum, as `line_sum` does.
SumOf = Callable[[int], np.ndarray]


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
                total[part.start : part.stop] += weights[
                    part.start - part.begin : part.stop - part.begin
                ]
        return tuple(totals)

    @cached_property
    def lines(self) -> tuple[tuple[AxisPart, ...], ...]:
        """The lines of windows, each along the last axis, in the order of their places.

        The windows of a line are added up first, and then the lines. So the sum of an image does
        not depend on who added up which line.
        """
        return tuple(product(*self.axes[: max(1, len(self.axes) - 1)]))

    @cached_property
    def _weight(self) -> np.ndarray | None:
        """How much each voxel of a window counts, (*window, 1); None where all count for 1."""
        if all((along == 1).all() for along in self.weights):
            return None
        return reduce(np.multiply.outer, self.weights)[..., np.newaxis]

    def line_sum(
        self, line: int, predict: Predict, num_logits: int, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the weighted sum of the logits of a line's windows.

        Its shape is the line's own part of each axis but the last, which it has as a whole, and
        num_logits; float32. It takes the memory of `out`, if that has its shape.
        """
        parts = self.lines[line]
        rest = self.axes[len(parts) :]
        corners = [(*parts, *others) for others in product(*rest)]
        sizes = [part.stop - part.start for part in parts]
        sizes += [len(total) for total in self.totals[len(parts) :]]
        # Memory is used again where it can be: new pages take longer than the sums.
        total = out
        if total is None or total.shape != (*sizes, num_logits):
            total = np.empty((*sizes, num_logits), np.float32)
        total.fill(0)
        starts = [tuple(part.begin for part in corner) for corner in corners]
        weighted: np.ndarray | None = None
        for corner, logits in zip(corners, predict(starts), strict=True):
            own = tuple(slice(part.start - part.begin, part.stop - part.begin) for part in corner)
            along = tuple(slice(part.start, part.stop) for part in corner[len(parts) :])
            place = (*[slice(None)] * len(parts), *along)
            if self._weight is None:
                total[place] += logits[own]
                continue
            if weighted is None or weighted.shape != logits[own].shape:
                weighted = np.empty_like(logits[own])
            total[place] += np.multiply(logits[own], self._weight[own], out=weighted)
        return total

    @property
    def num_windows(self) -> int:
        """Number of windows of the image."""
        return math.prod(map(len, self.axes))

    def rows_done(self, rows: int) -> int:
        """Return how many of the first `rows` rows of the image are complete bands of `bands`."""
        starts = [max(part.start - self.before[0], 0) for part in self.axes[0]]
        return max((start for start in [*starts, self.extent[0]] if start <= rows), default=0)

    def lines_before(self, row: int) -> int:
        """Return how many lines, from the first one on, count for no row from `row` on."""
        per_row = len(self.lines) // len(self.axes[0])
        return per_row * sum(part.stop <= row + self.before[0] for part in self.axes[0])

    def windows_from(self, row: int) -> int:
        """Return how many windows count for the rows of the image from `row` on."""
        left = len(self.lines) - self.lines_before(row)
        return left * self.num_windows // len(self.lines)


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


def bands(tiling: Tiling, sum_of: SumOf, first_row: int = 0) -> Iterator[np.ndarray]:
    """Yield the logits in bands (rows, *rest, num_logits) float32, from a row of `rows_done` on.

    A band is there until the next one is asked for.

    Args:
        sum_of: Returns the sums of lines; it is asked for them in order.
    """
    top, bottom = tiling.before[0], tiling.before[0] + tiling.extent[0]
    done = top + first_row
    inside = tuple(
        slice(first, first + size)
        for first, size in zip(tiling.before[1:], tiling.extent[1:], strict=True)
    )
    ends = [part.start for part in tiling.axes[0][1:]] + [len(tiling.totals[0])]
    per_row = len(tiling.lines) // len(tiling.axes[0])
    held: np.ndarray | None = None  # Zero from row `filled` on.
    filled = 0
    for row, (part, end) in enumerate(zip(tiling.axes[0], ends, strict=True)):
        if part.stop <= done:
            continue
        for line in range(row * per_row, (row + 1) * per_row):
            total = sum_of(line)
            held = _grown(held, part.stop - done, tiling, total.shape[-1])
            # The rows before `done` are written already.
            first = max(part.start, done)
            rest = (slice(along.start, along.stop) for along in tiling.lines[line][1:])
            held[(slice(first - done, part.stop - done), *rest)] += total[first - part.start :]
        filled = max(filled, part.stop - done)
        stop = min(end, bottom)
        if stop > done and held is not None:
            count = stop - done
            yield _averaged(held[:count], tiling, done)[(slice(None), *inside)]
            filled, before, done = filled - count, filled, stop
            for at in range(filled):  # All at once would take other memory.
                held[at] = held[at + count]
            held[filled:before] = 0


def _grown(held: np.ndarray | None, rows: int, tiling: Tiling, num_logits: int) -> np.ndarray:
    """Return the rows that are held, and zeros after them, so that there are so many."""
    before = 0 if held is None else len(held)
    if held is not None and before >= rows:
        return held
    rest = [len(total) for total in tiling.totals[1:]]
    grown = np.zeros((rows, *rest, num_logits), np.float32)
    if held is not None:
        grown[:before] = held
    return grown


def _averaged(held: np.ndarray, tiling: Tiling, done: int) -> np.ndarray:
    """Divide rows by the sum of the weights of all windows at each voxel, in place."""
    for axis, total in enumerate(tiling.totals):
        weights = total[done : done + len(held)] if axis == 0 else total
        if (weights != 1).any():
            held /= _along(weights, axis, held.ndim)
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
