"""How the blocks of a network are made, and which values of its options are allowed.

Imports no Keras: a wrong value is refused before it is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from tfunet.models import options

NORMALIZATIONS = ("none", "batch", "synchronized_batch", "group", "instance")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu")
UPSAMPLINGS = ("transposed", "nearest", "linear")
DEFAULT_GROUPS = 8
DEFAULT_NEGATIVE_SLOPE = 0.01


@dataclass(frozen=True, kw_only=True)
class StyleOptions:
    """How the blocks of a network convolve, drop, normalize and activate.

    Args:
        normalization: none, batch, synchronized_batch, group or instance.
        groups: Groups of normalization "group"; by default 8.
        affine: Normalizations learn a scale and an offset.
        activation: relu, leaky_relu, elu, gelu or silu.
        negative_slope: Slope of "leaky_relu"; by default 0.01.
        dropout: Rate of whole feature maps that are dropped after each convolution.
        bias: Whether convolutions have a bias; by default only if no normalization follows, which
            would subtract it with the mean.
    """

    normalization: str = "instance"
    groups: int | None = None
    affine: bool = True
    activation: str = "leaky_relu"
    negative_slope: float | None = None
    dropout: float = 0.0
    bias: bool | None = None

    def __post_init__(self) -> None:
        options.check_choice("normalization", self.normalization, NORMALIZATIONS)
        options.check_choice("activation", self.activation, ACTIVATIONS)
        options.check_rate("dropout", self.dropout)
        if self.groups is not None:
            options.check_at_least("groups", self.groups, 1)
            _check_belongs("groups", "normalization", self.normalization, "group")
        if self.negative_slope is not None:
            options.check_slope("negative_slope", self.negative_slope)
            _check_belongs("negative_slope", "activation", self.activation, "leaky_relu")


@dataclass(frozen=True, kw_only=True)
class Style(StyleOptions):
    """The style of a network with so many spatial dimensions."""

    dimensions: int

    @classmethod
    def of(cls, given: StyleOptions, dimensions: int) -> Self:
        """Return the style that the options of a network ask for."""
        own = {field.name: getattr(given, field.name) for field in fields(StyleOptions)}
        return cls(dimensions=dimensions, **own)

    @property
    def convolution_bias(self) -> bool:
        """Whether a convolution has a bias."""
        return self.normalization == "none" if self.bias is None else self.bias


def _check_belongs(name: str, option: str, value: str, needed: str) -> None:
    if value != needed:
        raise ValueError(
            f"{name} is for {option} {needed!r} only, and {option} is {value!r}: leave it out."
        )


def check_groups(style: Style, filters: Sequence[int]) -> None:
    """Refuse a number of groups that does not divide every number of filters."""
    groups = style.groups or DEFAULT_GROUPS
    wrong = sorted({count for count in filters if count % groups})
    if style.normalization == "group" and wrong:
        raise ValueError(
            f"groups={groups} must divide every number of filters, and does not divide "
            f"{', '.join(map(str, wrong))}. Choose other groups or other filters."
        )
