"""What the options of Isensee's network come to, and which are refused. Imports no Keras."""

from dataclasses import dataclass

from tfunet.models import options
from tfunet.models.style import Style, check_groups


@dataclass(frozen=True, kw_only=True)
class IsenseePlan:
    """The network before its layers are made; `filters` has a number for each level."""

    filters: tuple[int, ...]
    style: Style


def plan(
    *,
    image_shape: options.Shape,
    num_classes: int,
    filters: int,
    depth: int,
    segmentation_levels: int,
    dropout: float,
    normalization: str,
    groups: int | None,
    affine: bool,
    activation: str,
    negative_slope: float | None,
    bias: bool | None,
    pre_activation: bool,
    narrow_localization: bool,
) -> IsenseePlan:
    """Return what the arguments of `isensee.build` come to.

    Raises ValueError where an option is unknown or a size is not divisible by 2**(depth - 1).
    """
    options.check_shape(image_shape, num_classes)
    options.check_at_least("filters", filters, 1)
    options.check_at_least("depth", depth, 2)
    options.check_at_least("segmentation_levels", segmentation_levels, 1)
    options.check_rate("dropout", dropout)
    options.check_flag("pre_activation", pre_activation)
    options.check_flag("narrow_localization", narrow_localization)
    if segmentation_levels > depth - 1:
        raise ValueError(
            f"segmentation_levels must be at most depth - 1 = {depth - 1}, the levels that have a "
            f"localization module, got {segmentation_levels}."
        )
    spatial = image_shape[:-1]
    options.check_divisible(spatial, depth - 1, option=f"depth={depth}")
    options.check_instance_statistics(normalization, spatial, depth - 1)
    style = Style(
        dimensions=len(spatial),
        normalization=normalization,
        activation=activation,
        bias=bias,
        dropout=dropout,
        affine=affine,
        groups=groups,
        negative_slope=negative_slope,
    )
    counts = [filters * 2**level for level in range(depth)]
    check_groups(style, counts)
    return IsenseePlan(filters=tuple(counts), style=style)
