"""How the blocks of a network are made, and which values of its options are allowed.

Imports no Keras: a wrong value is refused before it is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tfunet.models import options

NORMALIZATIONS = ("none", "batch", "synchronized_batch", "group", "instance")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu")
UPSAMPLINGS = ("transposed", "nearest", "linear")
DEFAULT_GROUPS = 8
DEFAULT_NEGATIVE_SLOPE = 0.01


@dataclass(frozen=True, kw_only=True)
class Style:
    """How every block of a network convolves, drops, normalizes and activates.

    `bias=None`: a bias only if no normalization follows, which would subtract it with the mean.
    `groups` belongs to normalization "group", `negative_slope` to activation "leaky_relu".
    """

    dimensions: int
    normalization: str
    activation: str
    bias: bool | None
    dropout: float
    affine: bool
    groups: int | None
    negative_slope: float | None

    def __post_init__(self) -> None:
        options.check_choice("normalization", self.normalization, NORMALIZATIONS)
        options.check_choice("activation", self.activation, ACTIVATIONS)
        options.check_rate("dropout", self.dropout)
        options.check_flag("affine", self.affine)
        if self.bias is not None:
            options.check_flag("bias", self.bias)
        if self.groups is not None:
            options.check_at_least("groups", self.groups, 1)
            _check_belongs("groups", "normalization", self.normalization, "group")
        if self.negative_slope is not None:
            options.check_slope("negative_slope", self.negative_slope)
            _check_belongs("negative_slope", "activation", self.activation, "leaky_relu")

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
