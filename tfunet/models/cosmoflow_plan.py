"""What the options of CosmoFlow come to, and which of them are refused. Imports no Keras."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfunet.models import options
from tfunet.models.style import Style, check_groups

POOLINGS = ("max", "average")
SIZES_2018, STRIDES_2018 = (3, 4, 4, 3, 3, 2, 2), (1, 1, 1, 2, 1, 1, 1)
PUBLISHED = {
    "dropout": 0.2,
    "flat_dropout": 0.2,
    "pooling": "average",
    "negative_slope": 0.01,
    "scaled_tanh": False,
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A convolution, and whether a pooling halves its output."""

    filters: int
    size: int = 3
    stride: int = 1
    padding: str = "same"
    is_pooled: bool = True


def plan(
    name: str, image_shape: options.Shape, given: Mapping[str, Any]
) -> tuple[list[Stage], dict[str, Any]]:
    """Return the stages of a network of this family, and the other arguments of `assemble`.

    `given` are all options that its builder names, and further ones of the user's.
    """
    settings = dict(given)
    filters = settings.pop("filters")
    options.check_at_least("filters", filters, 1)
    if name == "cosmoflow":
        levels, most = settings.pop("levels"), settings.pop("max_filters")
        options.check_at_least("levels", levels, 1)
        options.check_at_least("max_filters", most, 1)
        options.check_divisible(image_shape[:-1], levels, option=f"levels={levels}")
        return [Stage(filters=min(filters * 2**level, most)) for level in range(levels)], settings
    if name == "cosmoflow2018":
        stages = [
            Stage(
                filters=filters * 2 ** min(place, 4),
                size=size,
                stride=stride,
                padding="valid",
                is_pooled=place < 3,
            )
            for place, (size, stride) in enumerate(zip(SIZES_2018, STRIDES_2018, strict=True))
        ]
        return stages, {**PUBLISHED, "pool_size": 2, **settings}
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
    return stages, {**PUBLISHED, "pool_size": 3, **settings}


def check(
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
) -> Style:
    """Return how the blocks of a network are made; raise ValueError for a wrong option."""
    options.check_shape(image_shape, num_classes)
    if len(image_shape) != 4 or None in image_shape:
        raise ValueError(
            f"CosmoFlow is for volumes of one size (height, width, depth, channels), since a dense "
            f"layer reads all of it; got image_shape {tuple(image_shape)!r}."
        )
    options.check_choice("pooling", pooling, POOLINGS)
    options.check_at_least("pool_size", pool_size, 2)
    options.check_rate("flat_dropout", flat_dropout)
    options.check_flag("scaled_tanh", scaled_tanh)
    if isinstance(dense, str) or not isinstance(dense, Sequence):
        raise ValueError(f"dense must be a list of numbers, one a hidden layer, got {dense!r}.")
    for units in dense:
        options.check_at_least("each entry of dense", units, 1)
    style = Style(
        dimensions=3,
        normalization=normalization,
        activation="leaky_relu",
        bias=None,
        dropout=dropout,
        affine=True,
        groups=None,
        negative_slope=negative_slope,
    )
    check_groups(style, [stage.filters for stage in stages])
    _check_size(stages, [size for size in image_shape[:-1] if size is not None], pool_size)
    return style


def _check_size(stages: Sequence[Stage], spatial: Sequence[int], pool_size: int) -> None:
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
