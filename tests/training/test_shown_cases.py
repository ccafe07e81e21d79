"""Which cases and planes a run keeps for a report."""

import numpy as np
import pytest

from tfunet.data.shown_planes import Plane, planes_through
from tfunet.training.shown_cases import shown_positions


@pytest.mark.parametrize(
    ("hits", "positions"),
    [
        ([5, 1, 9, 3, 7], {"worst": 1, "median": 0, "best": 2}),
        ([5, 1, 9, 3], {"worst": 1, "median": 3, "best": 2}),
        ([5, 1], {"worst": 1, "best": 0}),
        ([5], {"worst": 0}),
    ],
)
def test_worst_median_and_best_case(hits, positions):
    sums = np.array([[[hit, 4, 4, 99]] for hit in hits], float)
    assert shown_positions(sums) == positions


def test_planes_lie_in_the_middle_of_what_is_marked():
    mask = np.zeros((8, 10, 12), np.uint8)
    mask[1:4, 5:8, 9:12] = 1
    planes = planes_through(mask)
    assert [(plane.axis, plane.at) for plane in planes] == [(0, 2), (1, 6), (2, 10)]
    assert planes[2].title(mask.shape) == "axis 3, plane 11 of 12"
    # Nothing is marked: the middle of the volume.
    assert [plane.at for plane in planes_through(np.zeros_like(mask))] == [4, 5, 6]
    assert planes_through(mask[0]) == [Plane(axis=None, at=0, step=1)]


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("step", [1, 3])
def test_a_plane_put_together_from_parts_is_that_of_the_whole(axis, step):
    shape = (9, 11) if axis is None else (9, 11, 10)
    voxels = np.random.default_rng(0).integers(0, 200, shape, dtype=np.uint8)
    plane = Plane(axis=axis, at=0 if axis is None else 7, step=step)
    canvas = np.zeros_like(plane.of(voxels))
    size = 4
    for corner in np.ndindex(*(-(-length // size) for length in shape)):
        start = [size * place for place in corner]
        plane.cut(voxels[tuple(slice(first, first + size) for first in start)], start, canvas)
    np.testing.assert_array_equal(canvas, plane.of(voxels))
