"""The network of Isensee et al. 2017 (BraTS 2017), in three dimensions and in two."""

from dataclasses import replace
from typing import Any

import keras

from tfunet.models import blocks
from tfunet.models.isensee_plan import IsenseePlan
from tfunet.models.options import Shape
from tfunet.models.plans import plan_model
from tfunet.models.style import Style


def build(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """Context modules down, localization modules up, segmentation layers of several levels summed.

    Images (batch, *spatial, channels) to float32 logits (batch, *spatial, classes). The options are
    those of `IsenseeOptions`. After Isensee et al., "Brain Tumor Segmentation and Radiomics
    Survival Prediction: Contribution to the BRATS 2017 Challenge", arXiv:1802.10508.
    `pre_activation=False` and `narrow_localization=True` give the arrangement of 3DUnetCNN: blocks
    normalize and activate after each convolution, and localization modules halve the channels in
    their first convolution, at the full resolution too.
    Raises ValueError if an option is unknown, of another type or does not fit, or if a size is not
    divisible by 2**(depth - 1).
    """
    planned = plan_model("isensee", options, image_shape=image_shape, num_classes=num_classes)
    return assemble(planned)


def assemble(planned: IsenseePlan) -> keras.Model:
    """Make the layers of the network."""
    given, style, counts = planned.options, planned.style, planned.filters
    inputs = tensor = keras.Input(tuple(planned.image_shape), name="image")
    context = _pre_activated_context if given.pre_activation else _post_activated_context
    skips = []
    for level, count in enumerate(counts):
        tensor = context(tensor, count, style, f"down{level}", stride=2 if level else 1)
        skips.append(tensor)
    undropped = replace(style, dropout=0.0)  # Outside the context modules.
    logits = None
    for level in reversed(range(given.depth - 1)):
        name, count = f"up{level}", counts[level]
        tensor = blocks.upsample(tensor, "nearest", style.dimensions, f"{name}_upsampling")
        tensor = blocks.block(tensor, count, undropped, f"{name}_upsampled")
        tensor = keras.layers.Concatenate(name=f"{name}_concatenation")([skips[level], tensor])
        wide_end = level == 0 and not given.narrow_localization
        first = count if given.narrow_localization else 2 * count
        tensor = blocks.block(tensor, first, undropped, f"{name}_localization0")
        if not wide_end:
            tensor = blocks.block(tensor, count, undropped, f"{name}_localization1", size=1)
        if level < given.segmentation_levels:
            logits = _add_segmentation(logits, tensor, planned.num_classes, style.dimensions, level)
    return keras.Model(inputs, logits, name="isensee")


def _pre_activated_context(
    tensor: Any, filters: int, style: Style, name: str, *, stride: int
) -> Any:
    """Convolution, and a pre-activated residual block on it with dropout between its two."""
    tensor = blocks.convolve(tensor, filters, style, f"{name}_convolution", stride=stride)
    shortcut = tensor
    for index in (0, 1):
        tensor = blocks.normalize(tensor, style, f"{name}_context{index}_normalization")
        tensor = blocks.activate(tensor, style, f"{name}_context{index}_activation")
        tensor = blocks.convolve(tensor, filters, style, f"{name}_context{index}_convolution")
        if index == 0:
            tensor = blocks.drop(tensor, style, f"{name}_context_dropout")
    tensor = keras.layers.Add(name=f"{name}_sum")([shortcut, tensor])
    tensor = blocks.normalize(tensor, style, f"{name}_normalization")
    return blocks.activate(tensor, style, f"{name}_activation")


def _post_activated_context(
    tensor: Any, filters: int, style: Style, name: str, *, stride: int
) -> Any:
    """The same with normalization and activation after each convolution, as in 3DUnetCNN."""
    undropped = replace(style, dropout=0.0)
    tensor = blocks.block(tensor, filters, undropped, f"{name}_entry", stride=stride)
    shortcut = tensor
    tensor = blocks.block(tensor, filters, undropped, f"{name}_context0")
    tensor = blocks.drop(tensor, style, f"{name}_context_dropout")
    tensor = blocks.block(tensor, filters, undropped, f"{name}_context1")
    return keras.layers.Add(name=f"{name}_sum")([shortcut, tensor])


def _add_segmentation(
    coarser: Any | None, tensor: Any, num_classes: int, dimensions: int, level: int
) -> Any:
    """This level's segmentation plus the up-sampled one of the coarser levels, in float32."""
    logits = blocks.segment(tensor, num_classes, dimensions, f"segmentation{level}")
    if coarser is None:
        return logits
    name = f"segmentation{level}_upsampling"
    coarser = blocks.upsample(coarser, "nearest", dimensions, name, dtype=keras.config.floatx())
    add = keras.layers.Add(dtype=keras.config.floatx(), name=f"segmentation{level}_sum")
    return add([logits, coarser])
