"""The picture of a confusion matrix."""

import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from tfunet.data.confusion_figure import NO_VOXELS, draw_confusion, share_text


def test_a_row_has_the_shares_of_a_true_class_and_classes_that_are_nowhere_are_left_out():
    names = ["0 background", "1 road", "2 tram", "3 $car$"]
    counts = np.array([[90, 10, 0, 0], [0, 5, 0, 5], [0, 0, 0, 0], [0, 0, 0, 0]])
    axes, _ = draw_confusion(names, counts).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [*names[:2], names[3]]
    (cells,) = axes.collections
    shown = cells.get_array()
    np.testing.assert_allclose(shown[:2], [[90, 10, 0], [0, 50, 50]])
    # Nothing is a car, and some is taken for one.
    assert shown.mask[2].all()
    assert to_rgb(cells.cmap.get_bad()) == to_rgb(NO_VOXELS)
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["90.0", "10.0", "", "", "50.0", "50.0", "-", "-", "-"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")


@pytest.mark.parametrize(
    ("share", "in_tenths", "text"),
    [
        *[(1.0, True, "100"), (0.99996, True, "99.9"), (0.0004, True, "<0.1"), (0, True, "")],
        *[(0.9999, False, "99"), (0.004, False, "<1"), (0.126, False, "13"), (np.nan, False, "-")],
    ],
)
def test_rounding_makes_no_error_perfect_and_none_vanish(share, in_tenths, text):
    assert share_text(share, in_tenths=in_tenths) == text


@pytest.mark.parametrize("num", [2, 20, 40])
def test_numbers_lie_inside_their_cells(num):
    names = [f"{number} a class of a long name" for number in range(num)]
    counts = np.random.default_rng(0).integers(1, 99, (num, num))
    figure = draw_confusion(names, counts)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    axes, _ = figure.axes
    cell = axes.get_window_extent().width / num
    assert max((text.get_window_extent().width for text in axes.texts), default=0) < cell
    assert len(axes.texts) == (num * num if num <= 20 else 0)
    # Names touch neither the border of the picture nor each other.
    labels = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert min(label.x0 for label in labels) >= 0
    assert all(low.y1 <= high.y0 or high.y1 <= low.y0 for low, high in pairwise(labels))
    with Image.open(file) as picture:
        assert picture.width < 1200
