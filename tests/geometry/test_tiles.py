"""Tiles: every voxel is covered, bands are those of the whole, wherever they begin."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfunet.geometry.tiles import bands, blended, with_halo


@st.composite
def halo_tilings(draw):
    """A tiling of an image in two dimensions, with its halo and alignment."""
    step = draw(st.sampled_from([1, 2, 4]))
    halo = draw(st.integers(0, 5))
    extent = draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))
    least = -(-(2 * halo + step) // step)
    window = [draw(st.integers(least, least + 6)) * step for _ in range(2)]
    return with_halo(extent, window, (halo, halo), (step, step)), halo, step


def blended_tilings():
    sizes = st.tuples(st.integers(1, 50), st.integers(1, 50))
    return st.builds(blended, sizes, st.tuples(st.integers(2, 20), st.integers(2, 20)))


@settings(max_examples=100)
@given(halo_tilings())
def test_with_a_halo_each_voxel_comes_from_one_window_and_has_its_context(planned):
    tiling, halo, step = planned
    for axis, total, window in zip(tiling.axes, tiling.totals, tiling.window, strict=True):
        assert (total == 1).all()
        for part in axis:
            assert part.begin % step == 0
            assert part.start - part.begin >= halo or part.start == 0
            assert part.begin + window == part.end
            assert part.end - part.stop >= halo or part.stop == len(total)
    for total, size in zip(tiling.totals, tiling.extent, strict=True):
        assert len(total) >= size > len(total) - step


@settings(max_examples=100)
@given(blended_tilings())
def test_blended_windows_overlap_by_half_at_least(tiling):
    for axis, total, window in zip(tiling.axes, tiling.totals, tiling.window, strict=True):
        starts = [part.begin for part in axis]
        assert (total > 0).all()
        assert max(np.diff(starts), default=0) <= np.ceil(window / 2)
        assert starts[-1] + window == len(total)


def field(tiling, starts):
    """Logits of each window that differ from window to window, as a network's do."""
    for start in starts:
        rng = np.random.default_rng([*start, 1])
        yield rng.normal(size=(*tiling.window, 2)).astype(np.float32)


def line_sum(tiling, line, asked=None, out=None):
    def predict(starts):
        if asked is not None:
            asked.extend(starts)
        return field(tiling, starts)

    return tiling.line_sum(line, predict, 2, out)


def whole_of(parts):
    """All bands as one array; each is there until the next one."""
    return np.concatenate([band.copy() for band in parts])


@settings(max_examples=60)
@given(st.one_of(blended_tilings(), halo_tilings().map(operator.itemgetter(0))), st.integers(0, 50))
def test_bands_from_any_finished_row_have_the_bits_of_all(tiling, rows):
    whole = whole_of(bands(tiling, lambda line: line_sum(tiling, line)))
    assert whole.shape == (*tiling.extent, 2)
    first = tiling.rows_done(min(rows, tiling.extent[0]))
    asked, last = [], [None]

    def noted(line):
        # Each sum takes the memory of the one before.
        last[0] = line_sum(tiling, line, asked, last[0])
        return last[0]

    rest = [band.copy() for band in bands(tiling, noted, first)]
    assert len(asked) == tiling.windows_from(first)
    if first < tiling.extent[0]:
        np.testing.assert_array_equal(np.concatenate(rest), whole[first:])


def test_a_constant_stays_what_it_is():
    for tiling in (blended((37, 9), (8, 12)), with_halo((37, 9), (16, 12), (3, 3), (4, 4))):
        ones = np.ones((*tiling.window, 1), np.float32)

        def sum_of(line, tiling=tiling, ones=ones):
            return tiling.line_sum(line, lambda starts: [ones for _ in starts], 1)

        parts = bands(tiling, sum_of)
        np.testing.assert_allclose(whole_of(parts), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (
            (12, 40),
            "leaves less than 4, the least by which windows move. Choose a window of at least 16",
        ),
        ((18, 40), "no multiple of 4, by which this network pools. Choose 20"),
    ],
)
def test_a_window_that_leaves_nothing_is_refused(window, message):
    with pytest.raises(ValueError, match=message):
        with_halo((60, 60), window, (6, 6), (4, 4))
