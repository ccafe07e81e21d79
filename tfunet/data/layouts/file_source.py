"""A data set from lists of image and mask files. Imports no TensorFlow."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.data.defects import BadFileError, Defect, DefectsError
from tfunet.data.image_files import content_files, read_image
from tfunet.data.intensity_checks import IntensityChecks, watched
from tfunet.data.layouts.case_files import Case, cases_without_group
from tfunet.data.layouts.header_checks import CaseHeaders, axes_by_mask, read_headers
from tfunet.data.layouts.label_mapping import LabelMapping, named_regions
from tfunet.data.layouts.label_reader import LabelReader
from tfunet.data.layouts.pixel_size import PixelSizes, Spacing
from tfunet.data.layouts.unlike_headers import (
    in_usual_unit,
    turned_masks,
    unlike_directions,
    unlike_units,
)
from tfunet.data.lazy_image import LazyImage, cuts, joined, open_image, resized
from tfunet.data.no_data import IGNORED
from tfunet.data.preparation_options import check_alpha_and_fill, check_axes
from tfunet.data.preprocess import (
    PREPROCESS_VERSION,
    Intensity,
    Statistics,
    check_channels,
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
from tfunet.data.source import CaseParts, DataSource, RawCase
from tfunet.files.regular import read_bytes

# Above this size, reading all files at every start would take too long.
HASHED_BYTES = 256 * 2**20
# A larger decoded image is read part by part, where its format allows it.
LARGE_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a data set.

    Args:
        root: The folder; files are relative to it, or absolute.
        cases: Cases whose files all exist.
        defects: What is wrong with the other cases.
        found: How many files there are, in words.
        warnings: What may be a mistake.
    """

    root: Path
    cases: Sequence[Case]
    defects: Sequence[Defect]
    found: str
    warnings: Sequence[Defect] = ()


def open_files(
    listing: Listing,
    labels: LabelMapping,
    sizes: PixelSizes,
    *,
    name: str | None = None,
    regions: Mapping[str, Sequence[str]] | None = None,
    intensity: str | Sequence[float] | Mapping[str, Sequence[float]] = "zscore",
    grey: bool = False,
    axes: str | None = None,
    alpha: str | None = None,
    fill: float | None = None,
    patch: Sequence[int] | None = None,
) -> DataSource:
    """Open a data set from its files; only their headers are read here.

    Args:
        listing: The files.
        labels: How the values in the masks become labels.
        sizes: Pixel sizes of the cases, and the one to resample to.
        name: This and the following options are those of `open_folder`.

    Raises DefectsError where no case is left, and ValueError for wrong options.
    """
    root = listing.root
    name = name or root.resolve().name
    region_labels = named_regions(regions, labels.names)
    scale = check_intensity(intensity)
    check_axes(axes)
    axes = axes or axes_by_mask(root, listing.cases)
    check_alpha_and_fill(alpha, fill)
    headers, defects = read_headers(
        root, listing.cases, grey=grey, axes=axes, alpha=alpha, compare_sizes=sizes.from_headers
    )
    warnings = [*listing.warnings, *cases_without_group(listing.cases)]
    warnings += turned_masks(headers) if axes is None else []
    if sizes.from_headers:
        warnings += [*unlike_units(name, headers), *unlike_directions(name, headers)]
        headers = in_usual_unit(headers)
    spacings, size_defects = sizes.of(
        [header.case for header in headers], [header.image for header in headers]
    )
    defects = [*listing.defects, *defects, *size_defects]
    bad = {defect.case_id for defect in defects}
    cases = [
        _FileCase(headers=header, spacings=pair)
        for header, pair in zip(headers, spacings, strict=True)
        if header.case.case_id not in bad
    ]
    if not cases:
        raise DefectsError(name, defects, listing.found)
    reader = _Reader(
        root=root,
        cases=cases,
        labels=labels,
        scale=scale,
        grey=grey,
        axes=axes,
        alpha=alpha,
        fill=fill,
    )
    check_channels(scale, reader.channels)
    ignores = fill is not None or labels.ignored is not None
    if ignores and len(labels.names) >= IGNORED:
        raise ValueError(
            f"fill and ignore_label need a free label; allowed: {IGNORED - 1} classes."
        )
    unit = _unit(cases) if sizes.from_headers else ""
    settings = {
        "version": PREPROCESS_VERSION,
        "intensity": scale,
        "grey": grey,
        "axes": axes,
        "alpha": alpha,
        "fill": fill,
        "labels": [
            *(labels.names, labels.values and sorted(labels.values.items())),
            *(labels.threshold, labels.colours),
        ],
        **({"thresholds": sorted(labels.own_thresholds.items())} if labels.own_thresholds else {}),
        "shapes": [case.shape for case in cases],
        **({} if fill is None else {"ignored": IGNORED}),
        **({} if labels.ignored is None else {"ignore_label": labels.ignored}),
        **({"file_classes": [case.files.mask_labels for case in cases]} if labels.objects else {}),
    }
    return DataSource(
        name=name,
        case_ids=tuple(case.files.case_id for case in cases),
        groups=tuple(case.files.group for case in cases),
        num_classes=len(labels.names) + 1,
        channels=reader.channels,
        regions=region_labels,
        # nnU-Net names only regions, and its classes are numbers.
        class_names=() if all(map(str.isdigit, labels.names)) else labels.names,
        has_background=labels.has_background,
        patch=_patch(patch, [case.shape for case in cases]),
        fingerprint=_fingerprint(root, [case.files for case in cases], settings),
        read=reader.read,
        read_parts=reader.read_parts,
        raw=reader.raw,
        notes=reader.notes,
        files=tuple(case.files.images[0] for case in cases),
        spacings=tuple(
            case.spacings[1] if case.spacings else case.headers.image.spacing for case in cases
        ),
        unit=unit,
        shapes=tuple(case.shape for case in cases),
        root=root,
        defects=tuple(defects),
        warnings=tuple(warnings),
        found=listing.found,
        preparation={
            "num_files": len(cases[0].files.images),
            "intensity": scale,
            "grey": grey,
            "axes": axes,
            "alpha": alpha,
            "fill": fill,
            # Pixel sizes from a file or a table are known for the training images only.
            "pixel_size": sizes.fixed,
            "target_pixel_size": sizes.target,
            **({"unit": unit} if sizes.target is not None and unit else {}),
        },
        swapped=labels.swapped(),
        ignored=IGNORED if ignores else None,
        in_colour=all(case.headers.image.in_colour for case in cases),
        mask_values=labels.values_of_labels(),
        restore=reader.restore,
        objects=reader.objects,
    )


@dataclass(frozen=True, kw_only=True)
class _FileCase:
    """A case to read: its headers, and its (pixel size, target) where it is resampled."""

    headers: CaseHeaders
    spacings: tuple[Spacing, Spacing] | None

    @property
    def files(self) -> Case:
        return self.headers.case

    @property
    def shape(self) -> tuple[int, ...]:
        """Spatial shape after resampling."""
        stored = self.headers.image.shape
        return resampled_shape(stored, *self.spacings) if self.spacings else stored


@final
@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reads cases from their files, by index: the functions of a DataSource."""

    root: Path
    cases: Sequence[_FileCase]
    labels: LabelMapping
    scale: Intensity
    grey: bool
    axes: str | None
    alpha: str | None
    fill: float | None
    # What may be a mistake in the files of each case, in the order of finding it.
    _noted: dict[int, dict[Defect, None]] = field(default_factory=dict, init=False)

    @property
    def channels(self) -> int:
        return self.cases[0].headers.image.channels

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = self._pixels(index)
        mask = resize_nearest(mask, self.cases[index].shape)
        return self._finished(self._resized(index, image), mask, self.scale)

    def read_parts(self, index: int) -> CaseParts | None:
        case = self.cases[index]
        needs_all = needs_whole_image(self.scale) or self.labels.border
        if not self._is_large(index) or needs_all:
            return None
        images = [open_image(path, **options) for path, options in self._images(index)]
        labels = self._labels(index)
        masks = labels.open()
        if not all(image.by_parts for image in (*images, *masks)):
            return None
        return CaseParts(shape=case.shape, parts=self._parts(index, images, labels, masks))

    def notes(self, index: int) -> Sequence[Defect]:
        """Return what may be a mistake in a case that was read."""
        return tuple(self._noted.get(index, ()))

    def raw(self, index: int) -> RawCase:
        case = self.cases[index]
        image, mask = self._pixels(index)
        image, mask = self._finished(image, mask, "none")
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

    def _parts(
        self,
        index: int,
        images: Sequence[LazyImage],
        labels: LabelReader,
        masks: Sequence[LazyImage],
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (image, mask) of a case, cut along the first axis; `images` are as stored."""
        checks = [IntensityChecks(self.scale) for _ in images]
        stored = joined(list(map(watched, images, checks)))
        image = resized(stored, self.cases[index].shape, self.fill)
        statistics = statistics_for(self.scale, image.parts())
        rows = nearest(stored.shape[0], image.shape[0])
        for first, last in cuts(image.shape, image.channels):
            start, stop = (first, *[0] * (len(image.shape) - 1)), (last, *image.shape[1:])
            top, bottom = int(rows[first]), int(rows[last - 1]) + 1
            box = (top, *start[1:]), (bottom, *stored.shape[1:])
            mask = labels.part(mask.read(*box) for mask in masks).take(rows[first:last] - top, 0)
            pixels = image.read(start, stop)
            nearest_mask = resize_nearest(mask, pixels.shape[:-1])
            yield self._finished(pixels, nearest_mask, self.scale, statistics)
        labels.finish()
        for file, check in zip(self.cases[index].files.images, checks, strict=True):
            self._note_all(index, file, check)

    def _finished(
        self,
        image: np.ndarray,
        mask: np.ndarray,
        scale: Intensity,
        statistics: Statistics | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a resized image, or a part of it, normalised and filled, and its labels."""
        if self.fill is not None:
            gaps = np.isnan(image).any(-1)
            mask = np.where(gaps, np.uint8(IGNORED), mask) if gaps.any() else mask
        return normalise(image, scale, statistics, self.fill), mask

    def _images(self, index: int) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the path of each image file of a case, and how it is read."""
        for file in self.cases[index].files.images:
            path = self.root / file
            yield (
                path,
                {
                    "grey": self.grey,
                    "axes": self.axes,
                    "alpha": self.alpha,
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
            axes=self.axes,
            image=case.headers.image,
            note=partial(self._note, index),
        )

    def _note(self, index: int, path: Path, what: str) -> None:
        defect = BadFileError(path, what).defect(self.cases[index].files.case_id, self.root)
        self._noted.setdefault(index, {})[defect] = None

    def _note_all(self, index: int, file: str, checks: IntensityChecks) -> None:
        for what in checks.notes():
            self._note(index, self.root / file, what)


def _unit(cases: Sequence[_FileCase]) -> str:
    """Return the unit of the pixel sizes in the headers, if all say the same."""
    units = {case.headers.image.unit for case in cases}
    return units.pop() if len(units) == 1 else ""


def _patch(patch: Sequence[int] | None, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    num_axes = len(shapes[0])
    if patch is None:
        most = 256 if num_axes == 2 else 64
        median = np.median(np.array(shapes), axis=0)
        return tuple(int(min(most, np.ceil(length / 16) * 16)) for length in median)
    if len(patch) != num_axes or min(patch) < 1:
        raise ValueError(
            f"patch={list(patch)} for images with {num_axes} axes; give {num_axes} positive sizes."
        )
    return tuple(int(length) for length in patch)


def _fingerprint(root: Path, cases: Sequence[Case], settings: Mapping[str, Any]) -> str:
    """Hash the settings and the files: by content, or above 256 MiB in all by size and time."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for case in cases:
        digest.update(json.dumps([case.images, case.masks]).encode())
    named = [root / file for case in cases for file in (*case.images, *case.masks)]
    files = list(dict.fromkeys(file for path in named for file in content_files(path)))
    stats = [file.stat() for file in files]
    by_content = sum(stat.st_size for stat in stats) <= HASHED_BYTES
    for file, stat in zip(files, stats, strict=True):
        shown = file.relative_to(root) if file.is_relative_to(root) else file
        digest.update(f"\n{shown.as_posix()}\n{stat.st_size}\n".encode())
        digest.update(_content(file) if by_content else str(stat.st_mtime_ns).encode())
    return digest.hexdigest()[:32]


def _content(file: Path) -> bytes:
    try:
        return read_bytes(file)
    except OSError:  # A file in a folder: whoever decodes it reports it.
        return b""
