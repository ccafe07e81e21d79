"""What the options of CosmoFlow come to, and which of them are refused. Imports no Keras."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfunet.models import options
from tfunet.models.options import Shape
from tfunet.models.style import Style, check_groups

POOLINGS = ("max", "average")
SIZES_2018, STRIDES_2018 = (3, 4, 4, 3, 3, 2, 2), (1, 1, 1, 2, 1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class PublishedOptions:
    """The options of the models "cosmoflow2018" and "cosmoflow2020".

    Args:
        filters: Filters of the first convolution.
        dense: Units of the hidden dense layers.
        dropout: Rate before each dense layer that follows another.
        flat_dropout: Rate before the first dense layer.
        pooling: max or average.
        pool_size: Width of a pooling, which halves its input; 2 in 2018, 3 in 2020.
        negative_slope: Slope of the activations, leaky_relu.
        normalization: none, batch, synchronized_batch, group or instance.
        scaled_tanh: An output is 1.2 * tanh, for targets from -1 to 1; false: any number.
    """

    filters: int = 16
    dense: tuple[int, ...] = (2048, 256)
    dropout: float = 0.2
    flat_dropout: float = 0.2
    pooling: str = "average"
    pool_size: int = 2
    negative_slope: float = 0.01
    normalization: str = "none"
    scaled_tanh: bool = False

    def __post_init__(self) -> None:
        options.check_at_least("filters", self.filters, 1)
        options.check_choice("pooling", self.pooling, POOLINGS)
        options.check_at_least("pool_size", self.pool_size, 2)
        options.check_rate("flat_dropout", self.flat_dropout)
        options.check_at_least("each entry of dense", min(self.dense, default=None), 1)


@dataclass(frozen=True, kw_only=True)
class CosmoflowOptions(PublishedOptions):
    """The options of the model "cosmoflow", with the defaults of MLPerf HPC.

    Args:
        levels: Number of convolutions, each with a pooling; level i has `filters * 2**i` filters.
        max_filters: Upper limit of the filters of a level.
    """

    filters: int = 32
    levels: int = 5
    max_filters: int = 512
    dense: tuple[int, ...] = (128, 64)
    dropout: float = 0.5
    flat_dropout: float = 0.0
    pooling: str = "max"
    negative_slope: float = 0.3
    scaled_tanh: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        options.check_at_least("levels", self.levels, 1)
        options.check_at_least("max_filters", self.max_filters, 1)


@dataclass(frozen=True, kw_only=True)
class ConvolutionStage:
    """A convolution, and whether a pooling halves its output."""

    filters: int
    size: int = 3
    stride: int = 1
    padding: str = "same"
    is_pooled: bool = True


@dataclass(frozen=True, kw_only=True)
class CosmoflowPlan:
    """The network before its layers are made."""

    options: PublishedOptions
    image_shape: Shape
    num_classes: int
    stages: tuple[ConvolutionStage, ...]
    style: Style


def plan(given: CosmoflowOptions, image_shape: Shape, num_classes: int) -> CosmoflowPlan:
    """Return what the options of "cosmoflow" come to for volumes of this shape."""
    options.check_divisible(image_shape[:-1], given.levels, option=f"levels={given.levels}")
    counts = (min(given.filters * 2**level, given.max_filters) for level in range(given.levels))
    stages = tuple(ConvolutionStage(filters=count) for count in counts)
    return plan_stages(given, image_shape, num_classes, stages)


def plan_2018(given: PublishedOptions, image_shape: Shape, num_classes: int) -> CosmoflowPlan:
    """Return what the options of "cosmoflow2018" come to for volumes of this shape."""
    stages = tuple(
        ConvolutionStage(
            filters=given.filters * 2 ** min(place, 4),
            size=size,
            stride=stride,
            padding="valid",
            is_pooled=place < 3,
        )
        for place, (size, stride) in enumerate(zip(SIZES_2018, STRIDES_2018, strict=True))
    )
    return plan_stages(given, image_shape, num_classes, stages)


def plan_2020(given: PublishedOptions, image_shape: Shape, num_classes: int) -> CosmoflowPlan:
    """Return what the options of "cosmoflow2020" come to for volumes of this shape."""
    widths = [width for width in image_shape[:-1] if width is not None]
    further = max(0, round(math.log2(max(widths) / 128))) if widths else 0
    stages = tuple(
        ConvolutionStage(
            filters=given.filters * 2 ** min(place, 4),
            stride=2 if place == 3 else 1,
            is_pooled=place < 5 + further,
        )
        for place in range(7)
    )
    return plan_stages(given, image_shape, num_classes, stages)


def plan_stages(
    given: PublishedOptions,
    image_shape: Shape,
    num_classes: int,
    stages: tuple[ConvolutionStage, ...],
) -> CosmoflowPlan:
    """Return a network of these stages; raise ValueError for options that do not fit them."""
    if len(image_shape) != 4 or None in image_shape:
        raise ValueError(
            f"CosmoFlow is for volumes of one size (height, width, depth, channels), since a dense "
            f"layer reads all of it; got image_shape {tuple(image_shape)!r}."
        )
    style = Style(
        dimensions=3,
        normalization=given.normalization,
        dropout=given.dropout,
        negative_slope=given.negative_slope,
    )
    check_groups(style, [stage.filters for stage in stages])
    spatial = [size for size in image_shape[:-1] if size is not None]
    _check_size(stages, spatial, given.pool_size)
    return CosmoflowPlan(
        options=given,
        image_shape=image_shape,
        num_classes=num_classes,
        stages=stages,
        style=style,
    )


def _check_size(stages: Sequence[ConvolutionStage], spatial: Sequence[int], pool_size: int) -> None:
    """Refuse volumes that a stage with valid padding would leave nothing of."""
    for place, stage in enumerate(stages):
        is_valid = stage.padding == "valid"
        if is_valid and min(spatial) < stage.size:
            raise ValueError(
                f"The volume is too small: convolution{place} has kernels of {stage.size} cubed "
                f"and an input of {' x '.join(map(str, spatial))}. Use larger volumes, or the "
                "model 'cosmoflow'."
            )
        spatial = [-(-(size - is_valid * (stage.size - 1)) // stage.stride) for size in spatial]
        if stage.is_pooled:
            spatial = [-(-(size - is_valid * (pool_size - 1)) // 2) for size in spatial]
