"""Predictions in the values, or colours, of the masks of the training. Imports no TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from tfunet.data.image_files import read_mask
from tfunet.prediction.options import MASKS
from tfunet.prediction.raster import Raster

DTYPES = ("uint8", "uint16", "int16", "int32", "int64")
# What a PNG of grey values can hold.
PNG_DTYPES = ("uint8", "uint16")
WHITE = 0xFFFFFF


@final
@dataclass(frozen=True, kw_only=True)
class MaskValues:
    """The value in masks that stands for each label, background first.

    Args:
        values: One for each label; a colour is 0xRRGGBB.
        are_colours: Whether they are colours.
    """

    values: tuple[int, ...]
    are_colours: bool

    @property
    def dtype(self) -> str:
        """The smallest type that holds all values."""
        if self.are_colours:
            return "uint8"
        limits = ((name, np.iinfo(name)) for name in DTYPES)
        low, high = min(self.values), max(self.values)
        return next(name for name, limit in limits if limit.min <= low and high <= limit.max)

    @property
    def format(self) -> str | None:
        """The format that holds them; None if that is the image's own choice."""
        return "png" if self.are_colours else None

    @property
    def shown(self) -> list[int | str]:
        """The values as a configuration has them."""
        return [f"#{value:06x}" if self.are_colours else value for value in self.values]

    def raster(self, labels: Raster) -> Raster:
        """Return a raster of labels as one of values; of colours with red, green and blue last."""
        table = np.array(self.values, np.int64)
        if self.are_colours:
            table = np.stack([table >> 16, table >> 8 & 255, table & 255], -1)
        table = table.astype(self.dtype)
        return replace(
            labels,
            dtype=self.dtype,
            channels=3 if self.are_colours else None,
            rows=lambda first, last: table[labels.rows(first, last)],
        )

    def read(self, path: Path, shape: tuple[int, ...]) -> np.ndarray:
        """Return the labels of a prediction that was written with these values, uint8.

        Raises ValueError for a pixel with another value.
        """
        written = read_mask(path, colours=self.are_colours, beside=shape)
        order = np.argsort(self.values)
        known = np.array(self.values)[order]
        places = np.searchsorted(known, written).clip(max=len(known) - 1)
        if (others := written[known[places] != written]).size:
            raise ValueError(
                f"{path} holds {others[0]}, which is no value of the masks. Remove the file."
            )
        return order[places].astype(np.uint8)


def mask_values(known: Sequence[Sequence[int | str]]) -> MaskValues:
    """Return the first of the values that each label has in masks.

    A background without one gets 0 (black), or else 255 (white), or the first that is free.

    Raises ValueError where the values are not known.
    """
    if not known:
        raise ValueError(
            f"--values {MASKS}: the data set of this run does not say which values its masks "
            "have, as with a file or a threshold for each class. Leave it out, or train with masks "
            "whose values are named: classes = { NAME = 255 }."
        )
    are_colours = any(isinstance(value, str) for several in known for value in several)
    numbers = [
        [int(value[1:], 16) if isinstance(value, str) else value for value in several]
        for several in known
    ]
    taken = {value for several in numbers for value in several}
    free = (
        value for value in (0, WHITE if are_colours else 255, *range(256)) if value not in taken
    )
    return MaskValues(
        values=tuple(several[0] if several else next(free) for several in numbers),
        are_colours=are_colours,
    )


def check_holds(name: str, image: Path, values: MaskValues) -> None:
    """Raise ValueError for a format that cannot hold these values."""
    if values.are_colours and name != "png":
        raise ValueError(
            f"{image}: the masks of this run are colours, which are written as PNG. Leave out "
            f"--format {name}, or --values {MASKS}."
        )
    if name == "png" and not values.are_colours and values.dtype not in PNG_DTYPES:
        raise ValueError(
            f"{image}: a PNG holds the values 0 to 65535, and those of the masks are "
            f"{min(values.values)} to {max(values.values)}. Choose --format tiff."
        )
