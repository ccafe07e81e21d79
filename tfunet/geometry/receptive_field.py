"""The receptive field of a model, in input pixels, read from its graph."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

# First and last index that is needed of a tensor, in one dimension, for each output position.
Interval = tuple[np.ndarray, np.ndarray]

# Normalizations count as pointwise: their means over the image are not part of the field.
POINTWISE = (
    keras.layers.Activation,
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.BatchNormalization,
    keras.layers.Concatenate,
    keras.layers.Dropout,
    keras.layers.ELU,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.GroupNormalization,
    keras.layers.Identity,
    keras.layers.LayerNormalization,
    keras.layers.LeakyReLU,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.PReLU,
    keras.layers.ReLU,
    keras.layers.Rescaling,
    keras.layers.Softmax,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    keras.layers.Subtract,
)
CONVOLUTIONS = (
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
)
TRANSPOSED = (keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
POOLINGS = (
    keras.layers.AveragePooling2D,
    keras.layers.AveragePooling3D,
    keras.layers.MaxPooling2D,
    keras.layers.MaxPooling3D,
)
UPSAMPLINGS = (keras.layers.UpSampling2D, keras.layers.UpSampling3D)


class UnknownReachError(ValueError):
    """A layer whose reach in space is not known here."""


def receptive_field(model: keras.Model) -> tuple[int, ...]:
    """Pixels that one output position depends on, in each spatial dimension, borders apart.

    The largest over all output positions: up-sampling gives neighbours different fields. The
    model has one input and one output, and known spatial sizes. Raises UnknownReachError.
    """
    spans = [_needed(model, dimension) for dimension in _dimensions(model)]
    return tuple(int((last - first + 1).max()) for first, last in spans)


def reach(model: keras.Model) -> tuple[int, ...]:
    """Pixels to either side that an output position depends on, in each spatial dimension.

    The largest over both sides and all output positions, borders apart, for a model whose output
    has the size of its input. Raises UnknownReachError.
    """
    spans = [_needed(model, dimension) for dimension in _dimensions(model)]
    positions = [np.arange(len(first)) for first, _ in spans]
    return tuple(
        int(max((at - first).max(), (last - at).max(), 0))
        for at, (first, last) in zip(positions, spans, strict=True)
    )


def alignment(model: keras.Model) -> tuple[int, ...]:
    """Pixels by which a window may be moved so that it is pooled as before, in each dimension.

    The least common multiple of the factors by which the model's tensors are smaller than its
    input; the model has known spatial sizes.
    """
    tensors = [one for operation in model.operations for one in _outputs(operation)]
    return tuple(
        math.lcm(
            *(
                -(-model.input.shape[1 + dimension] // tensor.shape[1 + dimension])
                for tensor in tensors
                if len(tensor.shape) == len(model.input.shape)
            )
        )
        for dimension in _dimensions(model)
    )


def statistics_layers(model: keras.Model) -> list[str]:
    """Names of the layers that normalize by statistics of the whole image that they are given."""
    return [
        layer.name
        for layer in model.operations
        if isinstance(layer, keras.layers.GroupNormalization)
        or (isinstance(layer, keras.layers.LayerNormalization) and _is_spatial(layer))
    ]


def _is_spatial(layer: keras.layers.LayerNormalization) -> bool:
    rank = len(layer.input.shape)
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    return any(axis % rank != rank - 1 for axis in axes)


def _dimensions(model: keras.Model) -> range:
    return range(len(model.input.shape) - 2)


def _outputs(operation: Any) -> list[Any]:
    return keras.tree.flatten(operation.output)


def _needed(model: keras.Model, dimension: int) -> Interval:
    """The first and last input position that each output position depends on."""
    size = model.output.shape[1 + dimension]
    positions = np.arange(size)
    needed: dict[int, Interval] = {id(model.output): (positions, positions)}
    for operation in reversed(model.operations):
        outputs = keras.tree.flatten(operation.output)
        intervals = [needed[id(one)] for one in outputs if id(one) in needed]
        if isinstance(operation, keras.layers.InputLayer) or not intervals:
            continue
        interval = _reach(operation, dimension)(_hull(intervals))
        for tensor in keras.tree.flatten(operation.input):
            known = [needed[id(tensor)]] if id(tensor) in needed else []
            needed[id(tensor)] = _hull([*known, interval])
    return needed[id(model.input)]


def _hull(intervals: list[Interval]) -> Interval:
    firsts, lasts = zip(*intervals, strict=True)
    return np.minimum.reduce(firsts), np.maximum.reduce(lasts)


def _reach(operation: Any, dimension: int) -> Callable[[Interval], Interval]:
    """What an operation needs of its input, for an interval of its output."""
    if isinstance(operation, POINTWISE):
        return lambda interval: interval
    if isinstance(operation, TRANSPOSED):
        return _transposed(operation, dimension)
    if isinstance(operation, CONVOLUTIONS):
        size = (operation.kernel_size[dimension] - 1) * operation.dilation_rate[dimension] + 1
        return _window(operation, dimension, size)
    if isinstance(operation, POOLINGS):
        return _window(operation, dimension, operation.pool_size[dimension])
    if isinstance(operation, UPSAMPLINGS):
        return _upsampling(operation, dimension)
    if type(operation).__name__ == "Pad":
        before, _ = operation.pad_width[1 + dimension]
        return lambda interval: (interval[0] - before, interval[1] - before)
    raise UnknownReachError(f"layer {operation.name!r} of type {type(operation).__name__}")


def _window(operation: Any, dimension: int, size: int) -> Callable[[Interval], Interval]:
    """A window of `size` input positions that moves by the stride."""
    stride = operation.strides[dimension]
    before = 0
    if operation.padding == "same":
        length = operation.input.shape[1 + dimension]
        steps = -(-length // stride)
        before = max((steps - 1) * stride + size - length, 0) // 2
    return lambda interval: (
        interval[0] * stride - before,
        interval[1] * stride - before + size - 1,
    )


def _transposed(operation: Any, dimension: int) -> Callable[[Interval], Interval]:
    """Input i writes the outputs i * stride - before and the size - 1 after it."""
    stride = operation.strides[dimension]
    size = (operation.kernel_size[dimension] - 1) * operation.dilation_rate[dimension] + 1
    before = max(size - stride, 0) // 2 if operation.padding == "same" else 0
    return lambda interval: (
        -((size - 1 - before - interval[0]) // stride),
        (interval[1] + before) // stride,
    )


def _upsampling(operation: Any, dimension: int) -> Callable[[Interval], Interval]:
    factor = operation.size[dimension]
    # In 3D there is nothing but repetition, and no attribute to say so.
    interpolation = getattr(operation, "interpolation", "nearest")
    if interpolation == "nearest" or factor == 1:
        return lambda interval: (interval[0] // factor, interval[1] // factor)
    if interpolation == "bilinear":
        # Half-pixel centres: output o lies at (o + 1/2) / factor - 1/2, between two inputs.
        return lambda interval: (
            (2 * interval[0] + 1 - factor) // (2 * factor),
            -((factor - 1 - 2 * interval[1]) // (2 * factor)),
        )
    raise UnknownReachError(f"layer {operation.name!r} with interpolation {interpolation!r}")
