"""Centreline Dice: by hand, and on shapes that scikit-image alone would erase."""

import numpy as np
import pytest
from scipy import ndimage
from skimage.morphology import skeletonize

from tfunet.config.case_metrics import case_metrics
from tfunet.learning.case_metrics import measure
from tfunet.learning.centre_lines import centre_lines


def cldice(predicted, truth):
    (value,) = measure(case_metrics(["cldice"]), predicted, truth, None)
    return value


def box(shape, *ranges):
    mask = np.zeros(shape, bool)
    mask[tuple(slice(*bounds) for bounds in ranges)] = True
    return mask


def test_lines_by_hand():
    truth = box((9, 20), (4, 5), (2, 18))
    # A gap of 4 of 16 pixels: all of the rest is right.
    broken = truth & ~box((9, 20), (4, 5), (8, 12))
    assert cldice(broken, truth) == pytest.approx(2 * 1 * 0.75 / 1.75)
    # Wider by a pixel on both sides: each centre line lies in the other, but for one corner.
    assert cldice(box((9, 20), (3, 6), (2, 18)), truth) == pytest.approx(2 * 14 / 15 / (29 / 15))
    # A second line of the same length that is not there, and none of the true one.
    other = box((9, 20), (7, 8), (2, 18))
    assert cldice(truth | other, truth) == pytest.approx(2 * 0.5 * 1 / 1.5)
    assert cldice(other, truth) == 0


@pytest.mark.parametrize("shape", [(40, 40), (24, 24, 24)])
def test_every_component_has_a_centre_line_within_itself(shape):
    rng = np.random.default_rng(0)
    num_erased = 0
    for sigma, level in ((0.8, 0.3), (1.2, 0.12), (1.6, 0.1)):
        region = ndimage.gaussian_filter(rng.normal(size=shape), sigma) > level
        lines, alone = centre_lines(region), skeletonize(region)
        assert not (lines & ~region).any()
        labels, num_components = ndimage.label(region, np.ones((3,) * len(shape)))
        assert len(np.unique(labels[lines])) == num_components
        # Where scikit-image finds a centre line, it is the one.
        erased = ~np.isin(labels, np.unique(labels[alone]))
        assert (lines == alone)[~erased].all()
        num_erased += num_components - len(np.unique(labels[alone]))
    assert (num_erased > 0) == (len(shape) == 3)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6])
def test_a_tube_of_any_width_has_one_centre_line(width):
    side = (4, 4 + width)
    tube = box((40, 14, 14), (5, 35), side, side)
    lines = centre_lines(tube)
    assert cldice(tube, tube) == 1
    # From end to end, but for some pixels as its half width.
    assert (lines.any((1, 2)).sum()) >= 30 - width
    assert lines.sum() <= 2 * 30


@pytest.mark.parametrize(
    ("parts", "length"),
    [
        # scikit-image keeps the line of the bulb only in the first, and of a half in the second.
        ([((2, 50), (4, 6), (4, 6)), ((50, 56), (3, 6), (3, 6))], 48),
        ([((2, 30), (4, 8), (4, 8)), ((30, 58), (5, 9), (4, 8))], 50),
    ],
)
def test_a_vessel_of_which_a_part_would_be_erased_has_its_whole_line(parts, length):
    vessel = np.logical_or.reduce([box((60, 12, 12), *part) for part in parts])
    assert centre_lines(vessel).any((1, 2)).sum() >= length
    half = vessel & (np.arange(60) < 45)[:, np.newaxis, np.newaxis]
    assert cldice(half, vessel) < 0.95


def test_a_component_that_no_thinning_keeps_is_its_own_centre_line():
    component = np.ones((3, 4, 4), bool)
    component[0, 2, 2] = component[2, 1, 1] = False
    assert (centre_lines(component) == component).all()
