"""An image cut into a grid of tiles, each with a halo, whose own parts cover it once. Pure.

    axis of the image     |.......own.......|.......own.......|.......own.......|
    first window          |=================~~~|
    second window                        |~~~=================~~~|

Borders of tiles are multiples of the alignment, so that a network pools a window as it would pool
the whole image. For training, windows at a border are moved inward until all have one size:

    first window          |====================~~~~~~|
    last window                           |~~~~~~====================|
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from tfunet.geometry.windows import AxisPart, Window

# One number along each axis.
Sizes = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A tile of a grid: its own pixels [start, stop), in the window that begins at `begin`."""

    begin: Sizes
    start: Sizes
    stop: Sizes


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid of tiles.

    Args:
        tiles: Along each axis.
        image: Its sizes.
        halo: Pixels around a tile, before they are rounded up to the alignment.
        axes: The windows along each axis.
    """

    tiles: tuple[int, ...]
    image: tuple[int, ...]
    halo: tuple[int, ...]
    axes: tuple[tuple[AxisPart, ...], ...]

    @property
    def largest_window(self) -> tuple[int, ...]:
        """Sizes of the largest window."""
        return tuple(max(part.end - part.begin for part in axis) for axis in self.axes)

    @property
    def num_tiles(self) -> int:
        """Tiles of the image."""
        return math.prod(self.tiles)

    @cached_property
    def even_tiles(self) -> tuple[Tile, ...]:
        """The tiles, the last axis fastest, in windows that all have the size `largest_window`."""
        axes = [
            [(min(part.begin, axis[-1].end - size), part.start, part.stop) for part in axis]
            for axis, size in zip(self.axes, self.largest_window, strict=True)
        ]
        tiles = (zip(*places, strict=True) for places in product(*axes))
        return tuple(Tile(begin=begin, start=start, stop=stop) for begin, start, stop in tiles)

    @property
    def even_redundancy(self) -> float:
        """Pixels of the windows of `even_tiles` for each pixel of the image."""
        return math.prod(self.largest_window) * self.num_tiles / math.prod(self.image)

    @property
    def redundancy(self) -> float:
        """Pixels of all windows for each pixel of the image, borders and alignment counted."""
        pixels = math.prod(sum(part.end - part.begin for part in axis) for axis in self.axes)
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
            len(axis) > 1 and min(part.stop - part.start for part in axis) < margin
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
def _axis(size: int, count: int, margin: int, step: int) -> tuple[AxisPart, ...]:
    steps = -(-size // step)
    if not 1 <= count <= steps:
        raise ValueError(
            f"An axis of {size} pixels has {steps} steps of {step}, by which the network pools: "
            f"it can be cut into 1 to {steps} tiles, not {count}."
        )
    borders = [round(at * steps / count) * step for at in range(count + 1)]
    rounded = -(-margin // step) * step
    return tuple(
        AxisPart(max(start - rounded, 0), start, stop, min(stop + rounded, steps * step))
        for start, stop in pairwise(borders)
    )


def tiles_of(window: Window, cut: Grid) -> Iterator[tuple[Window, Sizes, Sizes]]:
    """Yield the tiles of a window as large as a grid's image, as windows.

    With each comes its own part, from start to stop in its own coordinates. The cores of all
    are the core of the whole.
    """
    for tile in cut.even_tiles:
        own = [
            tuple(place - begin for place, begin in zip(places, tile.begin, strict=True))
            for places in (tile.start, tile.stop)
        ]
        low = tuple(map(max, window.core_start, tile.start))
        high = tuple(map(min, window.core_stop, tile.stop))
        if any(first >= last for first, last in zip(low, high, strict=True)):
            low = high = tile.begin
        start, core_start, core_stop = (
            tuple(place + sign * begin for place, begin in zip(places, tile.begin, strict=True))
            for places, sign in ((window.start, 1), (low, -1), (high, -1))
        )
        yield Window(start=start, core_start=core_start, core_stop=core_stop), own[0], own[1]
