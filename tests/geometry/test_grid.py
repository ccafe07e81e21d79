"""Grids of tiles with a halo: they cover the image once, and say what the halo costs."""

import itertools

import numpy as np
import pytest

from tfunet.geometry.grid import grid, tiles_of
from tfunet.geometry.windows import plan_windows


@pytest.mark.parametrize(
    ("size", "count", "halo", "step"),
    [(64, 1, 8, 8), (64, 2, 5, 8), (70, 3, 0, 16), (10_000, 8, 219, 32), (9, 9, 1, 1)],
)
def test_own_parts_cover_an_axis_once_and_windows_have_their_halo(size, count, halo, step):
    (axis,) = grid([size], [count], [halo], [step]).axes
    assert len(axis) == count
    assert axis[0][1] == 0
    assert size <= axis[-1][2] < size + step
    for (_, _, stop, _), (_, start, _, _) in itertools.pairwise(axis):
        assert stop == start
    for begin, start, stop, end in axis:
        assert begin % step == start % step == stop % step == end % step == 0
        assert begin == 0 or start - begin >= halo
        assert end == axis[-1][2] or end - stop >= halo


# Figures of "Toward Large-Scale Image Segmentation on Summit": 8 x 8 tiles of 10,000 x 10,000.
@pytest.mark.parametrize(("halo", "redundancy"), [(92, 1.32), (188, 1.69), (206, 1.77)])
def test_published_redundancy(halo, redundancy):
    found = grid([10_000] * 2, [8, 8], [halo] * 2, [1, 1])
    assert round(found.inner_redundancy, 2) == redundancy
    # At the borders there is no halo.
    assert found.redundancy < found.inner_redundancy


def test_redundancy_counts_the_pixels_of_all_windows():
    found = grid([12, 8], [3, 1], [2, 2], [1, 1])
    assert found.largest_window == (8, 8)
    assert found.redundancy == (6 + 8 + 6) / 12


def test_tiles_that_cannot_be():
    assert grid([64, 64], [8, 8], [9, 9], [8, 8]).is_finer_than_halo
    assert not grid([64, 64], [8, 8], [8, 8], [8, 8]).is_finer_than_halo
    assert not grid([64, 64], [1, 1], [99, 99], [8, 8]).is_finer_than_halo
    with pytest.raises(ValueError, match="1 to 8 tiles, not 9"):
        grid([64, 64], [9, 1], [0, 0], [8, 8])


@pytest.mark.parametrize(
    ("image", "tiles", "halo", "steps"),
    [
        ((64, 48), (4, 1), (6, 9), (4, 8)),
        ((60, 36), (3, 2), (5, 5), (4, 4)),
        ((16, 12, 8), (2, 3, 1), (1, 2, 0), (2, 1, 4)),
    ],
)
def test_windows_of_one_size_keep_their_halo_and_cover_the_image_once(image, tiles, halo, steps):
    cut = grid(image, tiles, halo, steps)
    used = np.zeros(image, int)
    assert len(cut.even_tiles) == cut.num_tiles
    starts = [tile.start for tile in cut.even_tiles]
    assert starts == sorted(starts)  # The last axis is the fastest.
    for tile in cut.even_tiles:
        used[tuple(map(slice, tile.start, tile.stop))] += 1
        for begin, start, stop, window, size, margin, step in zip(
            *(tile.begin, tile.start, tile.stop, cut.largest_window, image, halo, steps),
            strict=True,
        ):
            end = begin + window
            assert 0 <= begin <= start < stop <= end <= size
            assert begin % step == start % step == 0
            assert begin == 0 or start - begin >= margin
            assert end == size or end - stop >= margin
    assert (used == 1).all()
    windows = np.prod(cut.largest_window) * cut.num_tiles
    assert cut.even_redundancy == windows / np.prod(image) >= cut.redundancy


# Images that are larger than a patch, and smaller.
@pytest.mark.parametrize("extent", [(70, 33), (20, 60)])
def test_tiles_of_windows_count_each_pixel_of_an_image_once(extent):
    patch = (32, 48)
    cut = grid(patch, (2, 3), (3, 3), (4, 4))
    before = [max(size - length, 0) // 2 for length, size in zip(extent, patch, strict=True)]
    counted = np.zeros(np.maximum(extent, patch), int)
    owned = np.zeros_like(counted)
    windows = plan_windows(extent, patch, halo=2)
    for window in windows:
        for tile, start, stop in tiles_of(window, cut):
            corner = np.add(tile.start, before)
            for table, first, last in (
                (counted, tile.core_start, tile.core_stop),
                (owned, start, stop),
            ):
                table[tuple(map(slice, corner + first, corner + last))] += 1
            if tile.core_start != tile.core_stop:
                assert all(np.less_equal(start, tile.core_start))
                assert all(np.less_equal(tile.core_stop, stop))
    inside = tuple(slice(first, first + size) for first, size in zip(before, extent, strict=True))
    assert (counted[inside] == 1).all()
    assert counted.sum() == np.prod(extent)
    assert owned.sum() == len(windows) * np.prod(patch)
