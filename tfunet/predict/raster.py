"""A prediction in the making: rows appended to a raw file, read back in parts. No TensorFlow."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from tfunet.data.lazy_image import cuts
from tfunet.data.preprocess import nearest, resize_linear_box
from tfunet.files.atomic import writing


@final
@dataclass(frozen=True, kw_only=True)
class RawFile:
    """An array on disk that grows by whole rows of its first axis.

    Args:
        path: Nothing but the values, row after row.
        shape: When it is whole.
        dtype: Of the values.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    def num_rows(self) -> int:
        """Return the whole rows that are there."""
        return self.path.stat().st_size // self.row_bytes if self.path.exists() else 0

    def cut(self, rows: int) -> None:
        """Keep the first `rows` rows."""
        with writing(self.path), self.path.open("ab") as file:
            file.truncate(rows * self.row_bytes)

    def append(self, rows: np.ndarray) -> None:
        """Add rows, and have them on the disk."""
        with writing(self.path), self.path.open("ab") as file:
            file.write(np.ascontiguousarray(rows, self.dtype).data)
            file.flush()
            os.fsync(file.fileno())

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the rows first..last-1."""
        count = (last - first) * math.prod(self.shape[1:])
        values = np.fromfile(self.path, self.dtype, count, offset=first * self.row_bytes)
        return values.reshape(last - first, *self.shape[1:])


@final
@dataclass(frozen=True, kw_only=True)
class Raster:
    """What a writer needs of a prediction.

    Args:
        shape: Spatial shape.
        dtype: uint8 labels, or float32 probabilities.
        num_classes: None for labels.
        rows: (first, last) to those rows: (rows, *rest), for probabilities with a last axis of
            classes.
    """

    shape: tuple[int, ...]
    dtype: str
    num_classes: int | None
    rows: Callable[[int, int], np.ndarray]


def raster_of(raw: RawFile, shape: Sequence[int], num_classes: int | None) -> Raster:
    """Return a finished raw file at the image's own spatial shape.

    Where the image was resampled, labels come from the nearest voxel and probabilities linearly.
    """
    rank = len(shape)
    shape, before = tuple(shape), raw.shape[:rank]

    def labels(first: int, last: int) -> np.ndarray:
        places = [nearest(now, wanted) for now, wanted in zip(before, shape, strict=True)]
        wanted = places[0][first:last]
        found = raw.rows(int(wanted[0]), int(wanted[-1]) + 1)[wanted - wanted[0]]
        for axis in range(1, rank):
            found = found.take(places[axis], axis)
        return found

    def probabilities(first: int, last: int) -> np.ndarray:
        rest = [0] * (rank - 1)
        return resize_linear_box(
            lambda start, stop: raw.rows(start[0], stop[0])[
                (slice(None), *map(slice, start[1:], stop[1:]))
            ],
            before,
            shape,
            [first, *rest],
            [last, *shape[1:]],
        )

    resampled = labels if num_classes is None else probabilities
    return Raster(
        shape=shape,
        dtype=raw.dtype,
        num_classes=num_classes,
        rows=raw.rows if shape == before else resampled,
    )


def written_to_array(raster: Raster, path: Path) -> np.ndarray:
    """Return the raster as an array in a file at `path`, of which only what is used is in memory.

    Classes come last. The file must not be there.
    """
    classes = () if raster.num_classes is None else (raster.num_classes,)
    array = RawFile(path=path, shape=(*raster.shape, *classes), dtype=raster.dtype)
    for first, last in cuts(raster.shape, raster.num_classes or 1):
        array.append(raster.rows(first, last))
    return np.memmap(path, array.dtype, "r", shape=array.shape)
