"""What a packed data set says of itself, and where its boxes lie. Imports no TensorFlow.

```
PLACE/index.json            what the description knew; written first
PLACE/images-uint8/c.N.0.0  shards of boxes: images by the type of their pixels, masks, objects
PLACE/places/N              places of foreground of each case of a unit
PLACE/units/N.npz           facts of the cases of a unit: it is complete
PLACE/cases.npz             facts of all cases: the data set is complete
```

Each case is cut into boxes, and a shard holds boxes of one case after another. A unit is what one
process writes at a time: the shard of several cases, or the shards of a large one. An array of
boxes is one of zarr; a case has its boxes at the same places in each array.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfunet.data.stored_case import FLOAT, NARROW
from tfunet.files.typed import read_json

VERSION = 1
INDEX, CASES, UNITS, PLACES = "index.json", "cases.npz", "units", "places"
MASKS, OBJECTS = "masks", "objects"
TYPES = (*NARROW, FLOAT)
# As float32 in memory; a larger case is written while it is read, and shares no shard.
LARGE_BYTES = 256 * 2**20
SHARD_BYTES = 256 * 2**20
MOST_BOXES = 4096
BOX_BYTES = 4 * 2**20
# Where no case is so many times longer than usual, none is cut, and zeros fill the boxes.
FEW_ZEROS = 1.5
# Longer axes are cut into boxes of this length: in a plane, and in a volume.
LONGEST = {2: (512, 256), 3: (96, 64)}


@dataclass(frozen=True, kw_only=True)
class PackedIndex:
    """What index.json holds: fields of a DataSource, how pixels are stored, and where.

    Args:
        intensity: How pixels are normalised when they are read.
        box: Spatial shape of a box.
        shard_boxes: Boxes in a shard.
        has_objects: Whether masks tell objects apart.
        left_out: Cases that could not be read at opening: their file, and why.
        command: What packs it, and goes on.
    """

    version: int
    name: str
    case_ids: tuple[str, ...]
    groups: tuple[str, ...]
    num_classes: int
    channels: int
    regions: dict[str, tuple[int, ...]]
    class_names: tuple[str, ...]
    targets: dict[str, tuple[float, ...]]
    patch: tuple[int, ...]
    fingerprint: str
    files: tuple[str, ...]
    spacings: tuple[tuple[float, ...] | None, ...]
    unit: str
    shapes: tuple[tuple[int, ...], ...]
    root: str
    warnings: tuple[tuple[str, str, str], ...]
    left_out: tuple[tuple[str, str, str], ...]
    found: str
    preparation: dict[str, Any] | None
    swapped: str
    ignored: int | None
    has_background: bool
    in_colour: bool
    mask_values: tuple[tuple[int | str, ...], ...]
    intensity: str | tuple[float, float] | dict[str, tuple[float, ...]]
    box: tuple[int, ...]
    shard_boxes: int
    has_objects: bool
    command: str

    @cached_property
    def layout(self) -> "Layout":
        """Where boxes lie."""
        return Layout(self.shapes, self.box, self.shard_boxes, LARGE_BYTES // (4 * self.channels))

    @cached_property
    def kinds(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of a box of each array."""
        kinds = {image_kind(dtype): ((*self.box, self.channels), dtype) for dtype in TYPES}
        kinds[MASKS] = self.box, "|u1"
        return {**kinds, OBJECTS: (self.box, "<i4")} if self.has_objects else kinds

    def advice(self, place: Path) -> str:
        """Return what to do about a file of it that is damaged."""
        return (
            f"Remove this file, and pack {place} again, which writes only what is not there: "
            + (self.command)
        )


class Unit(NamedTuple):
    """Cases first..stop-1, and their shards first_shard..stop_shard-1; or a large case alone."""

    number: int
    first: int
    stop: int
    first_shard: int
    stop_shard: int
    is_alone: bool

    @property
    def cases(self) -> range:
        """Numbers of its cases."""
        return range(self.first, self.stop)

    @property
    def shards(self) -> range:
        """Numbers of its shards."""
        return range(self.first_shard, self.stop_shard)

    def path(self, place: Path) -> Path:
        """Return the file that says that it is complete."""
        return place / UNITS / f"{self.number}.npz"


class Layout:
    """Where the boxes of each case lie.

    Args:
        shapes: Spatial shape of each case.
        box: That of a box.
        shard_boxes: Boxes in a shard.
        most_pixels: A larger case is a unit of its own.

    Attributes:
        units: All of them.
        first_boxes: Number of each case's first box.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        box: Sequence[int],
        shard_boxes: int,
        most_pixels: int,
    ) -> None:
        self.box = tuple(box)
        self.units: list[Unit] = []
        self.first_boxes: list[int] = []
        first, shard, taken = 0, 0, 0

        def close(stop: int, *, is_alone: bool = False) -> None:
            nonlocal first, shard, taken
            if stop > first:
                end = shard + math.ceil(taken / shard_boxes)
                self.units.append(Unit(len(self.units), first, stop, shard, end, is_alone))
                first, shard, taken = stop, end, 0

        for case, shape in enumerate(shapes):
            boxes = math.prod(self.grid(shape))
            is_alone = math.prod(shape) > most_pixels
            if is_alone or taken + boxes > shard_boxes:
                close(case)
            self.first_boxes.append(shard * shard_boxes + taken)
            taken += boxes
            if is_alone:
                close(case + 1, is_alone=True)
        close(len(shapes))
        self.num_shards = shard
        self._firsts = [unit.first for unit in self.units]

    def unit_of(self, case: int) -> Unit:
        """Return the unit of a case."""
        return self.units[bisect(self._firsts, case) - 1]

    def unit_of_shard(self, shard: int) -> Unit:
        """Return the unit of a shard."""
        return self.units[bisect([unit.first_shard for unit in self.units], shard) - 1]

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return how many boxes a case has along each axis."""
        return tuple(-(-length // step) for length, step in zip(shape, self.box, strict=True))


def image_kind(dtype: str) -> str:
    """Return the name of the array of images of a type."""
    return f"images-{np.dtype(dtype).name}"


def box_of(shapes: Sequence[Sequence[int]], channels: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of a box, and how many are in a shard, for images of 16 bits.

    Args:
        shapes: Spatial shape of each case.
        channels: Channels of each image.
    """
    longest, step = LONGEST[len(shapes[0])]
    usual, most = (
        [int(length) for length in find(np.array(shapes), axis=0)] for find in (np.median, np.max)
    )
    box = [
        high if high <= min(longest, FEW_ZEROS * low) else low if low <= longest else step
        for low, high in zip(usual, most, strict=True)
    ]
    while math.prod(box) * channels * 2 > BOX_BYTES and max(box) > 1:
        axis = box.index(max(box))
        box[axis] = -(-box[axis] // 2)
    fitting = max(1, SHARD_BYTES // (math.prod(box) * channels * 2))
    needed = sum(math.prod(-(-n // b) for n, b in zip(shape, box, strict=True)) for shape in shapes)
    return tuple(box), min(fitting, MOST_BOXES, needed)


def read_index(place: Path) -> PackedIndex | None:
    """Return what a folder says of itself; None where it is no packed data set.

    Raises ValueError for another version, RecordError for a damaged file.
    """
    header = read_json(place / INDEX, dict[str, Any])
    if header is None:
        return None
    if (version := header.get("version")) != VERSION:
        raise ValueError(
            f"{place} was packed in version {version} of this format, and this tfunet reads "
            f"version {VERSION}. Pack the data set again, into another folder."
        )
    return read_json(place / INDEX, PackedIndex)
