"""How Keras layers run on parts of a sample, with the result of the whole sample.

A rule gets the group, the layer, this device's part of its input and the layer's keyword
arguments. It returns this device's part of the output, or a tensor that is the same on all
devices of the group. Layers without a rule are run on the whole tensor (`network`).
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfunet.geometry.kinds import kind_of
from tfunet.geometry.pointwise import (
    has_pointwise_activation,
    is_for_pixels,
    is_over_channels,
    is_pointwise_layer,
)
from tfunet.geometry.reach import Reach, upsampling_reach
from tfunet.geometry.receptive_field import window_reach
from tfunet.inside.of_keras import readers_of
from tfunet.inside.replacing import replacing
from tfunet.parallel.border_rules import cropped, padded, zero_padded
from tfunet.parallel.convolution import can_be_corrected, corrected_convolution
from tfunet.parallel.group import Borders, SampleGroup, cut_rows
from tfunet.parallel.mesh import Bounds
from tfunet.parallel.normalization import batch_normalized, group_normalized
from tfunet.parallel.part import Part, cut
from tfunet.parallel.window_inputs import (
    CannotCutError,
    out_bounds,
    windows_of,
    without_padding,
)

Rule = Callable[[SampleGroup, Any, Part, dict[str, Any]], Any]

MAX_POOLINGS = (layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D)
AVERAGE_POOLINGS = (layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D)
CONVOLUTIONS = (
    *(layers.Conv1D, layers.Conv2D, layers.Conv3D),
    *(layers.DepthwiseConv1D, layers.DepthwiseConv2D),
    *(layers.SeparableConv1D, layers.SeparableConv2D),
)
TRANSPOSED = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
UPSAMPLINGS = (layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D)
WINDOWS_IN_3D = (layers.Conv3D, layers.MaxPooling3D, layers.AveragePooling3D)
ZERO_PADDINGS = (layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D)
CROPPINGS = (layers.Cropping1D, layers.Cropping2D, layers.Cropping3D)
GLOBAL_AVERAGES = (
    *(layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D),
    layers.GlobalAveragePooling3D,
)
GLOBAL_MAXIMA = (
    *(layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D),
    layers.GlobalMaxPooling3D,
)
SPATIAL_DROPOUTS = (layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D)
MERGES = (
    *(layers.Add, layers.Subtract, layers.Multiply, layers.Average, layers.Maximum),
    *(layers.Minimum, layers.Concatenate),
)
# Classes of keras.ops that treat each value alone.
POINTWISE_OPS = frozenset(
    (
        *("Abs", "Absolute", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Expm1"),
        *("Floor", "Gelu", "HardShrink", "HardSigmoid", "HardSilu", "HardTanh", "Identity"),
        *("LeakyRelu", "Log", "Log1p", "LogSigmoid", "Negative", "Reciprocal", "Relu", "Relu6"),
        *("Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Silu", "Sin", "SoftShrink", "Softplus"),
        *("Softsign", "SparsePlus", "Sqrt", "Square", "SquaredPlus", "Tanh", "TanhShrink"),
        "Threshold",
    )
)
MERGING_OPS = frozenset(
    (
        *("Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Maximum", "Minimum", "Power"),
        *("Where", "Concatenate", "Greater", "GreaterEqual", "Less", "LessEqual", "Equal"),
        *("NotEqual", "LogicalAnd", "LogicalOr"),
    )
)


def rule_of(op: Any, rank: int) -> Rule | None:
    """Return the rule of a layer or operation with one input of `rank` axes, or None.

    Layers of a user's own class have none, even if it inherits from a layer of Keras, unless it
    overrides nothing. Nor have those whose loss is a sum over their output, or whose activation
    does not treat each voxel alone.
    """
    kind = kind_of(op)
    if getattr(op, "activity_regularizer", None) is not None or not has_pointwise_activation(op):
        return None
    if kind in WINDOWS_IN_3D and op.padding == "same":
        sizes = getattr(op, "pool_size", None) or op.kernel_size
        if any(stride - size > 1 for size, stride in zip(sizes, op.strides, strict=True)):
            # TensorFlow's CPU kernels begin in the middle of two or more rows that are left over.
            return None
    if kind in CONVOLUTIONS or kind in TRANSPOSED or kind in UPSAMPLINGS:
        if getattr(op, "data_format", "channels_last") != "channels_last":
            return None
        if kind in CONVOLUTIONS:
            return convolved if op.padding in ("same", "valid") else None
        if kind in UPSAMPLINGS:
            known = getattr(op, "interpolation", "nearest") in ("nearest", "bilinear")
            return upsampled if known else None
        # Keras pads and cuts these by rules of their own.
        usual = getattr(op, "output_padding", None) is None and set(op.dilation_rate) == {1}
        return transposed if usual else None
    if is_pointwise_layer(op):
        return pointwise
    if kind is layers.BatchNormalization:
        return normalized if is_over_channels(op.axis, rank) else None
    if kind is layers.GroupNormalization:
        return normalized if is_over_channels(op.axis, rank) else None
    table: dict[Any, Rule] = {
        **dict.fromkeys(MAX_POOLINGS, max_pooled),
        **dict.fromkeys(AVERAGE_POOLINGS, average_pooled),
        **dict.fromkeys(ZERO_PADDINGS, zero_padded),
        **dict.fromkeys(CROPPINGS, cropped),
        **dict.fromkeys(GLOBAL_AVERAGES, global_average),
        **dict.fromkeys(GLOBAL_MAXIMA, global_maximum),
        **dict.fromkeys(SPATIAL_DROPOUTS, dropped),
        layers.Dropout: dropped,
        layers.GaussianDropout: dropped,
        layers.GaussianNoise: noised,
    }
    if kind in table:
        channels_last = getattr(op, "data_format", "channels_last") == "channels_last"
        return table[kind] if channels_last else None
    if kind.__module__.startswith("keras."):
        return padded if kind.__name__ == "Pad" else pointwise if _is_pointwise_op(op) else None
    return None


def _is_pointwise_op(op: Any) -> bool:
    limits = (getattr(op, name, None) for name in ("x_min", "x_max"))
    return type(op).__name__ in POINTWISE_OPS and not any(map(is_for_pixels, limits))


def merges(op: Any) -> bool:
    """Whether a layer or operation joins tensors value by value, or along an axis."""
    kind = kind_of(op)
    return kind in MERGES or (kind.__module__.startswith("keras.") and kind.__name__ in MERGING_OPS)


def pointwise(group: SampleGroup, op: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Run a layer on the part as it is."""
    return part.mapped(lambda tensor: op(tensor, **kwargs))


def _times(stride: int) -> Callable[[int], int]:
    return lambda row: row * stride


def convolved(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Convolve the rows that the part of the output needs."""
    windows = windows_of(group, layer, part, layer.kernel_size)
    if not can_be_corrected(layer, part):
        tensor = windows.padded(part.with_rows(group, windows.rows))
        with without_padding(layer):
            return Part(tensor=layer(tensor, **kwargs), bounds=windows.bounds)
    # Cast as the layer would, so that what is sent is what it reads.
    part = part.mapped(lambda tensor: ops.cast(tensor, layer.compute_dtype))
    own = tensor = part.tensor
    borders: list[Borders] = []
    for axis, rows in windows.rows.items():
        borders.append(replace(part, tensor=tensor).borders(group, axis, rows))
        own = own if len(borders) > 1 else borders[0].tensor
        tensor = borders[-1].joined(borders[-1].tensor, borders[-1].others)

    def convolution(inputs: Any, kernel: Any) -> Any:
        return corrected_convolution(layer, windows, borders, inputs, kernel)

    # No exchange from here on: a replica of this process that waits would see the other's.
    with replacing(layer, convolution_op=convolution):
        return Part(tensor=layer(own, **kwargs), bounds=windows.bounds)


def max_pooled(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pool the rows that the part of the output needs."""
    windows = windows_of(group, layer, part, layer.pool_size)
    tensor = windows.padded(part.with_rows(group, windows.rows), part.tensor.dtype.min)
    with without_padding(layer):
        return Part(tensor=layer(tensor, **kwargs), bounds=windows.bounds)


def average_pooled(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pool the rows that the part of the output needs; padding does not count in a mean."""
    windows = windows_of(group, layer, part, layer.pool_size)
    tensor = windows.padded(part.with_rows(group, windows.rows))
    with without_padding(layer):
        pooled = layer(tensor, **kwargs)
    for axis, (before, after) in enumerate(windows.padding):
        if not before and not after:
            continue
        size, stride = layer.pool_size[axis], layer.strides[axis]
        inside = np.ones(tensor.shape[1 + axis])
        inside[:before] = 0
        inside[len(inside) - after :] = 0
        rows = pooled.shape[1 + axis]
        counts = [inside[row * stride : row * stride + size].sum() for row in range(rows)]
        shape = [1] * pooled.shape.rank
        shape[1 + axis] = rows
        scale = np.reshape(size / np.asarray(counts), shape)
        pooled = pooled * tf.constant(scale, pooled.dtype)
    return Part(tensor=pooled, bounds=windows.bounds)


def _spread(
    group: SampleGroup,
    part: Part,
    reaches: Sequence[Reach],
    out_extents: Sequence[int],
    run: Callable[[Any], Any],
    *,
    begins_before: bool,
) -> Part:
    """Run what makes several rows of each on the rows needed, and cut what it makes too much.

    Args:
        group: The devices of the parts.
        part: The input.
        reaches: The reach along each axis; transposed.
        out_extents: Spatial shape of the whole output.
        run: The operation.
        begins_before: Whether its first output row is the first that the first input row reaches,
            instead of `stride` times the number of that row.
    """
    wanted: dict[int, list[tuple[int, int]]] = {}
    bounds: list[Bounds | None] = []
    cuts: list[tuple[int, int]] = []
    for axis, (reach, extent, made) in enumerate(
        zip(reaches, part.extents, out_extents, strict=True)
    ):
        cut_at = part.bounds[axis]
        first, rows, out = 0, (0, made), None
        if cut_at is not None:
            out = out_bounds(cut_at, made, _times(reach.stride))
            wanted[axis] = [
                reach.inside(begin, end, extent) for begin, end in itertools.pairwise(out)
            ]
            place = group.place[axis]
            first, rows = wanted[axis][place][0], (out[place], out[place + 1])
        origin = first * reach.stride - (reach.before if begins_before else 0)
        bounds.append(out)
        cuts.append((rows[0] - origin, rows[1] - origin))
    tensor = run(part.with_rows(group, wanted))
    for axis, (begin, end) in enumerate(cuts):
        tensor = cut_rows(tensor, axis, begin, end)
    return Part(tensor=tensor, bounds=tuple(bounds))


def transposed(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Convolve, transposed, the rows that the part of the output needs."""
    out_extents = layer.compute_output_shape(part.whole_shape)[1:-1]
    reaches = [
        window_reach(layer, axis, layer.kernel_size, made, transposed=True)
        for axis, made in enumerate(out_extents)
    ]

    def run(tensor: Any) -> Any:
        with without_padding(layer):
            return layer(tensor, **kwargs)

    return _spread(group, part, reaches, out_extents, run, begins_before=True)


def upsampled(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Repeat or interpolate the rows that the part of the output needs."""
    linear = getattr(layer, "interpolation", "nearest") == "bilinear"
    factors = layer.size if isinstance(layer.size, tuple | list) else (layer.size,)
    reaches = [upsampling_reach(factor, linear=linear) for factor in factors]
    out_extents = [extent * factor for extent, factor in zip(part.extents, factors, strict=True)]

    def run(tensor: Any) -> Any:
        return layer(tensor, **kwargs)

    return _spread(group, part, reaches, out_extents, run, begins_before=False)


def global_average(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Any:
    """Return the mean over the voxels of the whole sample."""
    axes = list(range(1, part.tensor.shape.rank - 1))
    mean = ops.mean(part.tensor, axis=axes, keepdims=layer.keepdims)
    share = part.voxel_shares[group.part]
    return group.sum(mean * tf.constant(share, mean.dtype))


def global_maximum(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Any:
    """Return the maximum over the voxels of the whole sample."""
    return tf.reduce_max(group.gathered(layer(part.tensor, **kwargs)), axis=0)


def dropped(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Drop the values that one device would drop."""
    if not kwargs.get("training") or layer.rate == 0:
        return part
    return with_noise(group, layer, part, layer)


def noised(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Add the noise that one device would add."""
    if not kwargs.get("training") or layer.stddev == 0:
        return part
    return with_noise(group, layer, part, layer)


def with_noise(group: SampleGroup, layer: Any, part: Part, draw: Callable[..., Any]) -> Part:
    """Return a part with its share of the noise that is drawn for the whole sample.

    `draw` calls the layer, whose rule is `dropped` or `noised`.
    """
    shape = list(part.whole_shape)
    is_for_channels = isinstance(layer, SPATIAL_DROPOUTS)
    if is_for_channels:
        shape[1:-1] = [1] * (len(shape) - 2)  # One number for each channel.
    is_added = isinstance(layer, layers.GaussianNoise)
    like = tf.zeros if is_added else tf.ones
    noise = draw(like(shape, layer.compute_dtype), training=True)
    if not is_for_channels:
        noise = cut(group, noise, part.bounds).tensor
    own = ops.cast(part.tensor, layer.compute_dtype)
    return Part(tensor=own + noise if is_added else own * noise, bounds=part.bounds)


def normalized(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Normalize by the statistics of whole samples; see `normalization`.

    What the next convolutions need of others travels with the statistics: one exchange, not two.
    """
    width = _width_ahead(group, layer, part)
    if kind_of(layer) is layers.BatchNormalization:
        if not (kwargs.get("training") and layer.trainable):
            return pointwise(group, layer, part, kwargs)
        return batch_normalized(group, layer, part, width, kwargs)
    return group_normalized(group, layer, part, width)


def _width_ahead(group: SampleGroup, op: Any, part: Part) -> int:
    """Return how many rows of others the convolutions read that follow on a layer.

    Layers that treat each voxel alone may lie between. 0 if several axes are cut.
    """
    if len(part.cut_axes) != 1:
        return 0
    (axis,) = part.cut_axes
    bounds, rank = part.bounds[axis] or (), len(part.bounds) + 2
    following, seen, width = [op], {id(op)}, 0
    while following:
        for consumer in readers_of(following.pop()):
            if id(consumer) in seen:
                continue
            seen.add(id(consumer))
            rule = rule_of(consumer, rank)
            if rule is pointwise and kind_of(consumer) is not layers.Dense:
                following.append(consumer)
            elif rule is convolved:
                with contextlib.suppress(CannotCutError):
                    rows = windows_of(group, consumer, part, consumer.kernel_size).rows[axis]
                    width = max(width, *itertools.starmap(max, _beyond(rows, bounds)))
    # Only neighbours send a margin.
    return width if all(end - begin >= width for begin, end in itertools.pairwise(bounds)) else 0


def _beyond(rows: Sequence[tuple[int, int]], bounds: Bounds) -> list[tuple[int, int]]:
    """Return how many of the rows that each part wants lie before and after its own."""
    own = itertools.pairwise(bounds)
    return [
        (first - begin, end - last) for (begin, end), (first, last) in zip(rows, own, strict=True)
    ]
