"""Scores of a data set: pixels of all cases together, beside means over cases."""

import math

import numpy as np
import pytest

from tfunet.learning import dataset_scores
from tfunet.learning.dataset_scores import absent_line, dataset_iou_line, region_scores

NAMES = ("true_positive", "false_positive", "false_negative")


def rows(**regions):
    return [
        {"case": str(at), "region": region, **dict(zip(NAMES, counts, strict=True))}
        for region, cases in regions.items()
        for at, counts in enumerate(cases)
    ]


def test_dataset_scores_are_those_of_all_pixels_laid_side_by_side():
    random = np.random.default_rng(0)
    masks, labels = random.integers(0, 3, (2, 4, 5, 6))
    cases = [
        [(mask & label).sum(), (label & ~mask).sum(), (mask & ~label).sum()]
        for mask, label in zip(masks == 1, labels == 1, strict=True)
    ]
    (found,) = region_scores(rows(car=cases)).values()
    truth, predicted = masks == 1, labels == 1
    assert found.dataset_iou == (truth & predicted).sum() / (truth | predicted).sum()
    assert found.dataset_dice == 2 * (truth & predicted).sum() / (truth.sum() + predicted.sum())
    assert found.iou == np.mean([tp / (tp + fp + fn) for tp, fp, fn in cases])


def test_a_rare_class_that_is_never_predicted_has_no_good_dataset_score():
    # In one of three masks, and in no prediction.
    found = region_scores(rows(road=[(6, 2, 0)] * 3, bicyclist=[(0, 0, 0)] * 2 + [(0, 0, 4)]))
    rare = found["bicyclist"]
    assert (rare.cases, rare.present, rare.empty) == (3, 1, 2)
    assert rare.iou == rare.dice == pytest.approx(2 / 3)
    assert rare.iou_where_present == rare.dice_where_present == 0
    assert rare.dataset_iou == rare.dataset_dice == 0
    assert dataset_iou_line(found) == "Dataset IoU: road 0.750, bicyclist 0.000; mIoU 0.375."
    assert absent_line(found) == (
        "2 of 3 cases have no bicyclist. In the mean over cases, a case without a region scores 1 "
        "if none is predicted there, else 0: see the dataset scores."
    )
    table = dataset_scores.score_rows(found)
    assert table[1] == {
        "region": "bicyclist",
        "cases": "3",
        "present": "1",
        "Dice": "0.667",
        "IoU": "0.667",
        "Dice where present": "0.000",
        "IoU where present": "0.000",
        "dataset Dice": "0.000",
        "dataset IoU": "0.000",
    }
    assert table[2]["region"] == "mean"
    assert table[2]["dataset IoU"] == "0.375"


def test_a_class_that_no_pixel_has_is_left_out_of_the_mean():
    found = region_scores(rows(road=[(6, 2, 0)], tram=[(0, 0, 0)]))
    assert math.isnan(found["tram"].dataset_iou)
    assert math.isnan(found["tram"].dice_where_present)
    assert found["tram"].dice == 1
    assert dataset_iou_line(found) == "Dataset IoU: road 0.750, tram -; mIoU 0.750."
    assert dataset_iou_line({"tram": found["tram"]}) == "Dataset IoU: tram -."
    assert region_scores([]) == {}


@pytest.mark.parametrize(
    ("cases", "is_said"),
    [
        ([(5, 1, 1), (5, 0, 0)], False),
        ([(5, 1, 1), (0, 0, 0)], True),  # More than half of the mean is the case without it.
        ([(5, 0, 0), (5, 0, 0), (0, 0, 0)], False),
        ([(0, 9, 0), (0, 9, 0), (5, 0, 0)], True),  # Most lack it, and score 0.
        ([(0, 0, 5), (0, 0, 5)], False),  # Missed everywhere: the mean is honest.
    ],
)
def test_a_mean_that_cases_without_the_class_make_is_said(cases, is_said):
    assert bool(absent_line(region_scores(rows(car=cases)))) == is_said
