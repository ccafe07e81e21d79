"""An unfinished prediction: rows are appended to a raw file, and read back in parts."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, final

import numpy as np

from tfunet.data.lazy_image import cuts
from tfunet.data.preprocess import nearest, resize_linear_box
from tfunet.files.atomic import writing
from tfunet.files.regular import open_regular
from tfunet.machine.cores import usable_cores
from tfunet.prediction.ahead import ahead

# More would wait for memory.
MOST_THREADS = 8


@final
@dataclass(frozen=True, kw_only=True)
class RawFile:
    """An array on disk that grows row by row of its first axis.

    Args:
        path: A file of the values alone, row after row.
        shape: Shape of the complete array.
        dtype: Type of the values.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    def num_rows(self) -> int:
        """Return the number of complete rows in the file."""
        return self.path.stat().st_size // self.row_bytes if self.path.exists() else 0

    def cut(self, rows: int) -> None:
        """Keep the first `rows` rows."""
        with writing(self.path), self._open(0) as file:
            file.truncate(rows * self.row_bytes)

    def append(self, rows: np.ndarray) -> None:
        """Add rows, and wait until they are on the disk."""
        with writing(self.path), self._open(os.O_APPEND) as file:
            file.write(np.ascontiguousarray(rows, self.dtype).data)
            file.flush()
            os.fsync(file.fileno())

    def _open(self, flags: int) -> BinaryIO:
        return os.fdopen(open_regular(self.path, os.O_WRONLY | os.O_CREAT | flags), "wb")

    def rows(self, first: int, last: int) -> np.ndarray:
        """Return the rows [first, last)."""
        count = (last - first) * math.prod(self.shape[1:])
        values = np.fromfile(self.path, self.dtype, count, offset=first * self.row_bytes)
        return values.reshape(last - first, *self.shape[1:])


@final
@dataclass(frozen=True, kw_only=True)
class Raster:
    """What a writer needs to know about a prediction.

    Args:
        shape: Spatial shape.
        dtype: uint8 for labels, float32 for probabilities.
        channels: Length of a last axis: of classes, for probabilities, or of red, green and blue;
            None for labels.
        rows: Returns the rows [first, last): (rows, *rest), with the last axis if there is one.
    """

    shape: tuple[int, ...]
    dtype: str
    channels: int | None
    rows: Callable[[int, int], np.ndarray]

    def in_parts(self, bounds: Iterable[tuple[int, int]]) -> Iterator[np.ndarray]:
        """Yield the rows [first, last) of each part, made on several cores."""
        yield from ahead(lambda part: self.rows(*part), bounds, threads=_threads())


def raster_of(raw: RawFile, shape: Sequence[int], num_classes: int | None) -> Raster:
    """Return a finished raw file at the image's own spatial shape.

    If the image was resampled, a label is that of the nearest voxel, and probabilities are
    interpolated linearly.
    """
    rank = len(shape)
    shape, before = tuple(shape), raw.shape[:rank]

    def labels(first: int, last: int) -> np.ndarray:
        places = [nearest(old, new) for old, new in zip(before, shape, strict=True)]
        rows = places[0][first:last]
        values = raw.rows(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]
        for axis in range(1, rank):
            values = values.take(places[axis], axis)
        return values

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
        channels=num_classes,
        rows=raw.rows if shape == before else resampled,
    )


def written_to_array(raster: Raster, path: Path, *, classes_first: bool = False) -> np.ndarray:
    """Return the raster as an array that is mapped from a new file at `path`.

    Only the parts that are used are in memory. Classes come last, or first.
    """
    classes = () if raster.channels is None else (raster.channels,)
    # All threads together have a part of the usual size.
    bounds = list(cuts(raster.shape, (raster.channels or 1) * _threads()))
    shape = (*classes, *raster.shape) if classes_first else (*raster.shape, *classes)
    with writing(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_regular(path, flags), "r+b") as file:
            # A disk that is full is an error now, and would end the process later.
            os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(raster.dtype).itemsize)
            mapped = np.memmap(file, raster.dtype, "r+", shape=shape)
        in_order = np.moveaxis(mapped, 0, -1) if classes and classes_first else mapped
        for (first, last), rows in zip(bounds, raster.in_parts(bounds), strict=True):
            in_order[first:last] = rows
    return mapped


def _threads() -> int:
    return min(MOST_THREADS, len(usable_cores()))
