"""What the options of a U-Net come to, and which of them are refused. Imports no Keras."""

from dataclasses import dataclass, field
from typing import Any

from tfunet.models import encoder_rules, options
from tfunet.models.options import Shape
from tfunet.models.style import UPSAMPLINGS, Style, StyleOptions, check_groups

DOWNSAMPLINGS = ("max", "average", "strided")
DEFAULT_LEVELS = 4
# Below it, only the lowest level of the way up is left, which nnU-Net leaves out.
LEAST_LEVELS = 3
Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class UnetOptions(StyleOptions):
    """The options of the model "unet".

    Args:
        filters: Filters of level 0; level i has `filters * 2**i`. By default 32.
        levels: Number of poolings; by default 4, with an encoder 5.
        convolutions: Convolutions of a level; by default 2.
        max_filters: Upper limit of the filters of a level.
        bottom_dropout: Rate of single values that are dropped at the bottom.
        residual: Each level adds its input, through a convolution of size 1 where shapes differ,
            before its last activation.
        downsampling: max, average, or strided: by the next level's first convolution.
        upsampling: transposed, or nearest or linear, which have no weights and keep the channels.
        upsampling_bias: Whether transposed convolutions have a bias.
        output_bias: Whether the last convolution has a bias.
        encoder_filters: The filters of every convolution on the way down, level by level from the
            full resolution, and of the bottom, instead of those that the options above give.
        decoder_filters: In the same way, on the way up.
        upsampling_filters: In the same way, of the transposed convolutions.
        deep_supervision: Train by losses at lower resolutions, too (nnU-Net).
        encoder: A network of keras.applications that takes the place of the way down.
        encoder_weights: File of the encoder's weights.
        encoder_intensity: The values of the images: zscore, unit (0 to 1) or bytes (0 to 255).
        encoder_synchronized: Batch normalizations of the encoder use the statistics of all
            replicas.
        encoder_options: Arguments of the function that builds the encoder, as { alpha = 0.35 }.
    """

    filters: int | None = None
    levels: int | None = None
    convolutions: int | None = None
    max_filters: int | None = None
    bottom_dropout: float = 0.0
    residual: bool = False
    downsampling: str = "max"
    upsampling: str = "transposed"
    upsampling_bias: bool = True
    output_bias: bool = True
    encoder_filters: Rows | None = None
    decoder_filters: Rows | None = None
    upsampling_filters: tuple[int, ...] | None = None
    deep_supervision: bool = False
    encoder: str | None = None
    encoder_weights: str | None = None
    encoder_intensity: str = "zscore"
    encoder_synchronized: bool = True
    encoder_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("filters", "convolutions", "max_filters", "levels"):
            options.check_at_least(name, getattr(self, name), 1)
        options.check_choice("downsampling", self.downsampling, DOWNSAMPLINGS)
        options.check_choice("upsampling", self.upsampling, UPSAMPLINGS)
        options.check_rate("bottom_dropout", self.bottom_dropout)
        if self.encoder is None:
            self._refuse(
                ("encoder_weights", "encoder_options", "encoder_intensity", "encoder_synchronized"),
                "has an effect only with an encoder. Give encoder, such as 'EfficientNetB0', or "
                "leave it out.",
            )
        else:
            self._refuse(
                ("encoder_filters", "downsampling"),
                f"is of the way down, whose place the encoder {self.encoder!r} takes. Leave out "
                "one of them.",
            )
        if self.deep_supervision and self.num_levels < LEAST_LEVELS:
            raise ValueError(
                f"deep_supervision needs levels of at least {LEAST_LEVELS}, got "
                f"{self.num_levels}: the lowest level of the way up has no loss, and beside the "
                "full resolution no other is left."
            )
        if self.upsampling_filters is not None and self.upsampling != "transposed":
            raise ValueError(
                f"upsampling_filters is for upsampling 'transposed' only, and upsampling is "
                f"{self.upsampling!r}, which has no filters: leave it out."
            )

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        """Raise ValueError for the first of these options that has not its default."""
        usual = {"encoder_intensity": "zscore", "encoder_synchronized": True, "downsampling": "max"}
        for name in names:
            if (getattr(self, name) or None) != usual.get(name):
                raise ValueError(f"{name} {why}")

    @property
    def num_levels(self) -> int:
        """Number of poolings."""
        usual = DEFAULT_LEVELS if self.encoder is None else encoder_rules.MOST_LEVELS
        return usual if self.levels is None else self.levels


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Filters of every convolution; row i belongs to level i, level 0 has the full resolution.

    `encoder` has one row more than there are poolings: its last row is the bottom.
    `upsampling[i]` is the transposed convolution that leads up to level i.
    """

    encoder: tuple[tuple[int, ...], ...]
    decoder: tuple[tuple[int, ...], ...]
    upsampling: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class UnetPlan:
    """A U-Net before its layers are made."""

    options: UnetOptions
    image_shape: Shape
    num_classes: int
    widths: Widths
    style: Style


def plan(given: UnetOptions, image_shape: Shape, num_classes: int) -> UnetPlan:
    """Return what options come to for images of this shape, (*spatial, channels).

    Raises ValueError for a size that is not divisible by 2**levels, and for options that do not fit
    together.
    """
    levels = given.num_levels
    spatial = image_shape[:-1]
    options.check_divisible(spatial, levels, option=f"levels={levels}")
    # The bottom of an encoder has normalizations of its own.
    halvings = levels if given.encoder is None else levels - 1
    options.check_instance_statistics(given.normalization, spatial, halvings)
    widths = plan_widths(given)
    style = Style.of(given, len(spatial))
    check_groups(style, [count for row in widths.encoder + widths.decoder for count in row])
    if given.encoder is not None:
        encoder_rules.check_encoder(
            given.encoder,
            image_shape,
            levels=levels,
            has_weights=given.encoder_weights is not None,
            intensity=given.encoder_intensity,
        )
    return UnetPlan(
        options=given,
        image_shape=image_shape,
        num_classes=num_classes,
        widths=widths,
        style=style,
    )


def plan_widths(given: UnetOptions) -> Widths:
    """The filters of every convolution. A table replaces the numbers."""
    levels = given.num_levels
    down, up, between = given.encoder_filters, given.decoder_filters, given.upsampling_filters
    numbers = ("filters", "convolutions", "max_filters")
    superfluous = [name for name in numbers if getattr(given, name) is not None]
    if None not in (down, up) and superfluous:
        raise ValueError(
            f"{', '.join(superfluous)}: encoder_filters and decoder_filters already say the number "
            f"of filters of every convolution: give one or the other."
        )
    if down is not None:
        options.check_table("encoder_filters", down, levels + 1, "one a level and the bottom")
    if up is not None:
        options.check_table("decoder_filters", up, levels, "one a level")
    if between is not None:
        table = [(count,) for count in between]
        options.check_table("upsampling_filters", table, levels, "one a level")
    base = given.filters or 32
    limit = given.max_filters or base * 2**levels
    repeats = given.convolutions or 2
    rows = [(min(base * 2**level, limit),) * repeats for level in range(levels + 1)]
    decoder = up or tuple(rows[:-1])
    return Widths(
        encoder=down or tuple(rows),
        decoder=decoder,
        upsampling=between or tuple(row[0] for row in decoder),
    )
