"""What an evaluation sums, and the scores that come of it."""

import numpy as np
import pytest
import tensorflow as tf

from tfunet.learning.outputs import ClassOutputs, RegionOutputs
from tfunet.learning.scoring import RegionScoring, TargetScoring

TARGETS = {"mass": (1.0, -0.5), "age": (0.0, 2.0)}


def test_numbers_are_averaged_over_the_voxels_of_a_case():
    scoring = TargetScoring(targets=TARGETS)
    # Case 0 lies in the cores of two windows, of 6 and 2 voxels; case 1 in one; the last is empty.
    output = tf.constant([[1.0, 0.0], [2.0, 4.0], [-1.0, 1.0], [9.0, 9.0]])
    batch = {
        "core_start": tf.constant([[0, 1], [2, 0], [0, 0], [0, 0]]),
        "core_stop": tf.constant([[3, 3], [3, 2], [1, 1], [2, 2]]),
        "valid": tf.constant([1.0, 1.0, 1.0, 0.0]),
    }
    sums = np.zeros((2, *scoring.shape))
    np.add.at(sums, [0, 0, 1, 1], scoring.case_sums(scoring.sums(output, batch).numpy()))
    assert scoring.confusion(sums).size == scoring.num_classes == 0
    np.testing.assert_array_equal(sums[:, 0, -1], [8, 1])
    means = {"mae": (0.375 + 1.0) / 2, "mae_mass": 0.375, "mae_age": 1.0}
    assert scoring.means(sums) == pytest.approx(means)
    rows = list(scoring.rows(sums, ["a", "b"]))
    assert rows[0] == {
        "case": "a",
        "target": "mass",
        "value": 1.0,
        "predicted": 1.25,
        "absolute_error": 0.25,
    }
    assert [(row["case"], row["target"]) for row in rows[1:]] == [
        *(("a", "age"), ("b", "mass"), ("b", "age")),
    ]


def test_the_parts_of_a_core_add_up_to_the_core():
    scoring = TargetScoring(targets=TARGETS)

    def sums(start, stop):
        core = {"core_start": tf.constant([start]), "core_stop": tf.constant([stop])}
        return scoring.sums(tf.constant([[0.3, -0.7]]), {**core, "valid": tf.ones(1)}).numpy()

    # As the devices that share a window have them: the third has rows of the halo only.
    parts = sums([1, 0], [4, 5]) + sums([0, 0], [3, 5]) + sums([2, 0], [2, 5])
    np.testing.assert_allclose(parts, sums([1, 0], [7, 5]), rtol=1e-15)


def test_regions_of_a_network_of_regions_are_counted_from_its_labels():
    regions = {"whole": (1, 2), "core": (2,)}
    scoring = RegionScoring(
        outputs=RegionOutputs(regions=regions), num_classes=3, regions=regions, ignored=255
    )
    batch = {
        "mask": tf.constant([[[1, 2], [255, 0]]], tf.uint8),
        "core_start": tf.constant([[0, 0]]),
        "core_stop": tf.constant([[2, 2]]),
        "valid": tf.ones(1),
    }
    logits = tf.constant([[[[1.0, -1.0], [1.0, -1.0]], [[9.0, 9.0], [-1.0, 1.0]]]])
    np.testing.assert_array_equal(scoring.labels(logits, batch), [[[1, 1], [0, 2]]])
    sums = scoring.case_sums(scoring.sums(logits, batch).numpy())
    np.testing.assert_array_equal(sums, [[[2, 1, 0, 4], [0, 1, 1, 4]]])


def test_regions_are_counted_and_listed_by_case():
    scoring = RegionScoring(
        outputs=ClassOutputs(num_classes=3),
        num_classes=3,
        regions={"cell": (1, 2), "border": (2,)},
    )
    logits = tf.one_hot([[[1, 0], [2, 2]]], 3)
    batch = {
        "mask": tf.constant([[[1, 1], [2, 0]]], tf.uint8),
        "core_start": tf.constant([[0, 0]]),
        "core_stop": tf.constant([[2, 2]]),
        "valid": tf.ones(1),
    }
    windows = scoring.sums(logits, batch).numpy()
    assert windows.shape[1:] == scoring.window_shape
    np.testing.assert_array_equal(scoring.confusion(windows), [[0, 0, 1], [1, 1, 0], [0, 0, 1]])
    sums = scoring.case_sums(windows)
    np.testing.assert_array_equal(sums, [[[2, 1, 1, 4], [1, 1, 0, 4]]])
    means = scoring.means(sums)
    assert means["dice_cell"] == pytest.approx(4 / 6)
    assert means["iou_border"] == pytest.approx(1 / 2)
    assert means["dice"] == pytest.approx((4 / 6 + 2 / 3) / 2)
    # A second case, without a border.
    means = scoring.means(np.concatenate([sums, [[[1, 0, 0, 4], [0, 0, 0, 4]]]]))
    assert means["iou_border"] == pytest.approx((1 / 2 + 1) / 2)
    assert means["dataset_iou_border"] == pytest.approx(1 / 2)
    assert means["dataset_iou_cell"] == pytest.approx(3 / 5)
    assert means["dataset_iou"] == pytest.approx((1 / 2 + 3 / 5) / 2)
    assert means["dataset_dice_cell"] == pytest.approx(6 / 8)
    # In no mask and no prediction: no score, nor a part of the mean.
    means = scoring.means(np.array([[[1, 0, 0, 4], [0, 0, 0, 4]]]))
    assert "dataset_iou_border" not in means
    assert means["dataset_iou"] == 1
    assert "dataset_iou" not in scoring.means(np.zeros((1, 2, 4)))
    assert next(scoring.rows(sums, ["a"])) == {
        "case": "a",
        "region": "cell",
        "true_positive": 2,
        "false_positive": 1,
        "false_negative": 1,
    }
