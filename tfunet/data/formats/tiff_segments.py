"""Boxes of a TIFF that is stored in tiles or strips, with tifffile."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.data.formats.stored import FEWEST_PARTS, Region

# Decoded tiles are kept: windows that overlap need the same ones again.
TILE_CACHE_BYTES = 64 * 2**20


def segmented_region(path: Path, series: Any) -> Region | None:
    """Return the reader of boxes of a series; None if it has too few tiles or strips."""
    page = series.keyframe
    stack = series.shape[: len(series.shape) - len(page.shape)]
    if series.shape[len(stack) :] != page.shape or math.prod(stack) != len(series.pages):
        return None
    if len(page.dataoffsets) * len(series.pages) < FEWEST_PARTS:
        return None
    axes = _places(page)
    return None if axes is None else _Segments(path, series, stack, axes).read


def _places(page: Any) -> list[int] | None:
    """Return which axis of `page.shaped` each axis of a page is; None where there is none.

    A decoder numbers them: separate samples, z, y, x, samples.
    """
    places = {"S": 0 if page.shaped[0] > 1 else 4, "Z": 1, "Y": 2, "X": 3}
    if not set(page.axes) <= set(places):
        return None
    axes = [places[letter] for letter in page.axes]
    full = [1] * 5
    for axis, length in zip(axes, page.shape, strict=True):
        full[axis] = length
    return axes if page.shaped == tuple(full) else None


@final
class _Segments:
    """Decodes the tiles or strips that boxes need, and keeps the last of them.

    Args:
        path: The file.
        series: Its pages.
        stack: Lengths of the axes that pages are the planes of.
        axes: Which axis of `page.shaped` each axis of a page is.
    """

    def __init__(
        self, path: Path, series: Any, stack: tuple[int, ...], axes: Sequence[int]
    ) -> None:
        page = series.keyframe
        self._path, self._page, self._stack, self._axes = path, page, stack, axes
        self._places = [
            None if frame is None else (frame.dataoffsets, frame.databytecounts)
            for frame in series.pages
        ]
        *_, length, width, samples = page.shaped
        if page.is_tiled:
            self._size = (1, page.tiledepth, page.tilelength, page.tilewidth, samples)
        else:
            self._size = (1, 1, min(page.rowsperstrip, length), width, samples)
        # Made here: for JPEG it looks into the file, which is open now.
        self._decode = page.decode
        segment_bytes = math.prod(self._size) * page.dtype.itemsize
        self._segment = lru_cache(maxsize=max(4, TILE_CACHE_BYTES // segment_bytes))(self._decoded)

    def read(self, box: tuple[slice, ...]) -> np.ndarray:
        """Return the stored pixels in a box."""
        stack = self._stack
        outer = [range(*bounds.indices(all_)) for bounds, all_ in zip(box, stack, strict=False)]
        inner = box[len(stack) :]
        numbers = [int(np.ravel_multi_index(at, stack)) for at in product(*outer)] if stack else [0]
        planes = np.stack([self._plane(number, inner) for number in numbers])
        return planes.reshape([*map(len, outer), *planes.shape[1:]])

    def _plane(self, number: int, box: tuple[slice, ...]) -> np.ndarray:
        page = self._page
        wide = [(0, length) for length in page.shaped]
        for axis, bounds in zip(self._axes, box, strict=True):
            wide[axis] = bounds.indices(page.shaped[axis])[:2]
        out = np.full([stop - start for start, stop in wide], page.nodata, page.dtype)
        grid = [
            range(start // step, -(-stop // step))
            for (start, stop), step in zip(wide, self._size, strict=True)
        ]
        counts = [-(-all_ // step) for all_, step in zip(page.shaped, self._size, strict=True)]
        for place in product(*grid):
            segment, begin = self._segment(number, int(np.ravel_multi_index(place, counts)))
            if segment is None:
                continue
            # A segment at the border may have been stored short, and a decoder may pad it.
            end = [first + n for first, n in zip(begin, (1, *segment.shape), strict=True)]
            low = [max(a, start) for a, (start, _) in zip(begin, wide, strict=True)]
            high = [min(b, stop) for b, (_, stop) in zip(end, wide, strict=True)]
            to = [slice(a - s, b - s) for a, b, (s, _) in zip(low, high, wide, strict=True)]
            of = [slice(a - s, b - s) for a, b, s in zip(low, high, begin, strict=True)]
            out[tuple(to)] = segment[np.newaxis][tuple(of)]
        return out.reshape([wide[axis][1] - wide[axis][0] for axis in self._axes])

    def _decoded(self, number: int, index: int) -> tuple[np.ndarray | None, tuple[int, ...]]:
        """Return a tile or strip of a page, if the file has it, and where it begins."""
        place = self._places[number]
        if place is None or not place[1][index]:
            return None, ()
        offsets, counts = place
        with self._path.open("rb") as file:
            file.seek(offsets[index])
            content = file.read(counts[index])
        if len(content) != counts[index]:
            raise ValueError("the file ends before its last pixel")
        segment, begin, _ = self._decode(content, index, jpegtables=self._page.jpegtables)
        return segment, begin
