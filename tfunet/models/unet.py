"""U-Nets in two and three dimensions, after Ronneberger et al. 2015 and Cicek et al. 2016."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfunet.models import blocks, encoders, options
from tfunet.models.deep_supervision import DeeplySupervised
from tfunet.models.style import Style
from tfunet.models.unet_plan import Widths, plan


def build(
    *,
    image_shape: options.Shape,
    num_classes: int,
    filters: int | None = None,
    levels: int | None = None,
    convolutions: int | None = None,
    max_filters: int | None = None,
    normalization: str = "instance",
    groups: int | None = None,
    affine: bool = True,
    activation: str = "leaky_relu",
    negative_slope: float | None = None,
    dropout: float = 0.0,
    bottom_dropout: float = 0.0,
    residual: bool = False,
    downsampling: str = "max",
    upsampling: str = "transposed",
    bias: bool | None = None,
    upsampling_bias: bool = True,
    output_bias: bool = True,
    encoder_filters: Sequence[Sequence[int]] | None = None,
    decoder_filters: Sequence[Sequence[int]] | None = None,
    upsampling_filters: Sequence[int] | None = None,
    deep_supervision: bool = False,
    encoder: str | None = None,
    encoder_weights: str | None = None,
    encoder_intensity: str = "zscore",
    encoder_synchronized: bool = True,
    encoder_options: Mapping[str, Any] | None = None,
) -> keras.Model:
    """A U-Net from images (batch, *spatial, channels) to float32 logits (batch, *spatial, classes).

    `levels` (4) poolings halve the image; level i has `convolutions` (2) of `filters` (32) * 2**i
    filters each, at most `max_filters`. The three tables replace these numbers (see `Widths`).
    A residual level adds its input (through a convolution of size 1 where shapes differ) before
    its last activation. Up-sampling "nearest" and "linear" have no weights and keep the channels.
    `dropout` drops feature maps after each convolution, `bottom_dropout` single values at the
    bottom. If `bias` is None, only convolutions without a normalization have one.
    `deep_supervision` trains by logits of lower resolutions, too. `encoder` names a network of
    keras.applications that takes the place of the way down; see `encoders.descend`.
    Raises ValueError if an option is unknown or a size is not divisible by 2**levels.
    """
    planned = plan(**locals())
    levels, widths, style = planned.levels, planned.widths, planned.style

    inputs = keras.Input(tuple(image_shape), name="image")
    if encoder is None:
        tensor, skips = _descend(inputs, widths, style, downsampling, residual)
    else:
        tensor, skips = encoders.descend(
            inputs,
            encoder,
            levels=levels,
            weights=encoder_weights,
            intensity=encoder_intensity,
            is_synchronized=encoder_synchronized,
            more=encoder_options or {},
        )
    if bottom_dropout:
        tensor = keras.layers.Dropout(bottom_dropout, name="bottom_dropout")(tensor)
    lower: list[Any] = []
    for level in reversed(range(levels)):
        name = f"up{level}_upsampling"
        if upsampling == "transposed":
            count = widths.upsampling[level]
            tensor = blocks.up_convolve(tensor, count, style, name, bias=upsampling_bias)
        else:
            tensor = blocks.upsample(tensor, upsampling, style.dimensions, name)
        if skips[level] is not None:
            joined = keras.layers.Concatenate(name=f"up{level}_concatenation")
            tensor = joined([skips[level], tensor])
        tensor = _level(tensor, widths.decoder[level], style, f"up{level}", residual)
        if 0 < level < levels - 1:
            lower.insert(0, tensor)
    logits = blocks.segment(tensor, num_classes, style.dimensions, "logits", bias=output_bias)
    if not deep_supervision:
        return keras.Model(inputs, logits, name="unet")
    # After all other layers: these get the weights that they have without deep supervision.
    lower_logits = [
        blocks.segment(tensor, num_classes, style.dimensions, f"logits{level}", bias=output_bias)
        for level, tensor in enumerate(lower, start=1)
    ]
    return DeeplySupervised(inputs, [logits, *lower_logits], name="unet")


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
