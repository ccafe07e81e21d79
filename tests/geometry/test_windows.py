"""Evaluation windows: each voxel counted once, with its context."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfunet.geometry.windows import Window, padding_before, plan_windows


@st.composite
def plans(draw):
    """An image, a patch and a halo that leaves something of the patch."""
    rank = draw(st.integers(1, 3))
    halo = draw(st.integers(0, 3))
    patch = draw(st.lists(st.integers(2 * halo + 1, 12), min_size=rank, max_size=rank))
    extent = draw(st.lists(st.integers(1, 30), min_size=rank, max_size=rank))
    return tuple(extent), tuple(patch), halo


def core(window):
    """The voxels of the image that a window counts."""
    return tuple(
        slice(start + first, start + stop)
        for start, first, stop in zip(
            window.start, window.core_start, window.core_stop, strict=True
        )
    )


@settings(max_examples=200)
@given(plans())
def test_every_voxel_is_counted_once(plan):
    extent, patch, halo = plan
    counted = np.zeros(extent, int)
    for window in plan_windows(extent, patch, halo):
        assert min(window.core_start) >= 0
        assert all(np.asarray(window.core_stop) <= patch)
        counted[core(window)] += 1
    assert (counted == 1).all()


@settings(max_examples=200)
@given(plans())
def test_a_core_keeps_its_halo_except_at_a_border_of_the_image(plan):
    extent, patch, halo = plan
    for window in plan_windows(extent, patch, halo):
        for axis, inside in enumerate(core(window)):
            before = window.core_start[axis]
            after = patch[axis] - window.core_stop[axis]
            assert before >= halo or inside.start == 0
            assert after >= halo or inside.stop == extent[axis]


@settings(max_examples=200)
@given(plans())
def test_a_window_leaves_the_image_only_where_the_image_is_smaller(plan):
    extent, patch, halo = plan
    before = padding_before(extent, patch)
    for window in plan_windows(extent, patch, halo):
        for axis, start in enumerate(window.start):
            if extent[axis] < patch[axis]:
                assert start == -before[axis]
            else:
                assert 0 <= start <= extent[axis] - patch[axis]


@pytest.mark.parametrize(
    ("extent", "patch", "halo", "axis"),
    [
        (8, 8, 0, [(0, 0, 8)]),
        (16, 8, 0, [(0, 0, 8), (8, 0, 8)]),
        # The last window is shifted inward and counts what the one before it left.
        (11, 8, 0, [(0, 0, 8), (3, 5, 8)]),
        # A halo costs a window, and the borders of the image need none.
        (16, 8, 1, [(0, 0, 7), (6, 1, 7), (8, 5, 8)]),
        (14, 8, 1, [(0, 0, 7), (6, 1, 8)]),
        # Centred in its window; of an odd rest the larger half comes last.
        (5, 8, 3, [(-1, 1, 6)]),
    ],
)
def test_windows_of_one_axis(extent, patch, halo, axis):
    planned = plan_windows((extent,), (patch,), halo)
    assert planned == [
        Window(start=(start,), core_start=(first,), core_stop=(stop,))
        for start, first, stop in axis
    ]


def test_a_halo_that_leaves_nothing_is_refused_where_it_is_needed():
    assert len(plan_windows((9, 4), (9, 4), 2)) == 1
    with pytest.raises(ValueError, match=r"evaluation_halo=2 .* at most 1\. Choose a smaller"):
        plan_windows((9, 5), (9, 4), 2)


def test_a_patch_of_another_rank_is_refused():
    with pytest.raises(ValueError, match=r"\(9, 9, 9\) has no patches of \(4, 4\)"):
        plan_windows((9, 9, 9), (4, 4))
