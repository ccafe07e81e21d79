import numpy as np
import pytest

from tfunet.learning import scores
from tfunet.learning.counting import count, predicted_labels, region_table


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
    mask = random.integers(0, 4, (3, 5, 6))
    regions = {"whole": (1, 2, 3), "core": (2, 3)}
    start = np.array([[0, 0], [1, 2], [0, 0]])
    stop = np.array([[5, 6], [4, 6], [5, 6]])
    valid = np.array([1.0, 1.0, 0.0], "float32")  # the last one only fills the batch
    counts = count(
        predicted_labels(logits), mask, region_table(4, regions), start, stop, valid
    ).numpy()
    labels = logits.argmax(-1)
    for sample in range(2):
        part = tuple(slice(a, b) for a, b in zip(start[sample], stop[sample], strict=True))
        for column, members in enumerate(regions.values()):
            predicted = np.isin(labels[sample][part], members)
            truth = np.isin(mask[sample][part], members)
            wanted = [
                (predicted & truth).sum(),
                (predicted & ~truth).sum(),
                (~predicted & truth).sum(),
                truth.size,
            ]
            assert counts[sample, column].tolist() == wanted
    assert not counts[2].any()


def test_one_channel_is_foreground_where_positive():
    logits = np.array([[[-1.0], [2.0]]], "float32")
    assert predicted_labels(logits).numpy().tolist() == [[0, 1]]
