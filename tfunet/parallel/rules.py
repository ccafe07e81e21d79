"""How Keras layers run on parts of a sample, with the result of the whole sample.

A rule gets the group, the layer, this device's part of its input and the layer's keyword
arguments. It returns this device's part of the output, or a tensor that is the same on all
devices of the group. Layers without a rule are run on the whole tensor (`network`).
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfunet.geometry.reach import Reach, upsampling_reach
from tfunet.geometry.receptive_field import window_reach
from tfunet.parallel.group import Borders, SampleGroup, cut_rows
from tfunet.parallel.mesh import Bounds, even_bounds
from tfunet.parallel.part import Part, cut

Rule = Callable[[SampleGroup, Any, Part, dict[str, Any]], Any]

MAX_POOLINGS = (layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D)
AVERAGE_POOLINGS = (layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D)
# Their calls go through `convolution_op`.
WITH_CONVOLUTION_OP = (layers.Conv2D, layers.Conv3D)
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
# Layers that treat each voxel, or each value, alone.
POINTWISE = (
    *(layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Identity),
    *(layers.Rescaling, layers.Dense),
)
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


class CannotCutError(ValueError):
    """An output, or a step on the way to it, has no rows for one of the devices."""


def rule_of(op: Any, rank: int) -> Rule | None:
    """Return the rule of a layer or operation with one input of `rank` axes, or None.

    Layers of a user's own class have none, even if it inherits from a layer of Keras.
    """
    kind = type(op)
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
    if kind in POINTWISE:
        return pointwise if not _is_softmax_over_space(op) else None
    if kind is layers.Softmax or kind is layers.UnitNormalization:
        return pointwise if _is_over_channels(op.axis, rank) else None
    if kind is layers.LayerNormalization:
        return pointwise if _is_over_channels(op.axis, rank) else None
    if kind is layers.BatchNormalization:
        return batch_normalized if _is_over_channels(op.axis, rank) else None
    if kind is layers.GroupNormalization:
        return group_normalized if _is_over_channels(op.axis, rank) else None
    if kind is layers.PReLU:
        return pointwise if math.prod(op.alpha.shape[:-1]) == 1 else None
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
        return padded if kind.__name__ == "Pad" else pointwise if _is_pointwise_op(kind) else None
    return None


def _is_pointwise_op(kind: type) -> bool:
    return kind.__name__ in POINTWISE_OPS


def _is_over_channels(axis: Any, rank: int) -> bool:
    axes = axis if isinstance(axis, list | tuple) else [axis]
    return [one % rank for one in axes] == [rank - 1]


def merges(op: Any) -> bool:
    """Whether a layer or operation joins tensors value by value, or along an axis."""
    kind = type(op)
    return kind in MERGES or (kind.__module__.startswith("keras.") and kind.__name__ in MERGING_OPS)


def _is_softmax_over_space(op: Any) -> bool:
    # Softmax as an activation is over the channels; a function of the user's may do anything.
    activation = getattr(op, "activation", None)
    return activation is not None and not _is_pointwise_function(activation)


def _is_pointwise_function(function: Any) -> bool:
    module = getattr(function, "__module__", "") or type(function).__module__
    return module.startswith("keras.")


def pointwise(group: SampleGroup, op: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Run a layer on the part as it is."""
    return Part(tensor=op(part.tensor, **kwargs), bounds=part.bounds)


def _out_bounds(bounds: Bounds, extent: int, row_of: Callable[[int], int]) -> Bounds:
    """Return bounds of an output: those that follow from the input's, if each part gets rows."""
    out = (*(min(row_of(begin), extent) for begin in bounds[:-1]), extent)
    if all(begin < end for begin, end in itertools.pairwise(out)):
        return out
    if extent < len(bounds) - 1:
        raise CannotCutError
    return even_bounds(extent, len(bounds) - 1)


def _ceil_by(stride: int) -> Callable[[int], int]:
    return lambda row: -(-row // stride)


def _times(stride: int) -> Callable[[int], int]:
    return lambda row: row * stride


def _minus(before: int) -> Callable[[int], int]:
    return lambda row: max(row - before, 0)


@contextlib.contextmanager
def _without_padding(layer: Any) -> Iterator[None]:
    # Replicas of a process are traced one after the other, so that this is never seen by two.
    padding = layer.padding
    layer.padding = "valid"
    try:
        yield
    finally:
        layer.padding = padding


@dataclass(frozen=True, kw_only=True)
class Windows:
    """What a layer with windows reads for a device's part of its output.

    Args:
        rows: For each axis that is cut the rows of the input that each part wants.
        bounds: Of the output.
        padding: Rows before and after the input, on each spatial axis.
    """

    rows: dict[int, list[tuple[int, int]]]
    bounds: tuple[Bounds | None, ...]
    padding: list[tuple[int, int]]

    def padded(self, tensor: Any, fill: Any = 0) -> Any:
        """Return the rows with the padding around them."""
        if not any(map(any, self.padding)):
            return tensor
        fill = tf.constant(fill, tensor.dtype)
        return tf.pad(tensor, [(0, 0), *self.padding, (0, 0)], constant_values=fill)


def _windows(group: SampleGroup, layer: Any, part: Part, sizes: Sequence[int]) -> Windows:
    out_extents = layer.compute_output_shape(part.whole_shape)[1:-1]
    wanted: dict[int, list[tuple[int, int]]] = {}
    bounds: list[Bounds | None] = []
    widths: list[tuple[int, int]] = []
    for axis, (extent, made) in enumerate(zip(part.extents, out_extents, strict=True)):
        reach = window_reach(layer, axis, sizes, extent)
        cut_at = part.bounds[axis]
        if cut_at is None:
            rows = (0, made)
            bounds.append(None)
        else:
            out = _out_bounds(cut_at, made, _ceil_by(reach.stride))
            wanted[axis] = [
                reach.inside(begin, end, extent) for begin, end in itertools.pairwise(out)
            ]
            place = group.place[axis]
            rows = (out[place], out[place + 1])
            bounds.append(out)
        # A whole axis may have rows at its end that no window reaches: they need no padding.
        widths.append(reach.padding(*rows, extent))
    return Windows(rows=wanted, bounds=tuple(bounds), padding=widths)


def convolved(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Convolve the rows that the part of the output needs."""
    windows = _windows(group, layer, part, layer.kernel_size)
    if type(layer) not in WITH_CONVOLUTION_OP:
        tensor = windows.padded(part.with_rows(group, windows.rows))
        with _without_padding(layer):
            return Part(tensor=layer(tensor, **kwargs), bounds=windows.bounds)
    # Cast as the layer would, so that what is sent is what it reads.
    own = tensor = ops.cast(part.tensor, layer.compute_dtype)
    borders: list[Borders] = []
    for axis, rows in windows.rows.items():
        borders.append(group.borders(tensor, axis, part.bounds[axis] or (), rows))
        own = own if len(borders) > 1 else borders[0].tensor
        tensor = borders[-1].joined(borders[-1].tensor, borders[-1].others)

    def convolution(inputs: Any, kernel: Any) -> Any:
        return _joined_and_convolved(layer, windows, borders, inputs, kernel)

    # No exchange from here on: a replica of this process that waits would see the other's.
    object.__setattr__(layer, "convolution_op", convolution)
    try:
        return Part(tensor=layer(own, **kwargs), bounds=windows.bounds)
    finally:
        object.__delattr__(layer, "convolution_op")


def _joined_and_convolved(
    layer: Any, windows: Windows, borders: Sequence[Borders], own: Any, kernel: Any
) -> Any:
    """Convolve a device's part and the rows of others around it.

    What is joined and padded is as large as the part itself. It is joined again for the gradient,
    so that from the forward pass only the part and its borders stay in memory.
    """
    others = [value for border in borders for value in border.others]
    # Tensors with the borders of the axes before: nobody reads them here, but their devices wait
    # for their gradients.
    between = [border.tensor for border in borders[1:] if border.is_asked]

    def convolve(own: Any, kernel: Any, others: Sequence[Any]) -> Any:
        left = iter(others)
        for border in borders:
            own = border.joined(own, [next(left) for _ in border.others])
        return ops.conv(
            windows.padded(own),
            kernel,
            strides=list(layer.strides),
            padding="valid",
            dilation_rate=layer.dilation_rate,
            data_format="channels_last",
        )

    @tf.custom_gradient
    def run(own: Any, kernel: Any, *more: Any) -> tuple[Any, Callable[..., Any]]:
        others = more[len(between) :]

        def gradient(given: Any) -> list[Any]:
            # After `given`: TensorFlow would take the tensor of the forward pass for an equal one.
            with tf.control_dependencies([given]), tf.GradientTape() as tape:
                inputs = [own, kernel, *others]
                tape.watch(inputs)
                output = convolve(own, kernel, others)
            of_own, of_kernel, *of_others = tape.gradient(output, inputs, given)
            zeros = [tf.zeros(value.shape, value.dtype) for value in more[: len(between)]]
            return [of_own, of_kernel, *zeros, *of_others]

        return convolve(own, kernel, others), gradient

    return run(own, tf.convert_to_tensor(ops.convert_to_tensor(kernel)), *between, *others)


def max_pooled(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pool the rows that the part of the output needs."""
    windows = _windows(group, layer, part, layer.pool_size)
    tensor = windows.padded(part.with_rows(group, windows.rows), part.tensor.dtype.min)
    with _without_padding(layer):
        return Part(tensor=layer(tensor, **kwargs), bounds=windows.bounds)


def average_pooled(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pool the rows that the part of the output needs; padding does not count in a mean."""
    windows = _windows(group, layer, part, layer.pool_size)
    tensor = windows.padded(part.with_rows(group, windows.rows))
    with _without_padding(layer):
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
        reaches: Of each axis; transposed.
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
            out = _out_bounds(cut_at, made, _times(reach.stride))
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
        with _without_padding(layer):
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


def _pairs(amount: Any, rank: int) -> list[tuple[int, int]]:
    """Return (before, after) of each spatial axis, of a padding or cropping layer."""
    if rank == 1 and not isinstance(amount[0], tuple | list):
        return [(int(amount[0]), int(amount[1]))]
    return [(int(before), int(after)) for before, after in amount]


def _at_borders(
    group: SampleGroup, part: Part, pairs: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], tuple[Bounds | None, ...]]:
    """Return what this device pads of a padding at the borders, and the bounds of the output."""
    bounds: list[Bounds | None] = []
    widths = []
    for axis, ((before, after), cut_at) in enumerate(zip(pairs, part.bounds, strict=True)):
        if cut_at is None:
            bounds.append(None)
            widths.append((before, after))
            continue
        place, last = group.place[axis], len(cut_at) - 2
        widths.append((before if place == 0 else 0, after if place == last else 0))
        inner = [begin + before for begin in cut_at[1:-1]]
        bounds.append((0, *inner, cut_at[-1] + before + after))
    return widths, tuple(bounds)


def zero_padded(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pad at the borders of the sample; parts keep the rows that they have."""
    widths, bounds = _at_borders(group, part, _pairs(layer.padding, len(part.bounds)))
    return Part(tensor=tf.pad(part.tensor, [(0, 0), *widths, (0, 0)]), bounds=bounds)


def padded(group: SampleGroup, op: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pad with keras.ops.pad at the borders of the sample, from the rows of the outer parts."""
    widths = [tuple(pair) for pair in op.pad_width]
    if len(widths) != part.tensor.shape.rank or any(map(any, (widths[0], widths[-1]))):
        raise CannotCutError
    if op.mode != "constant":
        for axis in part.cut_axes:
            cut_at = part.bounds[axis] or ()
            first, last = cut_at[1] - cut_at[0], cut_at[-1] - cut_at[-2]
            # A reflection leaves out the outermost row.
            if widths[1 + axis][0] >= first or widths[1 + axis][1] >= last:
                raise CannotCutError
    own, bounds = _at_borders(group, part, widths[1:-1])
    tensor = ops.pad(part.tensor, [(0, 0), *own, (0, 0)], mode=op.mode, **kwargs)
    return Part(tensor=tensor, bounds=bounds)


def cropped(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Crop at the borders of the sample; parts keep what is left of their rows."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    bounds: list[Bounds | None] = []
    pairs = _pairs(layer.cropping, len(part.bounds))
    tensor = part.tensor
    for axis, ((before, after), cut_at) in enumerate(zip(pairs, part.bounds, strict=True)):
        extent = part.extents[axis]
        if cut_at is None:
            bounds.append(None)
            tensor = cut_rows(tensor, axis, before, extent - after)
            continue
        out = _out_bounds(cut_at, extent - before - after, _minus(before))
        wanted[axis] = [(begin + before, end + before) for begin, end in itertools.pairwise(out)]
        bounds.append(out)
    whole_axes = Part(tensor=tensor, bounds=part.bounds)
    return Part(tensor=whole_axes.with_rows(group, wanted), bounds=tuple(bounds))


def global_average(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Any:
    """Return the mean over the voxels of the whole sample."""
    axes = list(range(1, part.tensor.shape.rank - 1))
    mean = ops.mean(part.tensor, axis=axes, keepdims=layer.keepdims)
    share = part.voxel_shares[group.device % group.mesh.parts]
    return group.sum(mean * tf.constant(share, mean.dtype))


def global_maximum(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Any:
    """Return the maximum over the voxels of the whole sample."""
    return tf.reduce_max(group.gathered(layer(part.tensor, **kwargs)), axis=0)


def dropped(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Drop the values that one device would drop: the mask is drawn for the whole sample."""
    if not kwargs.get("training") or layer.rate == 0:
        return part
    shape = list(part.whole_shape)
    if isinstance(layer, SPATIAL_DROPOUTS):
        shape[1:-1] = [1] * (len(shape) - 2)  # One number for each channel.
    mask = layer(tf.ones(shape, layer.compute_dtype), training=True)
    if not isinstance(layer, SPATIAL_DROPOUTS):
        mask = cut(group, mask, part.bounds).tensor
    return Part(tensor=ops.cast(part.tensor, layer.compute_dtype) * mask, bounds=part.bounds)


def noised(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Add the noise that one device would add: it is drawn for the whole sample."""
    if not kwargs.get("training") or layer.stddev == 0:
        return part
    noise = layer(tf.zeros(part.whole_shape, layer.compute_dtype), training=True)
    own = ops.cast(part.tensor, layer.compute_dtype)
    return Part(tensor=own + cut(group, noise, part.bounds).tensor, bounds=part.bounds)


def moments(
    group: SampleGroup,
    tensor: Any,
    axes: Sequence[int],
    shares: Sequence[float],
    members: Sequence[int],
) -> tuple[Any, Any]:
    """Return mean and variance over the tensors of all members, keeping the axes.

    Each member's own are put together (Chan et al. 1983, equation 2.1): the sum of squares alone
    would lose digits.

    Args:
        group: The devices.
        tensor: This device's values.
        axes: To take the moments over.
        shares: The share of all values that each member has.
        members: The devices, in order.
    """
    mean, variance = tf.nn.moments(tensor, axes, keepdims=True)
    of_all = group.gathered(tf.stack([mean, variance]), members)
    weights = tf.reshape(tf.constant(shares, of_all.dtype), [-1] + [1] * mean.shape.rank)
    means, variances = of_all[:, 0], of_all[:, 1]
    mean = tf.reduce_sum(weights * means, axis=0)
    return mean, tf.reduce_sum(weights * (variances + tf.square(means - mean)), axis=0)


def batch_normalized(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Normalize by the statistics of the whole samples of the group's batch.

    A synchronized layer takes those of all groups. Other groups' samples do not count without it,
    as without `split`.
    """
    if not (kwargs.get("training") and layer.trainable):
        return pointwise(group, layer, part, kwargs)
    shares, members = part.voxel_shares, group.mesh.members(group.device)
    if layer.synchronized:
        groups = group.mesh.groups
        members = list(range(group.mesh.num_devices))
        shares = tuple(share / groups for share in shares) * groups
    values = ops.cast(part.tensor, layer.compute_dtype)
    values = ops.cast(values, keras.backend.result_type(values.dtype, "float32"))
    axes = list(range(values.shape.rank - 1))
    statistics = [tf.squeeze(one, axes) for one in moments(group, values, axes, shares, members)]
    # The layer does the rest, with these instead of its own.
    object.__setattr__(layer, "_moments", lambda inputs, mask: statistics)
    try:
        return pointwise(group, layer, part, kwargs)
    finally:
        object.__delattr__(layer, "_moments")


def group_normalized(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Normalize groups of channels by their statistics over the whole sample."""
    shape = part.tensor.shape.as_list()
    rank = len(shape)
    wide = keras.backend.result_type(layer.compute_dtype, "float32")
    groups = layer.groups
    form = [groups, shape[-1] // groups]
    values = ops.cast(ops.cast(part.tensor, layer.compute_dtype), wide)
    values = tf.reshape(values, [*shape[:-1], *form])
    axes = [*range(1, rank - 1), rank]
    members = group.mesh.members(group.device)
    mean, variance = moments(group, values, axes, part.voxel_shares, members)
    scale = tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        scale = scale * ops.cast(ops.reshape(layer.gamma, form), wide)
    offset = -mean * scale
    if layer.center:
        offset = offset + ops.cast(ops.reshape(layer.beta, form), wide)
    normalized = tf.reshape(values * scale + offset, shape)
    return Part(tensor=ops.cast(normalized, layer.compute_dtype), bounds=part.bounds)
