"""An image cut into a grid of tiles, each with a halo, whose own parts cover it once. Pure.

    axis of the image     |.......own.......|.......own.......|.......own.......|
    first window          |=================~~~|
    second window                        |~~~=================~~~|

Borders of tiles are multiples of the alignment, so that a network pools a window as it would pool
the whole image.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

# Along an axis, by the number of axes.
MOST_TILES = {2: 64, 3: 16}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid of tiles.

    Args:
        tiles: Along each axis.
        image: Its sizes.
        halo: Pixels around a tile, before they are rounded up to the alignment.
        axes: For each axis the windows as (begin, own begin, own end, end).
    """

    tiles: tuple[int, ...]
    image: tuple[int, ...]
    halo: tuple[int, ...]
    axes: tuple[tuple[tuple[int, int, int, int], ...], ...]

    @property
    def largest_window(self) -> tuple[int, ...]:
        """Sizes of the largest window."""
        return tuple(max(end - begin for begin, _, _, end in axis) for axis in self.axes)

    @property
    def redundancy(self) -> float:
        """Pixels of all windows for each pixel of the image, borders and alignment counted."""
        pixels = math.prod(sum(end - begin for begin, _, _, end in axis) for axis in self.axes)
        return pixels / math.prod(self.image)

    @property
    def inner_redundancy(self) -> float:
        """The same for a tile far from the borders, without alignment: F of Seal et al. 2020."""
        return math.prod(
            (size / count + 2 * margin * (count > 1)) / (size / count)
            for size, count, margin in zip(self.image, self.tiles, self.halo, strict=True)
        )

    @property
    def is_finer_than_halo(self) -> bool:
        """Whether some tile is narrower than the halo of its neighbour."""
        return any(
            len(axis) > 1 and min(stop - start for _, start, stop, _ in axis) < margin
            for axis, margin in zip(self.axes, self.halo, strict=True)
        )


def grid(
    image: Sequence[int], tiles: Sequence[int], halo: Sequence[int], alignment: Sequence[int]
) -> Grid:
    """Return the grid of so many tiles along each axis; its last tiles reach beyond the image.

    Raises ValueError if an axis has fewer steps of the alignment than tiles.
    """
    axes = map(_axis, image, tiles, halo, alignment)
    return Grid(tiles=tuple(tiles), image=tuple(image), halo=tuple(halo), axes=tuple(axes))


@functools.cache
def _axis(size: int, count: int, margin: int, step: int) -> tuple[tuple[int, int, int, int], ...]:
    steps = -(-size // step)
    if not 1 <= count <= steps:
        raise ValueError(
            f"An axis of {size} pixels has {steps} steps of {step}, by which the network pools: "
            f"it can be cut into 1 to {steps} tiles, not {count}."
        )
    borders = [round(at * steps / count) * step for at in range(count + 1)]
    rounded = -(-margin // step) * step
    return tuple(
        (max(start - rounded, 0), start, stop, min(stop + rounded, steps * step))
        for start, stop in pairwise(borders)
    )


def best_grid(
    image: Sequence[int],
    halo: Sequence[int],
    alignment: Sequence[int],
    most_pixels: float,
) -> Grid | None:
    """Return the grid with least redundancy, then fewest tiles, whose windows have so few pixels.

    Grids finer than their halo are left out. None if no grid of at most MOST_TILES along each axis
    is fine enough.
    """
    most = MOST_TILES[len(image)]
    counts = [
        range(1, min(most, -(-size // step)) + 1)
        for size, step in zip(image, alignment, strict=True)
    ]
    fitting = [
        candidate
        for tiles in product(*counts)
        if math.prod((candidate := grid(image, tiles, halo, alignment)).largest_window)
        <= most_pixels
        and not candidate.is_finer_than_halo
    ]
    return min(fitting, key=lambda one: (one.redundancy, math.prod(one.tiles)), default=None)
