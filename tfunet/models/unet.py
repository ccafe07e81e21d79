"""U-Nets in two and three dimensions, after Ronneberger et al. 2015 and Cicek et al. 2016."""

from collections.abc import Sequence
from typing import Any

import keras

from tfunet.models import blocks, encoders
from tfunet.models.deep_supervision import DeeplySupervised
from tfunet.models.options import Shape
from tfunet.models.plans import plan_model
from tfunet.models.style import Style
from tfunet.models.unet_plan import UnetPlan, Widths


def build(*, image_shape: Shape, num_classes: int, **options: Any) -> keras.Model:
    """A U-Net from images (batch, *spatial, channels) to float32 logits (batch, *spatial, classes).

    The options are those of `UnetOptions`. Raises ValueError if one is unknown, of another type or
    does not fit, or if a size is not divisible by 2**levels.
    """
    return assemble(plan_model("unet", options, image_shape=image_shape, num_classes=num_classes))


def assemble(planned: UnetPlan) -> keras.Model:
    """Make the layers of a U-Net."""
    given, widths, style = planned.options, planned.widths, planned.style
    inputs = keras.Input(tuple(planned.image_shape), name="image")
    if given.encoder is None:
        tensor, skips = _descend(inputs, widths, style, given.downsampling, given.residual)
    else:
        tensor, skips = encoders.descend(
            inputs,
            given.encoder,
            levels=given.num_levels,
            weights=given.encoder_weights,
            intensity=given.encoder_intensity,
            is_synchronized=given.encoder_synchronized,
            more=given.encoder_options,
        )
    if given.bottom_dropout:
        tensor = keras.layers.Dropout(given.bottom_dropout, name="bottom_dropout")(tensor)
    tensors = _ascend(tensor, skips, planned)
    logits = [
        blocks.segment(tensor, planned.num_classes, style.dimensions, name, bias=given.output_bias)
        for name, tensor in tensors.items()
    ]
    if not given.deep_supervision:
        return keras.Model(inputs, logits[0], name="unet")
    return DeeplySupervised(inputs, logits, name="unet")


def _ascend(tensor: Any, skips: list[Any], planned: UnetPlan) -> dict[str, Any]:
    """The outputs of the levels of which there are logits, the full resolution first."""
    given, widths, style = planned.options, planned.widths, planned.style
    lower: dict[str, Any] = {}
    for level in reversed(range(given.num_levels)):
        name = f"up{level}_upsampling"
        if given.upsampling == "transposed":
            count = widths.upsampling[level]
            tensor = blocks.up_convolve(tensor, count, style, name, bias=given.upsampling_bias)
        else:
            tensor = blocks.upsample(tensor, given.upsampling, style.dimensions, name)
        if skips[level] is not None:
            joined = keras.layers.Concatenate(name=f"up{level}_concatenation")
            tensor = joined([skips[level], tensor])
        tensor = _level(tensor, widths.decoder[level], style, f"up{level}", given.residual)
        if given.deep_supervision and 0 < level < given.num_levels - 1:
            lower = {f"logits{level}": tensor, **lower}
    # Its logits before all others: they get the weights that they have without deep supervision.
    return {"logits": tensor, **lower}


def _descend(
    tensor: Any, widths: Widths, style: Style, downsampling: str, residual: bool
) -> tuple[Any, list[Any]]:
    """The bottom's output, and the output of each level above it."""
    skips: list[Any] = []
    for level, row in enumerate(widths.encoder):
        name = f"down{level}" if level < len(widths.encoder) - 1 else "bottom"
        if level:
            tensor = _downsample(tensor, downsampling, style.dimensions, f"down{level - 1}_pooling")
        stride = 2 if level and downsampling == "strided" else 1
        tensor = _level(tensor, row, style, name, residual, stride=stride)
        skips.append(tensor)
    return tensor, skips[:-1]


def _downsample(tensor: Any, kind: str, dimensions: int, name: str) -> Any:
    """Halve each spatial size, unless the next level's first convolution does."""
    if kind == "strided":
        return tensor
    layers = {
        ("max", 2): keras.layers.MaxPooling2D,
        ("max", 3): keras.layers.MaxPooling3D,
        ("average", 2): keras.layers.AveragePooling2D,
        ("average", 3): keras.layers.AveragePooling3D,
    }
    return layers[kind, dimensions](2, name=name)(tensor)


def _level(
    tensor: Any,
    filters: Sequence[int],
    style: Style,
    name: str,
    residual: bool,
    *,
    stride: int = 1,
) -> Any:
    """The convolutions of one level; the first has the stride."""
    shortcut = tensor
    strides = [stride] + [1] * (len(filters) - 1)
    for index, count in enumerate(filters[:-1]):
        tensor = blocks.block(tensor, count, style, f"{name}_{index}", stride=strides[index])
    last = f"{name}_{len(filters) - 1}"
    if not residual:
        return blocks.block(tensor, filters[-1], style, last, stride=strides[-1])
    tensor = blocks.unactivated_block(tensor, filters[-1], style, last, stride=strides[-1])
    shortcut = _project(shortcut, filters[-1], style, f"{name}_shortcut", stride)
    tensor = keras.layers.Add(name=f"{name}_sum")([tensor, shortcut])
    return blocks.activate(tensor, style, f"{last}_activation")


def _project(tensor: Any, filters: int, style: Style, name: str, stride: int) -> Any:
    """A shortcut with the shape of what it is added to (He et al. 2016, option B)."""
    if tensor.shape[-1] == filters and stride == 1:
        return tensor
    tensor = blocks.convolve(tensor, filters, style, f"{name}_convolution", size=1, stride=stride)
    return blocks.normalize(tensor, style, f"{name}_normalization")
