"""Normalization of parts of a sample by the statistics of the whole sample."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfunet.inside.of_keras import moments_from
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.part import Margin, Part


def batch_normalized(
    group: SampleGroup, layer: Any, part: Part, width: int, kwargs: dict[str, Any]
) -> Part:
    """Normalize by the statistics of the whole samples of the group's batch, in training.

    A synchronized layer takes those of all groups. Other groups' samples do not count without it,
    as without `split`. `width` is that of the output's margin, if it can have one.
    """
    shares, members = part.voxel_shares, group.mesh.members(group.device)
    if layer.synchronized:
        groups = group.mesh.groups
        members = group.mesh.holders(group.mesh.stage_of(group.device))
        shares = tuple(share / groups for share in shares) * groups
    part = part.mapped(lambda tensor: ops.cast(tensor, layer.compute_dtype))
    # Renormalization has rules of its own, which the layer keeps to itself.
    width = 0 if layer.renorm else width
    axes = list(range(part.tensor.shape.rank - 1))
    part, mean, variance = with_moments(group, part, wide, axes, shares, members, width)
    statistics = [tf.squeeze(moment, axes) for moment in (mean, variance)]
    # The layer does the rest, with these instead of its own.
    with moments_from(layer, lambda inputs, mask: statistics):
        own = layer(part.tensor, **kwargs)

    def normalize(rows: Any) -> Any:
        offset, scale = (
            None if weight is None else ops.cast(weight, mean.dtype)
            for weight in (layer.beta, layer.gamma)
        )
        return tf.nn.batch_normalization(rows, mean, variance, offset, scale, layer.epsilon)

    margin = None if part.margin is None else part.margin.mapped(normalize)
    return Part(tensor=own, bounds=part.bounds, margin=margin)


def group_normalized(group: SampleGroup, layer: Any, part: Part, width: int) -> Part:
    """Normalize groups of channels by their statistics over the whole sample.

    `width` is that of the output's margin, if it can have one.
    """
    channels = part.tensor.shape[-1]
    form = [layer.groups, channels // layer.groups]

    def grouped(tensor: Any) -> Any:
        tensor = wide(tensor)
        return tf.reshape(tensor, [*tensor.shape[:-1], *form])

    part = part.mapped(lambda tensor: ops.cast(tensor, layer.compute_dtype))
    rank = part.tensor.shape.rank
    axes = [*range(1, rank - 1), rank]
    members = group.mesh.members(group.device)
    part, mean, variance = with_moments(
        group, part, grouped, axes, part.voxel_shares, members, width
    )
    scale = tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        scale = scale * ops.cast(ops.reshape(layer.gamma, form), scale.dtype)
    offset = -mean * scale
    if layer.center:
        offset = offset + ops.cast(ops.reshape(layer.beta, form), scale.dtype)

    def normalize(tensor: Any) -> Any:
        normalized = tf.reshape(grouped(tensor) * scale + offset, tensor.shape)
        return ops.cast(normalized, layer.compute_dtype)

    return part.mapped(normalize)


def wide(tensor: Any) -> Any:
    """Return a tensor in the type of its statistics: at least float32."""
    return ops.cast(tensor, keras.backend.result_type(tensor.dtype, "float32"))


def with_moments(
    group: SampleGroup,
    part: Part,
    view: Callable[[Any], Any],
    axes: Sequence[int],
    shares: Sequence[float],
    members: Sequence[int],
    width: int,
) -> tuple[Part, Any, Any]:
    """Return a part with a margin, and mean and variance over all members, keeping the axes.

    Each member's own moments are put together (Chan et al. 1983, equation 2.1): the sum of squares
    alone would lose digits. The margin comes with them, if it has their type.

    Args:
        group: The devices.
        part: This device's values.
        view: Returns the values, in the form and type of which the moments are taken.
        axes: To take the moments over.
        shares: The share of all values that each member has.
        members: The devices, in order.
        width: Width of the margin; 0 for none.
    """
    mean, variance = tf.nn.moments(view(part.tensor), axes, keepdims=True)
    own = tf.stack([mean, variance])
    if width and own.dtype == part.tensor.dtype:
        (axis,) = part.cut_axes
        of_all, borders = group.gathered_with_borders(
            own, members, part.tensor, axis, part.bounds[axis] or (), part.rows_within(width)
        )
        margin = Margin(
            width=width,
            before=borders.others[0] if borders.num_before else None,
            after=borders.others[-1] if len(borders.others) > borders.num_before else None,
        )
        part = Part(tensor=borders.tensor, bounds=part.bounds, margin=margin)
    else:
        part, of_all = part.without_margin(), group.gathered(own, members)
    weights = tf.reshape(tf.constant(shares, of_all.dtype), [-1] + [1] * mean.shape.rank)
    means, variances = of_all[:, 0], of_all[:, 1]
    mean = tf.reduce_sum(weights * means, axis=0)
    variance = tf.reduce_sum(weights * (variances + tf.square(means - mean)), axis=0)
    return part, mean, variance
