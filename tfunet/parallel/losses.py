"""Losses and metrics of whole samples, from the parts of the devices that share them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfunet.geometry.kinds import is_older, is_own
from tfunet.geometry.pointwise import is_pixelwise_loss
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.network import Gathered, SplitNetwork
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
        num_labels: Labels in the masks; by default as many as logits.
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
        network.calls["loss"] += 1
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
        return own_call(_whole(y_true, network), _whole(y_pred, network))

    object.__setattr__(loss, "call", call)


def split_metrics(metrics: Iterable[keras.Metric], network: SplitNetwork) -> None:
    """Make the metrics of a compiled model exact where each device sees a part of its sample.

    Keras's metrics add up over voxels, whoever counts them. Others get the gathered logits.
    """
    for metric in metrics:
        if not type(metric).__module__.startswith("keras."):
            _gather_for(metric, network)


def _gather_for(metric: keras.Metric, network: SplitNetwork) -> None:
    own_update = metric.update_state

    def update_state(y_true: Any, y_pred: Any, *more: Any, **options: Any) -> Any:
        if network.is_part(y_pred):
            part = Part(tensor=y_pred, bounds=network.bounds)
            network.note_gathered(metric.name, type(metric).__name__, part)
            y_true, y_pred = _whole(y_true, network), _whole(y_pred, network)
        return own_update(y_true, y_pred, *more, **options)

    object.__setattr__(metric, "update_state", update_state)


def split_own_methods(model: keras.Model, network: SplitNetwork, num_bytes: int) -> None:
    """Give a model's own compute_loss and compute_metrics whole samples, whatever they do.

    Args:
        num_bytes: Size of what they get of a sample.
    """
    for name in ("compute_loss", "compute_metrics"):
        if is_own(model, name):
            object.__setattr__(model, name, _of_whole(getattr(model, name), name, network))
            kind = type(model).__name__
            network.gathered[name] = Gathered(name=name, kind=kind, num_bytes=num_bytes)


def _of_whole(method: Callable[..., Any], name: str, network: SplitNetwork) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if name == "compute_loss":
            network.calls["loss"] += 1
        args, kwargs = keras.tree.map_structure(
            lambda value: _whole(value, network) if network.is_part(value) else value,
            (args, kwargs),
        )
        return method(*args, **kwargs)

    return call


def _whole(value: Any, network: SplitNetwork) -> tf.Tensor:
    """Return the whole of an image, mask or output, of which this device has a part."""
    has_channel = len(value.shape) == len(network.bounds) + 2
    # Devices do not exchange integers of every size.
    values = tf.cast(value, tf.int32 if value.dtype.is_integer else value.dtype)
    values = values if has_channel else values[..., tf.newaxis]
    part = Part(tensor=values, bounds=network.bounds)
    whole = tf.cast(part.whole(network.group()), value.dtype)
    return whole if has_channel else whole[..., 0]
