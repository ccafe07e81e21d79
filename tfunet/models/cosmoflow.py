"""CosmoFlow: a volume in, a few numbers out (Mathuriya et al. 2018, arXiv:1808.04728)."""

from collections.abc import Sequence
from typing import Any

import keras

from tfunet.models import blocks, options
from tfunet.models.cosmoflow_plan import Stage, check, plan
from tfunet.models.style import Style


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
    given = dict(locals())
    shape = {name: given.pop(name) for name in ("image_shape", "num_classes")}
    stages, settings = plan("cosmoflow", image_shape, given)
    return assemble(stages, **shape, **settings)


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
    given = {"filters": filters, "dense": dense, **more}
    stages, settings = plan("cosmoflow2018", image_shape, given)
    return assemble(stages, image_shape=image_shape, num_classes=num_classes, **settings)


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
    given = {"filters": filters, "dense": dense, **more}
    stages, settings = plan("cosmoflow2020", image_shape, given)
    return assemble(stages, image_shape=image_shape, num_classes=num_classes, **settings)


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
    style = check(
        stages,
        image_shape=image_shape,
        num_classes=num_classes,
        dense=dense,
        dropout=dropout,
        flat_dropout=flat_dropout,
        pooling=pooling,
        pool_size=pool_size,
        negative_slope=negative_slope,
        scaled_tanh=scaled_tanh,
        normalization=normalization,
    )
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


def _stage(tensor: Any, stage: Stage, style: Style, name: str, pooling: str, pool_size: int) -> Any:
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
