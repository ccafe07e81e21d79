"""Removing components: counted component by component, it is what removing voxels gives."""

import numpy as np
import pytest

from tfunet.bench.analysis.cleaned_cases import choose_cleaning, compare, mean_dice
from tfunet.learning import scores
from tfunet.prediction.cleaning import Cleaning

REGIONS = ((1, 2), (2,))


def label_map(seed, shape=(30, 31)):
    from scipy import ndimage

    smooth = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=shape), 2)
    return np.digitize(smooth, np.quantile(smooth, [0.6, 0.85])).astype(np.uint8)


def dice_of_voxels(labels, mask):
    counts = []
    for members in REGIONS:
        predicted, truth = np.isin(labels, members), np.isin(mask, members)
        both = predicted & truth
        counts.append([both.sum(), (predicted & ~both).sum(), (truth & ~both).sum()])
    return scores.dice(np.array(counts))


@pytest.mark.parametrize(
    "cleaning",
    [
        Cleaning(),
        Cleaning(largest=(1,)),
        Cleaning(largest=(2,), min_voxels={1: 20}),
        Cleaning(min_voxels={1: 10**6, 2: 5}),
    ],
)
@pytest.mark.parametrize("shape", [(30, 31), (12, 13, 14)])
def test_dice_is_that_of_the_cleaned_voxels(cleaning, shape):
    for seed in range(3):
        labels, mask = label_map(seed, shape), label_map(seed + 50, shape)
        case = compare(labels, mask, REGIONS, 3)
        expected = dice_of_voxels(cleaning.apply(labels), mask)
        np.testing.assert_allclose(case.dice(cleaning), expected)


def test_what_is_kept():
    labels = np.zeros((9, 9), np.uint8)
    labels[:3, :3] = 1
    labels[3, 3] = 1  # Connected across a corner.
    labels[6:8, 6:8] = 1
    labels[8, 0] = 2
    largest = Cleaning(largest=(1,)).apply(labels)
    assert (largest == 1).sum() == 10
    assert (largest == 2).sum() == 1
    assert (Cleaning(min_voxels={1: 5, 2: 2}).apply(labels) > 0).sum() == 10
    empty = np.zeros((4, 4), np.uint8)
    np.testing.assert_array_equal(Cleaning(largest=(1, 2)).apply(empty), empty)


def cases_with_specks(num_specks):
    """A square that is found, and specks of 4 voxels beside it that are not there."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        mask = np.zeros((40, 40), np.uint8)
        mask[4:20, 4:20] = 1
        labels = mask.copy()
        labels[4, 4 : 4 + rng.integers(1, 9)] = 0
        for row in rng.choice(np.arange(22, 38, 3), num_specks, replace=False):
            labels[row : row + 2, 30:32] = 1
        yield compare(labels, mask, ((1,),), 2)


def test_a_removal_is_chosen_where_it_helps():
    cases = list(cases_with_specks(3))
    cleaning, trials = choose_cleaning(cases)
    assert cleaning.largest == (1,)
    (kept,) = (trial for trial in trials if trial.is_kept)
    assert (kept.better, kept.worse) == (6, 0)
    assert kept.gain.low > 0
    gained = mean_dice(cases, cleaning) - mean_dice(cases, Cleaning())
    assert kept.gain.value == pytest.approx(gained.mean())


def test_nothing_is_chosen_where_nothing_helps():
    cleaning, trials = choose_cleaning(list(cases_with_specks(0)))
    assert not cleaning
    # No component has 3000 voxels, so all would be removed.
    assert trials[-1].worse == 6
    assert not any(trial.is_kept for trial in trials)
