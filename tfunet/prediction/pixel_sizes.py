"""Warns of images whose pixels are of other sizes than those of the training. No TensorFlow."""

from collections.abc import Iterable, Sequence

from tfunet.data.formats.units import METRES, converted, sizes_in_words
from tfunet.data.source import DataSource
from tfunet.process.terminal import counted

# A share by which a size may lie outside of those of the training.
ALLOWED = 0.1

# The name of an image, its pixel size along the axes if known, and the unit of that.
Sized = tuple[str, Sequence[float] | None, str]


def trained_sizes(source: DataSource, train: Sequence[int]) -> list[list[float]] | None:
    """Return the least and the largest pixel size of training cases along each axis.

    None where the size of one is not known.
    """
    sizes = [source.spacings[case] for case in train] if source.spacings else []
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return None
    along = list(zip(*known, strict=True))
    return [[*map(min, along)], [*map(max, along)]]


def other_sizes(trained: Sequence[Sequence[float]], unit: str, images: Iterable[Sized]) -> str:
    """Return a warning of images whose pixels are smaller or larger than in training; or "".

    Args:
        trained: As `trained_sizes` returns it; empty where it is not known.
        unit: Unit of `trained`.
    """
    if len(trained) != 2:
        return ""
    least, largest = trained
    others = []
    for name, stored, its_unit in images:
        is_comparable = its_unit == unit or {its_unit, unit} <= METRES.keys()
        if stored is None or len(stored) != len(least) or not is_comparable:
            continue
        size = tuple(converted(length, its_unit, unit) for length in stored)
        if any(
            not low * (1 - ALLOWED) <= length <= high * (1 + ALLOWED)
            for length, low, high in zip(size, least, largest, strict=True)
        ):
            others.append((name, size))
    if not others:
        return ""
    name, size = others[0]
    seen = sizes_in_words(least)
    if least != largest:
        seen = f"{seen} to {sizes_in_words(largest)}"
    in_unit = f" {unit}" if unit else ""
    return (
        f"{counted(len(others), 'image')} ({name}{', ...' if len(others) > 1 else ''}) with pixels "
        f"of {sizes_in_words(size)}{in_unit}; those of the training have {seen}{in_unit}. The "
        "network sees objects larger or smaller than those it knows. Train with target_pixel_size, "
        "which resamples all images."
    )
