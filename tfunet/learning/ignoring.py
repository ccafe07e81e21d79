"""Voxels that count nowhere: their mask has a label of its own."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

# A logit of a class that is certainly not there, in 16 bits too: its probability is exactly 0.
NEVER = -1e4


def ignoring(mask: Any, logits: Any, label: int, *, of_regions: bool = False) -> tuple[Any, Any]:
    """Return a mask and logits that agree on background, for certain, where the mask has `label`.

    There, a loss is 0 and has no gradient. Logits are of classes, the background first, or of
    regions, of which the background is none.
    """
    mask, logits = ops.convert_to_tensor(mask), ops.convert_to_tensor(logits)
    ignored = ops.equal(mask, ops.cast(label, mask.dtype))
    mask = ops.where(ignored, ops.zeros_like(mask), mask)
    if len(ignored.shape) < len(logits.shape):
        ignored = ops.expand_dims(ignored, -1)
    classes = logits.shape[-1]
    has_background = classes > 1 and not of_regions
    sure = [0.0, *[NEVER] * (classes - 1)] if has_background else [NEVER] * classes
    return mask, ops.where(ignored, ops.cast(sure, logits.dtype), logits)


def ignore_in_loss(loss: keras.Loss, label: int, *, of_regions: bool = False) -> None:
    """Make a loss ignore the voxels whose mask has this label."""
    own_call = loss.call

    def call(y_true: Any, y_pred: Any) -> Any:
        return own_call(*ignoring(y_true, y_pred, label, of_regions=of_regions))

    object.__setattr__(loss, "call", call)


def background_where_ignored(
    mask: tf.Tensor, labels: tf.Tensor, label: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a mask and predicted labels with 0 where the mask has `label`: no score counts it."""
    ignored = mask == label
    return tf.where(ignored, tf.zeros_like(mask), mask), tf.where(ignored, 0, labels)
