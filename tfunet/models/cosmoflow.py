"""CosmoFlow: a volume in, a few numbers out (Mathuriya et al. 2018, arXiv:1808.04728)."""

from collections.abc import Mapping
from typing import Any

import keras

from tfunet.models import blocks
from tfunet.models.cosmoflow_plan import ConvolutionStage, CosmoflowPlan
from tfunet.models.options import Shape
from tfunet.models.plans import plan_model
from tfunet.models.style import Style


def build(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """The network of MLPerf HPC: from volumes (batch, *spatial, channels) to (batch, num_classes).

    `num_classes` is how many numbers are predicted; the options are those of `CosmoflowOptions`.
    Kernels start as Glorot's, as in all published versions.
    """
    return _built("cosmoflow", image_shape, num_classes, options)


def mathuriya2018(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """The first CosmoFlow, with valid convolutions; for volumes of 128 cubed or a little more.

    7,038,128 weights (28.15 MB, as published) beside the biases for 1 channel and 3 numbers.
    """
    return _built("cosmoflow2018", image_shape, num_classes, options)


def oyama2020(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """CosmoFlow for volumes of 128, 256 and 512 cubed (Oyama et al. 2020, arXiv:2007.12856).

    Larger volumes have one or two poolings more, so that all have 9.44 million parameters for 4
    channels and 4 numbers, as published. Padding is same on both sides, where LBANN begins one
    voxel earlier.
    """
    return _built("cosmoflow2020", image_shape, num_classes, options)


def _built(
    name: str, image_shape: Shape, num_classes: int, options: Mapping[str, Any]
) -> keras.Model:
    return assemble(plan_model(name, options, image_shape=image_shape, num_classes=num_classes))


def assemble(planned: CosmoflowPlan) -> keras.Model:
    """Make the layers of the network."""
    given, style = planned.options, planned.style
    inputs = tensor = keras.Input(tuple(planned.image_shape), name="image")
    pooling, pool_size = given.pooling, given.pool_size
    for place, stage in enumerate(planned.stages):
        tensor = _stage(tensor, stage, style, f"convolution{place}", pooling, pool_size)
    tensor = keras.layers.Flatten(name="flat")(tensor)
    rate = given.flat_dropout
    for place, units in enumerate(given.dense):
        tensor = _drop(tensor, rate, f"dense{place}_dropout")
        tensor = keras.layers.Dense(units, name=f"dense{place}")(tensor)
        tensor = blocks.activate(tensor, style, f"dense{place}_activation")
        rate = given.dropout
    tensor = _drop(tensor, rate, "numbers_dropout")
    count = planned.num_classes
    numbers = keras.layers.Dense(count, dtype=keras.config.floatx(), name="numbers")(tensor)
    if given.scaled_tanh:
        numbers = keras.layers.Activation("tanh", dtype=keras.config.floatx(), name="tanh")(numbers)
        numbers = keras.layers.Rescaling(1.2, dtype=keras.config.floatx(), name="scale")(numbers)
    return keras.Model(inputs, numbers, name="cosmoflow")


def _stage(
    tensor: Any, stage: ConvolutionStage, style: Style, name: str, pooling: str, pool_size: int
) -> Any:
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
