"""Images whose parts are read without the rest. Imports no TensorFlow.

Parts can be read of TIFF in tiles, in strips or uncompressed, of uncompressed NIfTI, of HDF5 and
zarr in chunks, and of .npy. Any other file is read as a whole, once, and kept.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.formats.stored import Region, Stored
from tfunet.data.image_files import (
    Header,
    Note,
    as_image,
    open_region,
    read_header,
    read_image,
    read_mask,
    unheard,
)
from tfunet.data.mask_values import ChannelValues, as_mask, no_values
from tfunet.data.opening import guarded
from tfunet.data.preprocess import nearest, resize_linear_box

PART_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class LazyImage:
    """An image or a mask whose boxes are read on demand.

    Args:
        shape: Spatial shape.
        channels: Number of channels; 1 for a mask.
        read: (start, stop) to that box: float32 (*box, channels) of an image, whole numbers
            (*box) of a mask. Raises ValueError that names the file if it cannot be used.
        by_parts: Whether `read` reads no more of the file than it needs.
        spacing: Pixel size along `shape`, where the file states one.
        unit: Unit of `spacing`; empty where the file does not say.
        in_colour: Whether pictures show the first three channels as red, green and blue.
    """

    shape: tuple[int, ...]
    channels: int
    read: Callable[[Sequence[int], Sequence[int]], np.ndarray]
    by_parts: bool
    spacing: tuple[float, ...] | None = None
    unit: str = ""
    in_colour: bool = False

    def parts(self) -> Iterator[np.ndarray]:
        """Yield the image cut along its first axis into parts of about 64 MiB as float32."""
        for first, last in cuts(self.shape, self.channels):
            yield self.read((first, *[0] * (len(self.shape) - 1)), (last, *self.shape[1:]))


def cuts(shape: Sequence[int], channels: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, one past the last row) of parts of about 64 MiB as float32."""
    rows = max(1, PART_BYTES // (math.prod(shape[1:]) * channels * 4))
    # Whole tiles of the usual sizes, so that each is decoded once.
    rows = rows // 256 * 256 or rows
    for first in range(0, shape[0], rows):
        yield first, min(first + rows, shape[0])


def open_image(
    path: Path,
    *,
    grey: bool = False,
    axes: str | None = None,
    alpha: str | None = None,
    fill: float | None = None,
    note: Note = unheard,
) -> LazyImage:
    """Open an image; its boxes are those of `tfunet.data.image_files.read_image`, bit for bit."""
    header = read_header(path, axes=axes, alpha=alpha)
    options: dict[str, Any] = {"grey": grey, "alpha": alpha, "fill": fill, "note": note}
    return _opened(
        path,
        header,
        channels=1 if grey and header.channels == 3 else header.channels,
        region=open_region(path, axes=axes),
        convert=partial(as_image, path, **options),
        read_whole=partial(read_image, path, axes=axes, **options),
    )


def open_mask(
    path: Path,
    *,
    colours: bool = False,
    fractions: bool = False,
    channel_values: ChannelValues = no_values,
    axes: str | None = None,
    beside: tuple[int, ...] | None = None,
    image: Header | None = None,
) -> LazyImage:
    """Open a mask; its boxes are those of `tfunet.data.image_files.read_mask`, bit for bit."""
    header = read_header(path, axes=axes, mask=True, beside=beside, image=image)
    values = no_values if header.is_colour else channel_values
    options: dict[str, Any] = {"colours": colours, "fractions": fractions, "channel_values": values}
    return _opened(
        path,
        header,
        channels=1,
        region=open_region(path, axes=axes, mask=True, colours=colours, beside=beside),
        convert=lambda values, *, stored: as_mask(path, values, **options),
        read_whole=partial(read_mask, path, axes=axes, beside=beside, image=image, **options),
    )


def joined(images: Sequence[LazyImage]) -> LazyImage:
    """Return images of the same shape as the channels of one image."""
    if len({image.shape for image in images}) > 1:
        shapes = ", ".join(str(image.shape) for image in images)
        raise ValueError(f"The files of a case have the shapes {shapes}; they must agree.")
    return replace(
        images[0],
        channels=sum(image.channels for image in images),
        read=lambda start, stop: np.concatenate([image.read(start, stop) for image in images], -1),
        by_parts=all(image.by_parts for image in images),
        in_colour=len(images) == 1 and images[0].in_colour,
    )


def resized(image: LazyImage, shape: Sequence[int], fill: float | None = None) -> LazyImage:
    """Return the image resized as by `tfunet.data.preprocess.resize_with_gaps`, bit for bit."""

    def filled(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        box = image.read(start, stop)
        return box if fill is None else np.where(np.isnan(box), np.float32(fill), box)

    def read(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        box = resize_linear_box(filled, image.shape, shape, start, stop)
        if fill is None:
            return box
        sources = [
            nearest(before, length)[first:last]
            for before, length, first, last in zip(image.shape, shape, start, stop, strict=True)
        ]
        firsts = [int(source[0]) for source in sources]
        gaps = np.isnan(image.read(firsts, [int(source[-1]) + 1 for source in sources]))
        places = (source - first for source, first in zip(sources, firsts, strict=True))
        box[gaps[np.ix_(*places)]] = np.nan
        return box

    return replace(image, shape=tuple(shape), read=read)


def _opened(
    path: Path,
    header: Header,
    *,
    channels: int,
    region: tuple[Stored, Region] | None,
    convert: Callable[..., np.ndarray],
    read_whole: Callable[[], np.ndarray],
) -> LazyImage:
    """Return a file whose boxes `region` reads, or which is read as a whole and kept."""
    read_once = lru_cache(maxsize=1)(read_whole)

    def read(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        box = tuple(map(slice, start, stop))
        if region is None:
            return read_once()[box]
        stored, read_box = region
        return convert(guarded(path, lambda _: read_box(box)), stored=stored)

    return LazyImage(
        shape=header.shape,
        channels=channels,
        read=read,
        by_parts=region is not None,
        spacing=None if header.contradiction else header.spacing,
        unit=header.unit,
        in_colour=header.in_colour and channels > 1,
    )
