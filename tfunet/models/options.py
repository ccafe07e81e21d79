"""Reads the options of our models, and checks them; errors say what came and what is allowed.

Imports no Keras.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfunet.config.refs import check_option
from tfunet.config.typed_values import convert, kinds_of
from tfunet.config.words import near_match

Shape = tuple[int | None, ...]


def typed_options(model: str, cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a model in the types of `cls`, the dataclass that declares them.

    Raises ValueError for an option that the model does not have, and for a value of another type.
    """
    kinds = kinds_of(cls)
    for option in options:
        check_option("model", model, option, kinds)
    return {
        option: convert(f"model_options.{option}", kinds[option], value)
        for option, value in options.items()
    }


def check_choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Refuse a value outside `allowed`, naming the nearest allowed one."""
    if value in allowed:
        return
    hint = near_match(value, allowed)
    raise ValueError(f"Unknown {name} {value!r}.{hint} Allowed: {', '.join(allowed)}.")


def check_at_least(name: str, value: int | None, least: int) -> None:
    """Refuse a number below `least`; None is no number."""
    if value is not None and value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_rate(name: str, value: float) -> None:
    """Refuse a dropout rate outside [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, got {value!r}.")


def check_slope(name: str, value: float) -> None:
    """Refuse a slope that is negative or infinite."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}.")


def check_shape(image_shape: Sequence[int | None], num_classes: int) -> None:
    """Refuse a shape that is not (*spatial, channels) with two or three spatial dimensions."""
    if len(image_shape) not in (3, 4):
        raise ValueError(
            f"image_shape must be (*spatial, channels) with 2 or 3 spatial dimensions, "
            f"got {tuple(image_shape)!r}. A grey image of 256 by 256 is (256, 256, 1)."
        )
    *spatial, channels = image_shape
    check_at_least("the number of channels (the last entry of image_shape)", channels or 0, 1)
    for size in spatial:
        check_at_least("a spatial size in image_shape", size, 1)
    check_at_least("num_classes", num_classes, 1)


def check_dimensions(name: str, image_shape: Sequence[int | None], dimensions: int) -> None:
    """Refuse an image whose number of spatial dimensions is not the published network's."""
    if len(image_shape) != dimensions + 1:
        raise ValueError(
            f"{name} is a {dimensions}D network, got image_shape {tuple(image_shape)!r} with "
            f"{len(image_shape) - 1} spatial dimensions. For other images use 'unet' or 'isensee'."
        )


def check_divisible(spatial: Sequence[int | None], halvings: int, *, option: str) -> None:
    """Refuse sizes that cannot be halved `halvings` times; `option` names the option behind it.

    A size of None (known only when the model runs) passes.
    """
    factor = 2**halvings
    wrong = [(i, n) for i, n in enumerate(spatial) if n is not None and n % factor]
    if not wrong:
        return
    refused = ", ".join(
        f"{size} in dimension {index} (nearest allowed: {_nearest_multiples(size, factor)})"
        for index, size in wrong
    )
    sizes = [size for size in spatial if size is not None]
    most = min((size & -size).bit_length() - 1 for size in sizes)
    raise ValueError(
        f"Each spatial size must be a multiple of {factor} ({halvings} halvings, {option}), "
        f"got {refused}. Crop or pad the images, or use fewer: {most} is the most for these sizes."
    )


def _nearest_multiples(size: int, factor: int) -> str:
    below = size // factor * factor
    return f"{below} or {below + factor}" if below else str(factor)


def check_instance_statistics(
    normalization: str, spatial: Sequence[int | None], halvings: int
) -> None:
    """Refuse instance normalization if the coarsest level is a single voxel.

    The mean of one voxel is the voxel: the level's output would be constant and learn nothing.
    """
    if normalization != "instance" or None in spatial:
        return
    if all(size == 2**halvings for size in spatial):
        raise ValueError(
            f"Instance normalization over a single voxel is constant: size {tuple(spatial)!r} "
            f"after {halvings} halvings is one voxel. Use larger images, fewer levels, or "
            f"normalization 'group' or 'batch'."
        )


def check_table(name: str, table: Sequence[Sequence[int]], num_rows: int, row: str) -> None:
    """Refuse a table of filters without `num_rows` rows (`row` says what a row is)."""
    if len(table) != num_rows:
        raise ValueError(f"{name} must have {num_rows} rows, {row}; got {len(table)}: {table!r}.")
    for filters in table:
        if not filters:
            raise ValueError(f"{name}: each row needs at least one convolution, got {table!r}.")
        check_at_least(f"each entry of {name}", min(filters), 1)
