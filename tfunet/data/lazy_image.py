"""Images of which a part is read without the rest. Imports no TensorFlow.

Read by parts: TIFF that is tiled, cut into strips or stored as it is in memory, and NIfTI that is
not compressed. Any other file is read whole, once, and kept.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.preprocess import resize_linear_box
from tfunet.data.readers import (
    as_image,
    as_mask,
    channels_last,
    file_format,
    guarded,
    nifti_shape,
    read_header,
    read_image,
    read_mask,
    tiff_axes,
)

# Of decoded tiles: windows that overlap need the same ones again.
TILE_CACHE_BYTES = 64 * 2**20
PART_BYTES = 64 * 2**20
# A file of fewer is quicker read whole.
FEWEST_SEGMENTS = 4

Region = Callable[[tuple[slice, ...]], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class LazyImage:
    """An image, or a mask, whose boxes are read when they are asked for.

    Args:
        shape: Spatial shape.
        channels: Of an image; 1 for a mask.
        read: (start, stop) to that box: float32 (*box, channels) of an image, int64 (*box) of a
            mask. Raises ValueError, naming the file, for one that cannot be used.
        by_parts: Whether `read` leaves the rest of the file alone.
        spacing: Pixel size along `shape`, where the file states it.
    """

    shape: tuple[int, ...]
    channels: int
    read: Callable[[Sequence[int], Sequence[int]], np.ndarray]
    by_parts: bool
    spacing: tuple[float, ...] | None = None

    def parts(self) -> Iterator[np.ndarray]:
        """Yield the image cut along its first axis into parts of about 64 MiB as float32."""
        for first, last in cuts(self.shape, self.channels):
            yield self.read((first, *[0] * (len(self.shape) - 1)), (last, *self.shape[1:]))


def cuts(shape: Sequence[int], channels: int) -> Iterator[tuple[int, int]]:
    """Yield (first, one past the last) row of parts of about 64 MiB as float32."""
    rows = max(1, PART_BYTES // (math.prod(shape[1:]) * channels * 4))
    # Whole tiles, where they have the usual sizes: each is decoded once.
    rows = rows // 256 * 256 or rows
    for first in range(0, shape[0], rows):
        yield first, min(first + rows, shape[0])


def open_image(path: Path, *, grey: bool = False) -> LazyImage:
    """Open an image; its boxes are those of `tfunet.data.readers.read_image`, bit for bit."""
    header = read_header(path)
    channels = 1 if grey and header.channels == 3 else header.channels
    region = guarded(path, _REGIONS[file_format(path)])

    def read(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        box = tuple(map(slice, start, stop))
        pixels = guarded(path, lambda _: region(box))
        return as_image(path, pixels, grey=grey)

    opened = LazyImage(
        shape=header.shape, channels=channels, read=read, by_parts=True, spacing=header.spacing
    )
    return opened if region else _held(opened, partial(read_image, path, grey=grey))


def open_mask(path: Path) -> LazyImage:
    """Open a mask; its boxes are those of `tfunet.data.readers.read_mask`, bit for bit."""
    header = read_header(path)
    region = guarded(path, _REGIONS[file_format(path)])

    def read(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        box = tuple(map(slice, start, stop))
        return as_mask(path, guarded(path, lambda _: region(box)))

    opened = LazyImage(shape=header.shape, channels=1, read=read, by_parts=True)
    return opened if region else _held(opened, partial(read_mask, path))


def joined(images: Sequence[LazyImage]) -> LazyImage:
    """Return images of one shape as the channels of one."""
    if len({image.shape for image in images}) > 1:
        shapes = ", ".join(str(image.shape) for image in images)
        raise ValueError(f"The files of a case have the shapes {shapes}; they must agree.")
    return replace(
        images[0],
        channels=sum(image.channels for image in images),
        read=lambda start, stop: np.concatenate([one.read(start, stop) for one in images], -1),
        by_parts=all(image.by_parts for image in images),
    )


def resized(image: LazyImage, shape: Sequence[int]) -> LazyImage:
    """Return the image as `tfunet.data.preprocess.resize_linear` makes it, bit for bit."""
    return replace(
        image,
        shape=tuple(shape),
        read=lambda start, stop: resize_linear_box(image.read, image.shape, shape, start, stop),
    )


def _held(image: LazyImage, read_whole: Callable[[], np.ndarray]) -> LazyImage:
    """Return the image with boxes cut out of the whole, which is read when the first is needed."""
    whole = lru_cache(maxsize=1)(read_whole)

    def read(start: Sequence[int], stop: Sequence[int]) -> np.ndarray:
        return whole()[tuple(map(slice, start, stop))]

    return replace(image, read=read, by_parts=False)


def _tiff_region(path: Path) -> Region | None:
    import tifffile

    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        spatial, channel = tiff_axes(series.axes, series.shape)
        if series.dataoffset is not None:
            dtype = np.dtype(series.dtype).newbyteorder(file.byteorder)
            stored: Region | None = _mapped_region(path, dtype, series.dataoffset, series.shape)
        else:
            stored = _segmented_region(path, series)
    if stored is None:
        return None

    def region(box: tuple[slice, ...]) -> np.ndarray:
        places = [slice(None)] * len(series.shape)
        for axis, inside in zip(spatial, box, strict=True):
            places[axis] = inside
        return channels_last(stored(tuple(places)), series.axes, spatial, channel)

    return region


def _mapped_region(path: Path, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> Region:
    # Mapped anew for each box: pages of an earlier one are not this process's memory any more.
    return lambda box: np.array(np.memmap(path, dtype, "r", offset, shape)[box])


def _segmented_region(path: Path, series: Any) -> Region | None:
    """Return the reader of boxes of a TIFF's tiles or strips; None if it has too few."""
    page = series.keyframe
    num_page_axes = len(page.shape)
    pages = [one if one is None else (one.dataoffsets, one.databytecounts) for one in series.pages]
    stack = series.shape[: len(series.shape) - num_page_axes]
    if series.shape[len(stack) :] != page.shape or math.prod(stack) != len(pages):
        return None
    if len(page.dataoffsets) * len(pages) < FEWEST_SEGMENTS:
        return None
    separate, _, length, width, samples = page.shaped
    if page.is_tiled:
        size = (1, page.tiledepth, page.tilelength, page.tilewidth, samples)
    else:
        size = (1, 1, min(page.rowsperstrip, length), width, samples)
    counts = [-(-all_ // one) for all_, one in zip(page.shaped, size, strict=True)]
    # Which axis of the page as its decoder numbers them: separate samples, z, y, x, samples.
    sample_axis = 0 if separate > 1 else 4
    axes = [{"S": sample_axis, "Z": 1, "Y": 2, "X": 3}.get(one) for one in page.axes]
    if None in axes or page.shaped != _expanded(page.shape, axes):
        return None

    decode_segment = page.decode  # Made here: for JPEG it looks into the file, which is open now.

    def decode(number: int, index: int) -> np.ndarray | None:
        frame = pages[number]
        if frame is None or not frame[1][index]:
            return None
        with path.open("rb") as file:
            file.seek(frame[0][index])
            content = file.read(frame[1][index])
        if len(content) != frame[1][index]:
            raise ValueError("the file ends before its last pixel")
        return decode_segment(content, index, jpegtables=page.jpegtables)[0]

    segment_bytes = math.prod(size) * page.dtype.itemsize
    cached = lru_cache(maxsize=max(4, TILE_CACHE_BYTES // segment_bytes))(decode)

    def plane(number: int, box: tuple[slice, ...]) -> np.ndarray:
        wide = [slice(0, all_) for all_ in page.shaped]
        for axis, one in zip(axes, box, strict=True):
            wide[axis] = slice(*one.indices(page.shaped[axis])[:2])
        out = np.full([one.stop - one.start for one in wide], page.nodata, page.dtype)
        grid = [
            range(one.start // step, -(-one.stop // step))
            for one, step in zip(wide, size, strict=True)
        ]
        for place in product(*grid):
            segment = cached(number, int(np.ravel_multi_index(place, counts)))
            if segment is None:
                continue
            begin = [at * step for at, step in zip(place, size, strict=True)]
            # A segment at the border may have been stored short, and a decoder may pad it.
            end = [first + n for first, n in zip(begin[1:], segment.shape, strict=True)]
            end = [begin[0] + 1, *end]
            low = [max(a, one.start) for a, one in zip(begin, wide, strict=True)]
            high = [min(b, one.stop) for b, one in zip(end, wide, strict=True)]
            to = tuple(
                slice(a - one.start, b - one.start)
                for a, b, one in zip(low, high, wide, strict=True)
            )
            of = tuple(slice(a - c, b - c) for a, b, c in zip(low, high, begin, strict=True))
            out[to] = segment[np.newaxis][of]
        return out.reshape([wide[axis].stop - wide[axis].start for axis in axes])

    def region(box: tuple[slice, ...]) -> np.ndarray:
        outer = [range(*one.indices(all_)) for one, all_ in zip(box, stack, strict=False)]
        inner = box[len(stack) :]
        numbers = [int(np.ravel_multi_index(at, stack)) for at in product(*outer)] if stack else [0]
        planes = np.stack([plane(number, inner) for number in numbers])
        return planes.reshape([len(one) for one in outer] + list(planes.shape[1:]))

    return region


def _expanded(shape: tuple[int, ...], axes: Sequence[int | None]) -> tuple[int, ...]:
    full = [1] * 5
    for axis, length in zip(axes, shape, strict=True):
        full[axis or 0] = length
    return tuple(full)


def _nifti_region(path: Path) -> Region | None:
    import nibabel

    if path.name.lower().endswith(".gz"):
        return None
    image = nibabel.load(path)
    shape = tuple(int(length) for length in image.shape)
    spatial, channels = nifti_shape(shape)
    if image.get_data_dtype().kind not in "buif":
        return None

    def region(box: tuple[slice, ...]) -> np.ndarray:
        places = [*box, *[slice(None)] * (len(shape) - len(spatial))]
        pixels = np.asanyarray(image.dataobj[tuple(places)])
        return pixels.reshape(*pixels.shape[: len(spatial)], channels)

    return region


def _no_region(path: Path) -> None:
    return None


_REGIONS: dict[str, Callable[[Path], Region | None]] = {
    "pillow": _no_region,
    "tiff": _tiff_region,
    "nifti": _nifti_region,
}
