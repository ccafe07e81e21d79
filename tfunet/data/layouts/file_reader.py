"""Reads the cases of a data set of files: their pixels, normalised, and their labels.

Imports no TensorFlow.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.data.defects import BadFileError, Defect
from tfunet.data.image_files import read_image
from tfunet.data.intensity_checks import IntensityChecks, watched
from tfunet.data.layouts.case_files import CaseFiles
from tfunet.data.layouts.header_checks import CaseHeaders
from tfunet.data.layouts.label_mapping import LabelMapping
from tfunet.data.layouts.label_reader import LabelReader
from tfunet.data.layouts.options import FileOptions
from tfunet.data.layouts.pixel_size import Spacing
from tfunet.data.lazy_image import LazyImage, cuts, joined, open_image, resized
from tfunet.data.no_data import IGNORED
from tfunet.data.preprocess import (
    Intensity,
    Statistics,
    check_intensity,
    nearest,
    needs_pixels,
    needs_whole_image,
    normalise,
    resampled_shape,
    resize_nearest,
    resize_with_gaps,
    statistics_for,
    unnormalised,
)
from tfunet.data.source import BoxReader, RawCase, StoredCase

# Types of whole numbers that float32 holds exactly.
WHOLE = {"uint8": "|u1", "int8": "|i1", "uint16": "<u2", "int16": "<i2"}
# A larger decoded image is read part by part, where its format allows it.
LARGE_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class FileCase:
    """A case to read: its headers, and its (pixel size, target) where it is resampled."""

    headers: CaseHeaders
    spacings: tuple[Spacing, Spacing] | None

    @property
    def files(self) -> CaseFiles:
        """Its files."""
        return self.headers.case

    @property
    def spacing(self) -> Spacing | None:
        """Pixel size after resampling, where it is known."""
        return self.spacings[1] if self.spacings else self.headers.image.spacing

    @property
    def shape(self) -> tuple[int, ...]:
        """Spatial shape after resampling."""
        stored = self.headers.image.shape
        return resampled_shape(stored, *self.spacings) if self.spacings else stored


@final
@dataclass(frozen=True, kw_only=True)
class FileReader:
    """Reads cases from their files, by index: the functions of a DataSource."""

    root: Path
    cases: Sequence[FileCase]
    labels: LabelMapping
    options: FileOptions
    # What may be a mistake in the files of each case, in the order of finding it.
    _noted: dict[int, dict[Defect, None]] = field(default_factory=dict, init=False)

    @property
    def channels(self) -> int:
        """Channels of every image."""
        return self.cases[0].headers.image.channels

    @property
    def scale(self) -> Intensity:
        """How intensities are normalised."""
        return check_intensity(self.options.intensity)

    @property
    def fill(self) -> float | None:
        """What pixels without data become."""
        return self.options.fill

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the image of a case, as training sees it, and its labels."""
        case = self._whole(index)
        ((image, mask),) = case.parts
        return normalise(image, self.scale, case.statistics), mask

    def stored(self, index: int) -> StoredCase:
        """Return a case before it is normalised, a large one in parts if its format allows it."""
        opened = self._open(index) if self._is_large(index) else None
        return self._whole(index) if opened is None else opened.in_parts()

    def boxes(self, index: int, statistics: Statistics | None) -> BoxReader | None:
        """Return the reader of boxes of a case; None for one that is read as a whole."""
        opened = self._open(index)
        return None if opened is None else opened.boxes(statistics)

    def notes(self, index: int) -> Sequence[Defect]:
        """Return what may be a mistake in a case that was read."""
        return tuple(self._noted.get(index, ()))

    def raw(self, index: int) -> RawCase:
        """Return a case before it is resampled and normalised."""
        case = self.cases[index]
        image, mask = self._filled(*self._pixels(index))
        header = case.headers.image
        return RawCase(
            image=image,
            mask=mask,
            file=case.files.images[0],
            image_dtype=header.dtype,
            mask_dtype=case.headers.masks[-1].dtype,
            spacing=case.spacings[0] if case.spacings else header.spacing,
            target=case.spacings[1] if case.spacings else None,
            image_files=case.files.images,
            notes=tuple(self.notes(index)),
        )

    def objects(self, index: int, shape: Sequence[int]) -> np.ndarray | None:
        """Return the number of the object in each pixel of a mask that is resized to a shape."""
        numbers = self._labels(index).objects()
        return None if numbers is None else resize_nearest(numbers, tuple(shape))

    def restore(self, index: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return what gives normalised pixels of a case their intensities again.

        A large image is not read once more for its statistics: its pixels stay as they are.
        """
        is_read = needs_pixels(self.scale)
        if is_read and self._is_large(index):
            return np.asarray
        parts = [self._resized(index, self._image(index))] if is_read else []
        statistics = statistics_for(self.scale, parts)
        return partial(unnormalised, intensity=self.scale, statistics=statistics)

    def _whole(self, index: int) -> StoredCase:
        image, mask = self._pixels(index)
        image = self._resized(index, image)
        statistics = statistics_for(self.scale, [image])
        image, mask = self._filled(image, resize_nearest(mask, image.shape[:-1]))
        return StoredCase(shape=mask.shape, parts=[(image, mask)], statistics=statistics)

    def _open(self, index: int) -> "_OpenCase | None":
        """Return a case of which boxes can be read; None for one that needs all of its pixels."""
        if needs_whole_image(self.scale) or self.labels.border:
            return None
        images = [open_image(path, **options) for path, options in self._images(index)]
        if not all(image.by_parts for image in images):
            return None
        labels = self._labels(index)
        masks = labels.open()
        if not all(mask.by_parts for mask in masks):
            return None
        return _OpenCase(reader=self, index=index, images=images, labels=labels, masks=masks)

    def _is_large(self, index: int) -> bool:
        return math.prod(self.cases[index].shape) * self.channels * 4 >= LARGE_BYTES

    def _resized(self, index: int, image: np.ndarray) -> np.ndarray:
        """Return the image to normalise; NaN where it has no data."""
        return resize_with_gaps(image, self.cases[index].shape, self.fill)

    def _pixels(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a case's image and labels as its files hold them."""
        image = self._image(index)
        files = self.cases[index].files
        mask = self._labels(index).read()
        if mask.shape != image.shape[:-1]:
            raise BadFileError(
                self.root / files.masks[0],
                f"the mask has shape {mask.shape}, its image {image.shape[:-1]}; they must agree.",
            )
        return image, mask

    def _image(self, index: int) -> np.ndarray:
        """Return a case's image as its files hold it; NaN where it has no data."""
        files = self.cases[index].files
        images = [read_image(path, **options) for path, options in self._images(index)]
        for file, pixels in zip(files.images, images, strict=True):
            checks = IntensityChecks(self.scale)
            checks.add(pixels)
            self._note_all(index, file, checks)
        image = np.concatenate(images, -1) if len(images) > 1 else images[0]
        if self.fill is not None and np.isnan(image).any(-1).all():
            raise BadFileError(self.root / files.images[0], "no pixel has data. Leave it out.")
        return image

    def _filled(self, image: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a resized image, or a part of it, without gaps, and its labels."""
        if self.fill is None:
            return image, mask
        gaps = np.isnan(image)
        if not gaps.any():
            return image, mask
        mask = np.where(gaps.any(-1), np.uint8(IGNORED), mask)
        return np.where(gaps, np.float32(self.fill), image), mask

    def _images(self, index: int) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the path of each image file of a case, and how it is read."""
        for file in self.cases[index].files.images:
            path = self.root / file
            yield (
                path,
                {
                    "grey": self.options.grey,
                    "axes": self.options.axes,
                    "alpha": self.options.alpha,
                    # Filled when it is known what the other pixels are.
                    "fill": None if self.fill is None else math.nan,
                    "note": partial(self._note, index, path),
                },
            )

    def _labels(self, index: int) -> LabelReader:
        case = self.cases[index]
        return LabelReader(
            self.labels,
            [self.root / file for file in case.files.masks],
            case.headers.masks,
            case.files.mask_labels,
            axes=self.options.axes,
            image=case.headers.image,
            note=partial(self._note, index),
        )

    def _note(self, index: int, path: Path, what: str) -> None:
        defect = BadFileError(path, what).defect(self.cases[index].files.case_id, self.root)
        self._noted.setdefault(index, {})[defect] = None

    def _note_all(self, index: int, file: str, checks: IntensityChecks) -> None:
        for what in checks.notes():
            self._note(index, self.root / file, what)


@final
@dataclass(frozen=True, kw_only=True)
class _OpenCase:
    """A case whose files are open, and read in boxes."""

    reader: FileReader
    index: int
    images: Sequence[LazyImage]
    labels: LabelReader
    masks: Sequence[LazyImage]

    def in_parts(self) -> StoredCase:
        """Return the case cut along its first axis."""
        case, scale = self.reader.cases[self.index], self.reader.scale
        checks = [IntensityChecks(scale) for _ in self.images]
        stored = joined(list(map(watched, self.images, checks)))
        image = resized(stored, case.shape, self.reader.fill)
        return StoredCase(
            shape=case.shape,
            parts=self._parts(image, checks),
            statistics=statistics_for(scale, image.parts()),
            dtype=self._dtype(),
        )

    def boxes(self, statistics: Statistics | None) -> BoxReader:
        """Return the reader of boxes; without `statistics` it reads the whole image for them."""
        case, scale = self.reader.cases[self.index], self.reader.scale
        image = resized(joined(self.images), case.shape, self.reader.fill)
        if statistics is None:
            statistics = statistics_for(scale, image.parts())

        def box(start: Sequence[int], stop: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            pixels, mask = self._box(image, start, stop)
            return normalise(pixels, scale, statistics), mask

        return box

    def _box(
        self, image: LazyImage, start: Sequence[int], stop: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        places = [
            nearest(before, length)[first:last]
            for before, length, first, last in zip(
                self.images[0].shape, image.shape, start, stop, strict=True
            )
        ]
        firsts = [int(place[0]) for place in places]
        mask = self.labels.part(
            mask.read(firsts, [int(place[-1]) + 1 for place in places]) for mask in self.masks
        )
        for axis, (place, first) in enumerate(zip(places, firsts, strict=True)):
            if len(place) != mask.shape[axis]:
                mask = mask.take(place - first, axis)
        return self.reader._filled(image.read(start, stop), mask)

    def _parts(
        self, image: LazyImage, checks: Sequence[IntensityChecks]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rest = len(image.shape) - 1
        for first, last in cuts(image.shape, image.channels):
            yield self._box(image, (first, *[0] * rest), (last, *image.shape[1:]))
        self.labels.finish()
        files = self.reader.cases[self.index].files.images
        for file, check in zip(files, checks, strict=True):
            self.reader._note_all(self.index, file, check)

    def _dtype(self) -> str:
        """Return the type of the files' whole numbers, where training sees them as they are."""
        shape = self.reader.cases[self.index].shape
        name = self.reader.cases[self.index].headers.image.dtype
        return WHOLE.get(name, "") if self.images[0].shape == shape else ""
