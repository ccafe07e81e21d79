"""Losses that add up over the parts of a sample, and those that do not."""

import contextlib

import keras
import pytest

from tfunet.learning import LOSSES, PIXEL_MEANS, losses
from tfunet.learning.cldice import ClDice
from tfunet.learning.own_part import check_adds_up


class Local(keras.Loss):
    """A value for each pixel, which depends on that pixel."""

    def call(self, y_true, y_pred):
        return keras.ops.abs(y_pred[..., 0] - keras.ops.cast(y_true, y_pred.dtype))


class Uneven(keras.Loss):
    """A value for each pixel, which depends on all pixels."""

    def call(self, y_true, y_pred):
        axes = tuple(range(1, len(y_pred.shape) - 1))
        mean = keras.ops.mean(y_pred, axes, keepdims=True)
        return keras.ops.mean(keras.ops.square(y_pred - mean), axis=-1)


class Unsteady(keras.Loss):
    """Steps along the last axis only."""

    def call(self, y_true, y_pred):
        axes = tuple(range(1, len(y_pred.shape)))
        return keras.ops.mean(keras.ops.abs(y_pred[:, :, 1:] - y_pred[:, :, :-1]), axes)


class AtBorders(keras.Loss):
    """Counts a pixel by what lies around it."""

    def call(self, y_true, y_pred):
        mask = keras.ops.cast(y_true > 0, y_pred.dtype)[..., None]
        return keras.ops.max_pool(mask, 3, 1, "same")[..., 0] * y_pred[..., 0]


@pytest.mark.parametrize(
    "loss",
    [
        losses.CrossEntropy(),
        losses.CrossEntropy([1, 2, 5]),
        losses.Focal(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        Local(),
    ],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("rank", [2, 3])
def test_means_over_pixels_add_up(loss, rank):
    check_adds_up(loss, rank=rank, num_classes=3, num_logits=3)


@pytest.mark.parametrize(
    "loss",
    [
        *(losses.Dice(), losses.DiceCrossEntropy(), losses.Tversky(), losses.TopKCrossEntropy()),
        *(losses.DiceTopKCrossEntropy(), ClDice(), Uneven(), Unsteady(), AtBorders()),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_other_losses_are_refused(loss):
    with pytest.raises(ValueError, match=f"{loss.name}.*not the mean over its pixels.*or use spl"):
        check_adds_up(loss, rank=2, num_classes=2, num_logits=1 if loss.name == "dice" else 2)


def test_losses_that_are_refused_are_known_before_tensorflow_is_imported():
    adding_up = set()
    for name in LOSSES:
        with contextlib.suppress(ValueError):
            check_adds_up(losses.make(name, {}), rank=2, num_classes=2, num_logits=2)
            adding_up.add(name)
    assert adding_up == set(PIXEL_MEANS)
