"""Metrics of whole cases: by hand, by brute force, and as MONAI publishes them."""

import math

import numpy as np
import pytest

from tfunet.config.case_metrics import PLAIN, case_metrics, keras_metrics
from tfunet.config.run import RunConfig
from tfunet.learning.case_metrics import measure, tolerances

NAMES = (*PLAIN, "nsd@1px")


def values(predicted, truth, spacing=None, names=NAMES):
    metrics = case_metrics(names)
    return dict(zip(names, measure(metrics, predicted, truth, spacing), strict=True))


def box(shape, *ranges):
    mask = np.zeros(shape, bool)
    mask[tuple(slice(*bounds) for bounds in ranges)] = True
    return mask


def test_a_square_moved_by_one_pixel():
    truth, predicted = box((8, 8), (2, 5), (2, 5)), box((8, 8), (2, 5), (3, 6))
    found = values(predicted, truth)
    # The outer 8 of 3 x 3 pixels are the surface, and 6 pixels are in both squares.
    assert found["dice"] == pytest.approx(12 / 18)
    assert found["iou"] == pytest.approx(6 / 12)
    assert found["hd"] == 1
    # The 3 left pixels of the true surface are 1 away, and so is the one in the middle of the
    # predicted square; the predicted surface has the mirror image of that.
    assert found["assd"] == pytest.approx(2 * 4 / 16)
    assert found["nsd@1px"] == 1
    assert values(predicted, truth, names=["nsd@0.5px"]) == {"nsd@0.5px": 0.5}
    assert found["volume_difference"] == 0


def test_distances_and_volumes_have_the_unit_of_the_pixel_size():
    truth, predicted = (
        box((9, 9, 9), (2, 5), (2, 5), (2, 5)),
        box((9, 9, 9), (2, 5), (2, 5), (2, 6)),
    )
    found = values(
        predicted, truth, (1.0, 1.0, 2.5), ["hd", "hd95", "volume_difference", "nsd@1px"]
    )
    assert found["hd"] == found["hd95"] == 2.5
    assert found["volume_difference"] == 9 * 2.5
    # In pixels, whatever their size.
    assert found["nsd@1px"] == 1
    (near,) = measure(case_metrics(["nsd@2.4mm"]), predicted, truth, (1.0, 1.0, 2.5))
    assert near < 1


def test_lesions():
    truth = box((10, 30), (1, 3), (1, 3)) | box((10, 30), (5, 7), (10, 12))
    truth |= box((10, 30), (1, 3), (20, 22))
    # One lesion finds two, one is new; corners connect.
    predicted = box((10, 30), (2, 6), (2, 11)) | box((10, 30), (8, 9), (25, 26))
    predicted |= box((10, 30), (9, 10), (26, 27))
    found = values(predicted, truth)
    assert found["lesion_precision"] == 1 / 2
    assert found["lesion_recall"] == 2 / 3
    assert found["lesion_f1"] == pytest.approx(2 * (1 / 2) * (2 / 3) / (1 / 2 + 2 / 3))


def test_objects():
    truth = box((12, 40), (1, 5), (1, 5)) | box((12, 40), (1, 5), (10, 14))
    truth |= box((12, 40), (7, 11), (1, 5)) | box((12, 40), (7, 11), (20, 30))
    # The first moved by 1, half of the second, the third exactly, two parts of the fourth, one new.
    predicted = box((12, 40), (1, 5), (2, 6)) | box((12, 40), (1, 3), (10, 14))
    predicted |= box((12, 40), (7, 11), (1, 5)) | box((12, 40), (7, 11), (20, 24))
    predicted |= box((12, 40), (7, 11), (26, 30)) | box((12, 40), (1, 4), (35, 38))
    names = ["instance_precision", "instance_recall", "instance_f1", "panoptic_quality"]
    found = values(predicted, truth, names=names)
    # IoU 12/20 and 1; half of an object is not above 0.5.
    assert found["instance_precision"] == pytest.approx(2 / 6)
    assert found["instance_recall"] == pytest.approx(2 / 4)
    assert found["instance_f1"] == pytest.approx(2 * 2 / (6 + 4))
    assert found["panoptic_quality"] == pytest.approx((12 / 20 + 1) / 5)
    strict = values(predicted, truth, names=["instance_f1@0.7", "panoptic_quality@.7"])
    assert strict == pytest.approx({"instance_f1@0.7": 2 / 10, "panoptic_quality@.7": 1 / 5})
    # Two of 4 true and 6 predicted ones up to an IoU of 0.6, then one.
    precise = values(predicted, truth, names=["instance_ap", "instance_ap@0.5", "instance_ap@0.7"])
    assert list(precise.values()) == pytest.approx([(2 * 2 / 8 + 8 * 1 / 9) / 10, 2 / 8, 1 / 9])
    assert values(predicted, truth, names=["instance_difference"]) == {"instance_difference": 2}


def test_true_objects_that_touch_are_told_apart_by_their_numbers():
    numbers = 7 * box((9, 20), (1, 5), (1, 5)) + 9 * box((9, 20), (1, 5), (5, 9))
    truth = numbers > 0  # Only a pixel of a third object is in the region.
    numbers[8] = 3
    truth[8, 19] = True
    predicted = box((9, 20), (1, 5), (1, 5)) | box((9, 20), (1, 5), (6, 9))
    names = ["instance_recall", "instance_precision", "panoptic_quality", "lesion_recall", "arand"]
    metrics = case_metrics(names)
    recall, precision, quality, lesions, arand = measure(metrics, predicted, truth, None, numbers)
    assert (recall, precision, quality) == (2 / 3, 1, pytest.approx((1 + 12 / 16) / 2.5))
    assert lesions == 1 / 2  # Lesions are components.
    # The missed column's nearest predicted object is to the left or to the right.
    assert arand < measure(metrics, predicted, truth, None)[-1]
    joined = measure(metrics, truth, truth, None)
    assert joined == [1, 1, 1, 1, 0]
    apart = measure(metrics, truth, truth, None, numbers)
    assert apart[:2] == [1 / 3, 1 / 2]  # Two in one are found by none; each is half of it.
    assert apart[-1] > 0


def test_a_border_between_objects_is_an_object_of_its_own():
    cells = box((12, 20), (1, 9), (1, 5)) | box((12, 20), (1, 9), (6, 10))
    numbers = np.where(np.arange(20) < 5, 1, 2) * cells
    border = box((12, 20), (1, 9), (5, 6))
    names = ["instance_f1", "instance_ap", "panoptic_quality", "instance_difference", "arand"]
    metrics, nothing = case_metrics(names), np.zeros_like(border)
    assert measure(metrics, border, border, None, numbers) == [1, 1, 1, 0, 0]
    assert measure(metrics, nothing, border, None, numbers) == [0, 0, 0, -1, 1]
    # In cells and border together, the border is in no object.
    both = cells | border
    f1, ap, quality, difference, _ = measure(metrics, both, both, None, numbers)
    assert (f1, ap, quality, difference) == (0, 0, 0, -1)
    f1, ap, quality, difference, _ = measure(metrics, cells, both, None, numbers)
    assert (f1, ap, quality, difference) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("shape", "level", "expected"),
    [
        ((96, 96), 0.06, [0.8709677419354839, 0.9, 0.8852459016393442, 0.77433971955719]),
        ((24, 40, 40), 0.05, [7 / 15, 7 / 24, 0.358974358974359, 0.27780368057999383]),
    ],
)
def test_objects_as_panoptica_scores_them(shape, level, expected):
    from scipy import ndimage

    rng = np.random.default_rng(len(shape) - 2)
    truth = ndimage.gaussian_filter(rng.normal(size=shape), 2.2) > level
    predicted = ndimage.gaussian_filter(truth + rng.normal(0, 0.35, shape), 1.2) > 0.5
    names = ["instance_precision", "instance_recall", "instance_f1", "panoptic_quality"]
    # panoptica 2.1.7 on the same components; at an IoU of exactly the limit it would match.
    found = values(predicted, truth, names=[f"{name}@0.6" for name in names])
    assert list(found.values()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["instance_f1@0.4", "instance_f1@1", "panoptic_quality@5mm"])
def test_an_overlap_that_would_match_two_objects_is_refused(name):
    with pytest.raises(ValueError, match=r"at least 0\.5 and less than 1: '\w+@0\.7'"):
        RunConfig(metrics=(name,))


@pytest.mark.parametrize(
    ("predicted", "truth", "expected"),
    [
        (False, False, [1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1]),
        # No surface to measure to: no distance. Nothing predicted has no precision.
        (
            False,
            True,
            [
                *(0, 0, *3 * [math.nan], math.nan, 0, 0, -4, math.nan, 0, 0, 0, 0, -1, 0),
                *(1, *2 * [math.nan], 0),
            ],
        ),
        (
            True,
            False,
            [
                *(0, 0, *3 * [math.nan], 0, math.nan, 0, 4, 0, math.nan, 0, 0, 0, 1, 0),
                *(1, *2 * [math.nan], 0),
            ],
        ),
    ],
)
def test_empty_masks(predicted, truth, expected):
    square, empty = box((6, 6), (1, 3), (1, 3)), np.zeros((6, 6), bool)
    found = values(square if predicted else empty, square if truth else empty)
    np.testing.assert_equal(list(found.values()), expected)


def sphere(radius, centre, spacing=(1.0, 1.0, 1.0)):
    places = np.ogrid[:99, :99, :99]
    squares = [
        (place * size - middle) ** 2
        for place, size, middle in zip(places, spacing, centre, strict=True)
    ]
    return sum(squares) <= radius**2


@pytest.mark.parametrize(
    ("first", "second", "spacing", "name", "expected"),
    [
        # From tests/test_hausdorff_distance.py of MONAI.
        ((20, (20, 20, 20)), (20, (19, 19, 19)), None, "hd", 1.7320508075688772),
        ((20, (20, 33, 22)), (40, (20, 33, 22)), None, "hd", 20.223748416156685),
        ((20, (20, 33, 22)), (40, (20, 33, 22)), None, "hd95", 20.09975124224178),
        ((20, (20, 20, 20)), (20, (19, 19, 19)), (0.85, 1.2, 0.9), "hd", 2.2671568),
        ((15, (20, 33, 22)), (30, (20, 33, 22)), (0.85, 1.2, 0.9), "hd", 15.62594),
    ],
)
def test_values_that_monai_publishes(first, second, spacing, name, expected):
    spheres = (sphere(*ball, spacing or (1.0, 1.0, 1.0)) for ball in (first, second))
    found = values(*spheres, spacing, [name])
    assert found[name] == pytest.approx(expected, rel=1e-6)


def test_random_masks_by_brute_force():
    rng = np.random.default_rng(0)
    spacing = np.array([0.5, 1.0, 2.0])
    names = ["hd", "hd95", "assd", "nsd@1.5mm"]
    for share in (0.03, 0.3, 0.7):
        masks = [rng.random((7, 8, 6)) < share for _ in range(2)]
        surfaces = []
        for mask in masks:
            framed = np.pad(mask, 1)
            inner = framed.copy()
            for axis in range(3):
                inner &= np.roll(framed, 1, axis) & np.roll(framed, -1, axis)
            surfaces.append(np.argwhere((framed & ~inner)[1:-1, 1:-1, 1:-1]) * spacing)
        apart = np.linalg.norm(surfaces[0][:, None] - surfaces[1][None], axis=-1)
        pair = apart.min(1), apart.min(0)
        found = values(*masks, tuple(spacing), names)
        assert found == pytest.approx(
            {
                "hd": max(map(np.max, pair)),
                "hd95": max(np.percentile(distances, 95) for distances in pair),
                "assd": np.concatenate(pair).mean(),
                "nsd@1.5mm": (np.concatenate(pair) <= 1.5).mean(),
            },
            rel=1e-12,
        )


@pytest.mark.parametrize(
    ("name", "unit", "tolerance"),
    [
        ("nsd@1mm", "mm", 1),
        ("nsd@1mm", "µm", 1000),
        ("nsd@200 um", "mm", 0.2),
        # The files do not say their unit.
        ("nsd@0.2um", "", 0.2),
        ("nsd@2px", "mm", 2),
    ],
)
def test_a_tolerance_is_in_the_unit_of_the_pixel_size(name, unit, tolerance):
    (metric,) = tolerances(case_metrics([name]), unit, has_spacing=True)
    assert metric.tolerance == tolerance
    assert metric.name == name


def test_a_length_needs_a_pixel_size():
    with pytest.raises(ValueError, match=r"states? no pixel size.*nsd@2px"):
        tolerances(case_metrics(["nsd@1mm"]), "", has_spacing=False)
    assert tolerances(case_metrics(["hd95", "nsd@1px"]), "", has_spacing=False)


@pytest.mark.parametrize("name", ["nsd", "nsd@", "nsd@1", "nsd@1inch", "nsd@0mm", "hd95@1mm"])
def test_a_wrong_name_is_refused_before_training(name):
    with pytest.raises(ValueError, match=r"'nsd@1mm', 'nsd@0\.2um', 'nsd@2px'"):
        RunConfig(metrics=(name,))


def test_other_names_are_those_of_keras():
    names = ("sparse_categorical_accuracy", "hd95", "mymetric.py:width")
    assert keras_metrics(names) == ("sparse_categorical_accuracy",)
    assert [metric.kind for metric in case_metrics(names)] == ["hd95", "own"]
