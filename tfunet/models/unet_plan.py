"""What the options of a U-Net come to, and which of them are refused. Imports no Keras."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfunet.models import encoder_rules, options
from tfunet.models.style import UPSAMPLINGS, Style, check_groups

DOWNSAMPLINGS = ("max", "average", "strided")
DEFAULT_LEVELS = 4
# Below it, only the lowest level of the way up is left, which nnU-Net leaves out.
LEAST_LEVELS = 3


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
    """A U-Net before its layers are made; `levels` is the number of its poolings."""

    levels: int
    widths: Widths
    style: Style


def plan(
    *,
    image_shape: options.Shape,
    num_classes: int,
    filters: int | None,
    levels: int | None,
    convolutions: int | None,
    max_filters: int | None,
    normalization: str,
    groups: int | None,
    affine: bool,
    activation: str,
    negative_slope: float | None,
    dropout: float,
    bottom_dropout: float,
    residual: bool,
    downsampling: str,
    upsampling: str,
    bias: bool | None,
    upsampling_bias: bool,
    output_bias: bool,
    encoder_filters: Sequence[Sequence[int]] | None,
    decoder_filters: Sequence[Sequence[int]] | None,
    upsampling_filters: Sequence[int] | None,
    deep_supervision: bool,
    encoder: str | None,
    encoder_weights: str | None,
    encoder_intensity: str,
    encoder_synchronized: bool,
    encoder_options: Mapping[str, Any] | None,
) -> UnetPlan:
    """Return what the arguments of `unet.build` come to.

    Raises ValueError if an option is unknown or a size is not divisible by 2**levels.
    """
    options.check_shape(image_shape, num_classes)
    if encoder is None:
        encoder_rules.refuse_without_encoder(
            encoder_weights=encoder_weights,
            encoder_options=encoder_options,
            encoder_intensity=encoder_intensity != "zscore",
            encoder_synchronized=encoder_synchronized is not True,
        )
        levels = DEFAULT_LEVELS if levels is None else levels
    else:
        levels = encoder_rules.MOST_LEVELS if levels is None else levels
    options.check_at_least("levels", levels, 1)
    options.check_choice("downsampling", downsampling, DOWNSAMPLINGS)
    options.check_choice("upsampling", upsampling, UPSAMPLINGS)
    options.check_rate("bottom_dropout", bottom_dropout)
    for name, flag in (
        ("residual", residual),
        ("upsampling_bias", upsampling_bias),
        ("output_bias", output_bias),
        ("deep_supervision", deep_supervision),
    ):
        options.check_flag(name, flag)
    if deep_supervision and levels < LEAST_LEVELS:
        raise ValueError(
            f"deep_supervision needs levels of at least {LEAST_LEVELS}, got {levels}: the lowest "
            "level of the way up has no loss, and beside the full resolution no other is left."
        )
    spatial = image_shape[:-1]
    options.check_divisible(spatial, levels, option=f"levels={levels}")
    # The bottom of an encoder has normalizations of its own.
    halvings = levels if encoder is None else levels - 1
    options.check_instance_statistics(normalization, spatial, halvings)
    if upsampling_filters is not None and upsampling != "transposed":
        raise ValueError(
            f"upsampling_filters is for upsampling 'transposed' only, and upsampling is "
            f"{upsampling!r}, which has no filters: leave it out."
        )
    widths = plan_widths(
        filters=filters,
        levels=levels,
        convolutions=convolutions,
        max_filters=max_filters,
        encoder_filters=encoder_filters,
        decoder_filters=decoder_filters,
        upsampling_filters=upsampling_filters,
    )
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
    check_groups(style, [count for row in widths.encoder + widths.decoder for count in row])
    if encoder is not None:
        encoder_rules.refuse_of_own_way_down(
            encoder, encoder_filters=encoder_filters, downsampling=downsampling != "max"
        )
        encoder_rules.check_encoder(
            encoder,
            image_shape,
            levels=levels,
            weights=encoder_weights,
            intensity=encoder_intensity,
            is_synchronized=encoder_synchronized,
            more=encoder_options,
        )
    return UnetPlan(levels=levels, widths=widths, style=style)


def plan_widths(
    *,
    filters: int | None,
    levels: int,
    convolutions: int | None,
    max_filters: int | None,
    encoder_filters: Sequence[Sequence[int]] | None,
    decoder_filters: Sequence[Sequence[int]] | None,
    upsampling_filters: Sequence[int] | None,
) -> Widths:
    """The filters of every convolution. A table replaces the numbers."""
    numbers = {"filters": filters, "convolutions": convolutions, "max_filters": max_filters}
    given = [name for name, value in numbers.items() if value is not None]
    for name in given:
        options.check_at_least(name, numbers[name], 1)
    if None not in (encoder_filters, decoder_filters) and given:
        raise ValueError(
            f"{', '.join(given)}: encoder_filters and decoder_filters already say the number of "
            f"filters of every convolution: give one or the other."
        )
    options.check_table(
        "encoder_filters", encoder_filters, levels + 1, "one a level and the bottom"
    )
    options.check_table("decoder_filters", decoder_filters, levels, "one a level")
    if upsampling_filters is not None:
        options.check_counts("upsampling_filters", upsampling_filters)
        rows = [[count] for count in upsampling_filters]
        options.check_table("upsampling_filters", rows, levels, "one a level")
    base = 32 if filters is None else filters
    limit = max_filters or base * 2**levels
    counts = [min(base * 2**level, limit) for level in range(levels + 1)]
    repeats = convolutions or 2
    encoder = encoder_filters or [[count] * repeats for count in counts]
    decoder = decoder_filters or [[count] * repeats for count in counts[:-1]]
    return Widths(
        encoder=tuple(map(tuple, encoder)),
        decoder=tuple(map(tuple, decoder)),
        upsampling=tuple(upsampling_filters or [row[0] for row in decoder]),
    )
