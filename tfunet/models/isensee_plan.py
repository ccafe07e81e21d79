"""What the options of Isensee's network come to, and which are refused. Imports no Keras."""

from dataclasses import dataclass

from tfunet.models import options
from tfunet.models.options import Shape
from tfunet.models.style import Style, StyleOptions, check_groups


@dataclass(frozen=True, kw_only=True)
class IsenseeOptions(StyleOptions):
    """The options of the model "isensee".

    Args:
        filters: Filters of level 0; level i has `filters * 2**i`.
        depth: Number of levels.
        segmentation_levels: Levels whose segmentations are summed (deep supervision); 1 turns this
            off.
        dropout: Rate of whole feature maps that are dropped in context modules.
        pre_activation: Normalization and activation come before each convolution, not after it.
        narrow_localization: Localization modules halve the channels in their first convolution.
    """

    filters: int = 16
    depth: int = 5
    segmentation_levels: int = 3
    dropout: float = 0.3
    pre_activation: bool = True
    narrow_localization: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        options.check_at_least("filters", self.filters, 1)
        options.check_at_least("depth", self.depth, 2)
        options.check_at_least("segmentation_levels", self.segmentation_levels, 1)
        if self.segmentation_levels > self.depth - 1:
            raise ValueError(
                f"segmentation_levels must be at most depth - 1 = {self.depth - 1}, the levels "
                f"that have a localization module, got {self.segmentation_levels}."
            )


@dataclass(frozen=True, kw_only=True)
class IsenseePlan:
    """The network before its layers are made; `filters` has a number for each level."""

    options: IsenseeOptions
    image_shape: Shape
    num_classes: int
    filters: tuple[int, ...]
    style: Style


def plan(given: IsenseeOptions, image_shape: Shape, num_classes: int) -> IsenseePlan:
    """Return what options come to for images of this shape, (*spatial, channels).

    Raises ValueError for a size that is not divisible by 2**(depth - 1), and for options that do
    not fit together.
    """
    spatial = image_shape[:-1]
    options.check_divisible(spatial, given.depth - 1, option=f"depth={given.depth}")
    options.check_instance_statistics(given.normalization, spatial, given.depth - 1)
    style = Style.of(given, len(spatial))
    counts = tuple(given.filters * 2**level for level in range(given.depth))
    check_groups(style, counts)
    return IsenseePlan(
        options=given,
        image_shape=image_shape,
        num_classes=num_classes,
        filters=counts,
        style=style,
    )
