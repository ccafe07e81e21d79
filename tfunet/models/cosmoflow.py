"""CosmoFlow: a volume in, a few numbers out (Mathuriya et al. 2018, arXiv:1808.04728)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfunet.models import blocks, options

POOLINGS = ("max", "average")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A convolution, and whether a pooling halves its output."""

    filters: int
    size: int = 3
    stride: int = 1
    padding: str = "same"
    is_pooled: bool = True


def build(
    *,
    image_shape: options.Shape,
    num_classes: int,
    filters: int = 32,
    levels: int = 5,
    max_filters: int = 512,
    dense: Sequence[int] = (128, 64),
    dropout: float = 0.5,
    flat_dropout: float = 0.0,
    pooling: str = "max",
    pool_size: int = 2,
    negative_slope: float = 0.3,
    normalization: str = "none",
    scaled_tanh: bool = True,
) -> keras.Model:
    """The network of MLPerf HPC: from volumes (batch, *spatial, channels) to (batch, num_classes).

    `num_classes` is how many numbers are predicted. Level i of `levels` has a convolution of
    filters * 2**i filters, at most `max_filters`, and a pooling. Then come the layers of `dense`,
    and `dropout` before each layer that follows one of them; `flat_dropout` is before the first.
    With `scaled_tanh` an output is 1.2 * tanh, for targets from -1 to 1. Kernels start as Glorot's,
    as in all published versions.
    """
    options.check_at_least("filters", filters, 1)
    options.check_at_least("levels", levels, 1)
    options.check_at_least("max_filters", max_filters, 1)
    options.check_shape(image_shape, num_classes)
    options.check_divisible(image_shape[:-1], levels, option=f"levels={levels}")
    stages = [Stage(filters=min(filters * 2**level, max_filters)) for level in range(levels)]
    return assemble(
        stages,
        image_shape=image_shape,
        num_classes=num_classes,
        dense=dense,
        dropout=dropout,
        flat_dropout=flat_dropout,
        pooling=pooling,
        pool_size=pool_size,
        negative_slope=negative_slope,
        normalization=normalization,
        scaled_tanh=scaled_tanh,
    )


def mathuriya2018(
    *,
    image_shape: options.Shape,
    num_classes: int,
    filters: int = 16,
    dense: Sequence[int] = (2048, 256),
    **more: Any,
) -> keras.Model:
    """The first CosmoFlow, with valid convolutions; for volumes of 128 cubed or a little more.

    7,038,128 weights (28.15 MB, as published) beside the biases for 1 channel and 3 numbers.
    """
    options.check_at_least("filters", filters, 1)
    sizes, strides = (3, 4, 4, 3, 3, 2, 2), (1, 1, 1, 2, 1, 1, 1)
    stages = [
        Stage(
            filters=filters * 2 ** min(place, 4),
            size=size,
            stride=stride,
            padding="valid",
            is_pooled=place < 3,
        )
        for place, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    ]
    published = {"dropout": 0.2, "flat_dropout": 0.2, "pooling": "average", "pool_size": 2}
    return assemble(
        stages,
        image_shape=image_shape,
        num_classes=num_classes,
        dense=dense,
        **{**published, "negative_slope": 0.01, "scaled_tanh": False, **more},
    )


def oyama2020(
    *,
    image_shape: options.Shape,
    num_classes: int,
    filters: int = 16,
    dense: Sequence[int] = (2048, 256),
    **more: Any,
) -> keras.Model:
    """CosmoFlow for volumes of 128, 256 and 512 cubed (Oyama et al. 2020, arXiv:2007.12856).

    Larger volumes have one or two poolings more, so that all have 9.44 million parameters for 4
    channels and 4 numbers, as published. Padding is same on both sides, where LBANN begins one
    voxel earlier.
    """
    options.check_at_least("filters", filters, 1)
    widths = [width for width in image_shape[:-1] if width is not None]
    further = max(0, round(math.log2(max(widths) / 128))) if widths else 0
    stages = [
        Stage(
            filters=filters * 2 ** min(place, 4),
            stride=2 if place == 3 else 1,
            is_pooled=place < 5 + further,
        )
        for place in range(7)
    ]
    published = {"dropout": 0.2, "flat_dropout": 0.2, "pooling": "average", "pool_size": 3}
    return assemble(
        stages,
        image_shape=image_shape,
        num_classes=num_classes,
        dense=dense,
        **{**published, "negative_slope": 0.01, "scaled_tanh": False, **more},
    )


def assemble(
    stages: Sequence[Stage],
    *,
    image_shape: options.Shape,
    num_classes: int,
    dense: Sequence[int],
    dropout: float,
    flat_dropout: float,
    pooling: str,
    pool_size: int,
    negative_slope: float,
    scaled_tanh: bool,
    normalization: str = "none",
) -> keras.Model:
    """A network of these stages and dense layers; the other arguments are those of `build`."""
    options.check_shape(image_shape, num_classes)
    _check_volume(image_shape)
    options.check_choice("pooling", pooling, POOLINGS)
    options.check_at_least("pool_size", pool_size, 2)
    options.check_rate("flat_dropout", flat_dropout)
    options.check_flag("scaled_tanh", scaled_tanh)
    if isinstance(dense, str) or not isinstance(dense, Sequence):
        raise ValueError(f"dense must be a list of numbers, one a hidden layer, got {dense!r}.")
    for units in dense:
        options.check_at_least("each entry of dense", units, 1)
    style = blocks.Style(
        dimensions=3,
        normalization=normalization,
        activation="leaky_relu",
        bias=None,
        dropout=dropout,
        affine=True,
        groups=None,
        negative_slope=negative_slope,
    )
    blocks.check_groups(style, [stage.filters for stage in stages])
    inputs = tensor = keras.Input(tuple(image_shape), name="image")
    for place, stage in enumerate(stages):
        tensor = _stage(tensor, stage, style, f"convolution{place}", pooling, pool_size)
    tensor = keras.layers.Flatten(name="flat")(tensor)
    rate = flat_dropout
    for place, units in enumerate(dense):
        tensor = _drop(tensor, rate, f"dense{place}_dropout")
        tensor = keras.layers.Dense(units, name=f"dense{place}")(tensor)
        tensor = blocks.activate(tensor, style, f"dense{place}_activation")
        rate = dropout
    tensor = _drop(tensor, rate, "numbers_dropout")
    numbers = keras.layers.Dense(num_classes, dtype=keras.config.floatx(), name="numbers")(tensor)
    if scaled_tanh:
        numbers = keras.layers.Activation("tanh", dtype=keras.config.floatx(), name="tanh")(numbers)
        numbers = keras.layers.Rescaling(1.2, dtype=keras.config.floatx(), name="scale")(numbers)
    return keras.Model(inputs, numbers, name="cosmoflow")


def _check_volume(image_shape: options.Shape) -> None:
    if len(image_shape) != 4 or None in image_shape:
        raise ValueError(
            f"CosmoFlow is for volumes of one size (height, width, depth, channels), since a dense "
            f"layer reads all of it; got image_shape {tuple(image_shape)!r}."
        )


def _stage(
    tensor: Any, stage: Stage, style: blocks.Style, name: str, pooling: str, pool_size: int
) -> Any:
    spatial = tensor.shape[1:-1]
    if stage.padding == "valid" and min(spatial) < stage.size:
        raise ValueError(
            f"The volume is too small: {name} has kernels of {stage.size} cubed and an input of "
            f"{' x '.join(map(str, spatial))}. Use larger volumes, or the model 'cosmoflow'."
        )
    tensor = keras.layers.Conv3D(
        stage.filters,
        stage.size,
        strides=stage.stride,
        padding=stage.padding,
        use_bias=style.convolution_bias,
        name=name,
    )(tensor)
    tensor = blocks.normalize(tensor, style, f"{name}_normalization")
    tensor = blocks.activate(tensor, style, f"{name}_activation")
    if not stage.is_pooled:
        return tensor
    layer = {"max": keras.layers.MaxPooling3D, "average": keras.layers.AveragePooling3D}[pooling]
    return layer(pool_size, strides=2, padding=stage.padding, name=f"{name}_pooling")(tensor)


def _drop(tensor: Any, rate: float, name: str) -> Any:
    return keras.layers.Dropout(rate, name=name)(tensor) if rate else tensor
