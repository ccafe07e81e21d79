import numpy as np
import pytest

from tfunet.learning import scores
from tfunet.learning.confusion import (
    accuracies,
    confusion_csv,
    count_pairs,
    region_counts,
    region_table,
)
from tfunet.learning.counting import count, predicted_labels


@pytest.mark.parametrize(
    ("counts", "dice", "iou"),
    [
        ([2, 0, 0], 1.0, 1.0),
        ([1, 1, 0], 2 / 3, 0.5),
        ([0, 3, 1], 0.0, 0.0),
        ([0, 0, 0], 1.0, 1.0),  # absent from mask and prediction
    ],
)
def test_scores_follow_from_counts(counts, dice, iou):
    assert scores.dice(np.array([counts]))[0] == pytest.approx(dice)
    assert scores.iou(np.array([counts]))[0] == pytest.approx(iou)


def test_counts_are_those_of_numpy_inside_the_core_only():
    random = np.random.default_rng(0)
    logits = random.normal(size=(3, 5, 6, 4)).astype("float32")
    mask = random.integers(0, 5, (3, 5, 6))
    mask[mask == 4] = 255  # Voxels to ignore.
    start = np.array([[0, 0], [1, 2], [0, 0]])
    stop = np.array([[5, 6], [4, 6], [5, 6]])
    valid = np.array([1.0, 1.0, 0.0], "float32")  # the last one only fills the batch
    counts = count(predicted_labels(logits), mask, 4, start, stop, valid).numpy()
    labels = logits.argmax(-1)
    for sample in range(2):
        part = tuple(slice(a, b) for a, b in zip(start[sample], stop[sample], strict=True))
        true, predicted = mask[sample][part], labels[sample][part]
        pairs = [[((true == a) & (predicted == b)).sum() for b in range(4)] for a in range(4)]
        assert counts[sample].tolist() == [*np.ravel(pairs), (true == 255).sum()]
        np.testing.assert_array_equal(count_pairs(true, predicted, 4), pairs)
    assert not counts[2].any()


def test_counts_of_regions_follow_from_those_of_classes():
    random = np.random.default_rng(1)
    mask, labels = random.integers(0, 4, (2, 3, 50))
    regions = {"whole": (1, 2, 3), "core": (2, 3), "part": (2,)}
    pairs = np.stack([count_pairs(mask[case], labels[case], 4) for case in range(3)])
    counts = region_counts(pairs, region_table(4, regions))
    for case in range(3):
        for column, members in enumerate(regions.values()):
            predicted, truth = (np.isin(values[case], members) for values in (labels, mask))
            both = (predicted & truth).sum()
            wanted = [both, predicted.sum() - both, truth.sum() - both]
            assert counts[case, column].tolist() == wanted


def test_accuracy_is_of_pixels_and_of_classes_in_the_masks():
    pairs = np.array([[6, 2, 0], [1, 1, 0], [0, 0, 0]])
    assert accuracies(pairs) == (7 / 10, (6 / 8 + 1 / 2) / 2)
    assert np.isnan(accuracies(np.zeros((3, 3), int))).all()


def test_a_confusion_matrix_is_a_table_with_names():
    assert confusion_csv(np.array([[5.0, 1.0], [0.0, 2.0]]), ["1 a, b"]) == (
        'true,0 background,"1 a, b"\n0 background,5,1\n"1 a, b",0,2\n'
    )
    with pytest.raises(ValueError, match="less than 2, got 3"):
        count_pairs(np.array([0, 1]), np.array([0, 3]), 2)


def test_one_channel_is_foreground_where_positive():
    logits = np.array([[[-1.0], [2.0]]], "float32")
    assert predicted_labels(logits).numpy().tolist() == [[0, 1]]
