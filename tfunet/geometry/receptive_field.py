"""The receptive field of a model, in input pixels, read from its graph."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfunet.geometry.kinds import kind_of
from tfunet.geometry.pointwise import (
    has_pointwise_activation,
    is_over_channels,
    is_pointwise_layer,
)
from tfunet.geometry.reach import Reach, kernel_reach, upsampling_reach
from tfunet.inside.of_keras import calls_of, graph_of

# The rows [begin, end) of a tensor that each output position needs, along one dimension.
Rows = tuple[np.ndarray, np.ndarray]

# Normalizations count as pointwise: their means over the image are not part of the field.
POINTWISE = (
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)
MERGES = (
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Concatenate,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
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
    """Return how many pixels an output position depends on, in each spatial dimension.

    It is the largest number over all output positions, for up-sampling gives neighbours different
    fields. Borders do not count. The model has one input and one output, and known spatial sizes.
    Raises UnknownReachError.
    """
    spans = [_needed(model, dimension) for dimension in _dimensions(model)]
    return tuple(int((end - begin).max()) for begin, end in spans)


def reach(model: keras.Model) -> tuple[int, ...]:
    """Return how far an output position looks to either side, in pixels of each dimension.

    It is the largest distance over both sides and all output positions. Borders do not count. The
    output of the model has the size of its input. Raises UnknownReachError.
    """
    distances = []
    for dimension in _dimensions(model):
        begin, end = _needed(model, dimension)
        position = np.arange(len(begin))
        distances.append(int(max((position - begin).max(), (end - 1 - position).max(), 0)))
    return tuple(distances)


def alignment(model: keras.Model) -> tuple[int, ...]:
    """Return the pixels by which a window may move and still be pooled alike, in each dimension.

    It is the least common multiple of the factors by which the model's tensors are smaller than
    its input. The model has known spatial sizes.
    """
    tensors = [tensor for layer in model.operations for tensor in keras.tree.flatten(layer.output)]
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
    """Return the names of the layers that normalize by statistics of all pixels of their input."""
    return [
        layer.name
        for layer in model.operations
        if isinstance(layer, keras.layers.GroupNormalization)
        or (
            isinstance(layer, keras.layers.LayerNormalization)
            and not is_over_channels(layer.axis, len(layer.input.shape))
        )
    ]


def _dimensions(model: keras.Model) -> range:
    return range(len(model.input.shape) - 2)


def _needed(model: keras.Model, dimension: int) -> Rows:
    """Return the input positions [begin, end) that each output position depends on."""
    if len(model.output.shape) != len(model.input.shape):
        raise UnknownReachError(f"model {model.name!r}, whose output is no image")
    positions = np.arange(model.output.shape[1 + dimension])
    needed: dict[int, Rows] = {id(model.output): (positions, positions + 1)}
    calls = Counter(id(call.operation) for call in calls_of(graph_of(model)))
    if max(calls.values()) > 1:
        raise UnknownReachError(f"model {model.name!r}, which uses a layer more than once")
    for layer in reversed(model.operations):
        if isinstance(layer, keras.Model):
            raise UnknownReachError(f"{layer.name!r}, a network inside the model")
        outputs = [id(tensor) for tensor in keras.tree.flatten(layer.output)]
        known = [needed[tensor] for tensor in outputs if tensor in needed]
        if isinstance(layer, keras.layers.InputLayer) or not known:
            continue
        rows = layer_reach(layer, dimension).needed(*_hull(known))
        for tensor in map(id, keras.tree.flatten(layer.input)):
            needed[tensor] = _hull([needed[tensor], rows]) if tensor in needed else rows
    return needed[id(model.input)]


def _hull(rows: list[Rows]) -> Rows:
    begins, ends = zip(*rows, strict=True)
    return np.minimum.reduce(begins), np.maximum.reduce(ends)


def layer_reach(layer: Any, dimension: int) -> Reach:
    """Return the reach of a Keras layer or operation along a spatial dimension.

    Raises UnknownReachError.
    """
    kind = kind_of(layer)
    unknown = UnknownReachError(f"layer {layer.name!r} of type {type(layer).__name__}")
    if not has_pointwise_activation(layer):
        raise UnknownReachError(f"{unknown}, whose activation does not treat each pixel alone")
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise UnknownReachError(f"{unknown}, whose channels come first")
    if kind in POINTWISE or is_pointwise_layer(layer):
        return Reach()
    if kind is keras.layers.BatchNormalization:
        if is_over_channels(layer.axis, len(layer.input.shape)):
            return Reach()
        raise UnknownReachError(f"{unknown}, which has numbers for each row")
    if kind in MERGES:
        if _is_by_pixel(layer):
            return Reach()
        raise UnknownReachError(f"{unknown}, which joins other pixels than those at one place")
    if kind in TRANSPOSED:
        return window_reach(
            layer,
            dimension,
            layer.kernel_size,
            layer.output.shape[1 + dimension],
            transposed=True,
        )
    if kind in CONVOLUTIONS:
        return window_reach(layer, dimension, layer.kernel_size, layer.input.shape[1 + dimension])
    if kind in POOLINGS:
        return window_reach(layer, dimension, layer.pool_size, layer.input.shape[1 + dimension])
    if kind in UPSAMPLINGS:
        # In 3D there is nothing but repetition, and no attribute to say so.
        interpolation, factor = getattr(layer, "interpolation", "nearest"), layer.size[dimension]
        if interpolation in ("nearest", "bilinear") or factor == 1:
            return upsampling_reach(factor, linear=interpolation == "bilinear")
        raise UnknownReachError(f"layer {layer.name!r} with interpolation {interpolation!r}")
    if kind.__name__ == "Pad" and kind.__module__.startswith("keras."):
        return Reach(before=layer.pad_width[1 + dimension][0])
    raise unknown


def _is_by_pixel(layer: Any) -> bool:
    """Whether a layer joins tensors of one spatial shape, pixel by pixel."""
    shapes = [tensor.shape for tensor in keras.tree.flatten((layer.input, layer.output))]
    rank = len(shapes[-1])
    axis = getattr(layer, "axis", -1)
    return len({shape[1:-1] for shape in shapes}) == 1 and is_over_channels(axis, rank)


def window_reach(
    layer: Any, dimension: int, sizes: Sequence[int], extent: int, *, transposed: bool = False
) -> Reach:
    """Return the reach of a layer with windows of `sizes` along a spatial dimension.

    Args:
        layer: A convolution or a pooling.
        dimension: The spatial dimension, from 0.
        sizes: Sizes of its kernel or window.
        extent: Rows of its input, or of its output if it is transposed.
        transposed: Whether it is a transposed convolution.
    """
    # Poolings have no dilation.
    dilations = getattr(layer, "dilation_rate", (1,) * len(sizes))
    return kernel_reach(
        sizes[dimension],
        stride=layer.strides[dimension],
        dilation=dilations[dimension],
        same_extent=extent if layer.padding == "same" else None,
        transposed=transposed,
    )
