"""Losses and metrics of whole samples, from the parts of the devices that share them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfunet.geometry.kinds import is_older
from tfunet.geometry.pointwise import is_pixelwise_loss
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import Part


@dataclass(frozen=True, kw_only=True)
class SplitSample:
    """A sample whose voxels are on several devices; see `tfunet.learning.losses.WholeSample`."""

    group: SampleGroup
    share: float

    def mean(self, means: tf.Tensor) -> tf.Tensor:
        """Return the means over all voxels, of those over this device's."""
        return self.group.sum(means * tf.constant(self.share, means.dtype))

    def sums(self, *sums: tf.Tensor) -> list[tf.Tensor]:
        """Return the sums over all voxels, of those over this device's; of one shape."""
        return tf.unstack(self.group.sum(tf.stack(sums)))


def split_loss(loss: keras.Loss, network: SplitNetwork, num_labels: int = 0) -> None:
    """Make a loss give the values of whole samples if it is called with parts of them.

    Losses with a method `of_parts` add up what they need of each part. A loss whose value for each
    voxel depends on this voxel alone is averaged over all parts: it is tried. Any other is computed
    from the gathered logits.

    Args:
        num_labels: Of the masks; by default as many as logits.
    """
    own_call = loss.call
    # A class of the user's may override `call` only.
    has_parts = hasattr(loss, "of_parts") and not is_older(loss, "of_parts", "call")
    pixelwise: dict[Any, bool] = {}

    def is_pixelwise(y_true: Any, y_pred: Any, part: Part) -> bool:
        channels, rank = y_pred.shape[-1], len(part.bounds)
        key = (channels, y_pred.dtype, y_true.dtype, tuple(y_true.shape[1 + rank :]))
        if key not in pixelwise:
            labels = num_labels or max(2, channels)
            pixelwise[key] = is_pixelwise_loss(own_call, y_true, y_pred, part.extents, labels)
        return pixelwise[key]

    def call(y_true: Any, y_pred: Any) -> Any:
        network.loss_calls[loss.name] += 1
        if not network.is_part(y_pred):
            return own_call(y_true, y_pred)
        group = network.group()
        part = Part(tensor=y_pred, bounds=network.bounds)
        sample = SplitSample(group=group, share=part.voxel_shares[group.part])
        if has_parts:
            return loss.of_parts(y_true, y_pred, sample)
        if is_pixelwise(y_true, y_pred, part):
            values = own_call(y_true, y_pred)
            return sample.mean(tf.reduce_mean(tf.reshape(values, [values.shape[0], -1]), axis=1))
        network.note_gathered(loss.name, type(loss).__name__, part)
        return own_call(_whole_mask(y_true, part, group), part.whole(group))

    object.__setattr__(loss, "call", call)


def split_metrics(metrics: Iterable[keras.Metric], network: SplitNetwork) -> None:
    """Make the metrics of a compiled model exact where each device sees a part of its sample.

    Those of Keras add up over voxels, whoever counts them. Others get the gathered logits.
    """
    for metric in metrics:
        if not type(metric).__module__.startswith("keras."):
            _gather_for(metric, network)


def _gather_for(metric: keras.Metric, network: SplitNetwork) -> None:
    own_update = metric.update_state

    def update_state(y_true: Any, y_pred: Any, *more: Any, **options: Any) -> Any:
        if network.is_part(y_pred):
            group = network.group()
            part = Part(tensor=y_pred, bounds=network.bounds)
            network.note_gathered(metric.name, type(metric).__name__, part)
            y_true, y_pred = _whole_mask(y_true, part, group), part.whole(group)
        return own_update(y_true, y_pred, *more, **options)

    object.__setattr__(metric, "update_state", update_state)


def _whole_mask(mask: Any, part: Part, group: SampleGroup) -> tf.Tensor:
    has_channel = len(mask.shape) == len(part.bounds) + 2
    # Devices do not exchange integers of every size.
    values = tf.cast(mask, tf.int32 if mask.dtype.is_integer else mask.dtype)
    values = values if has_channel else values[..., tf.newaxis]
    whole = tf.cast(Part(tensor=values, bounds=part.bounds).whole(group), mask.dtype)
    return whole if has_channel else whole[..., 0]
