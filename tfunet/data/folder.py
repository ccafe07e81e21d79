"""A data set from a folder of image and mask files. Imports no TensorFlow."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.check import refuse
from tfunet.data.labels import labelling, named_regions
from tfunet.data.lazy_image import cuts, joined, open_image, open_mask, resized
from tfunet.data.pairs import Case, pair
from tfunet.data.pixel_size import PixelSizes
from tfunet.data.preprocess import (
    PREPROCESS_VERSION,
    check_intensity,
    nearest,
    normalise,
    resampled_shape,
    resize_linear,
    resize_nearest,
    statistics_for,
)
from tfunet.data.readers import Header, read_header, read_image
from tfunet.data.source import CaseParts, DataSource
from tfunet.data.tables import Table

# Above it, reading all files at every start would take longer than it is worth.
HASHED_BYTES = 256 * 2**20
# A decoded image of more is read part by part, where its format allows it.
LARGE_BYTES = 256 * 2**20


def open_folder(
    *,
    root: str,
    images: str | Sequence[str],
    masks: str | Mapping[str, str],
    classes: Mapping[str, int | Sequence[int]] | None = None,
    threshold: float | None = None,
    regions: Mapping[str, Sequence[str]] | None = None,
    table: Mapping[str, Any] | None = None,
    pixel_size: float | Sequence[float] | Mapping[str, str] | None = None,
    target_pixel_size: float | Sequence[float] | None = None,
    intensity: str | Sequence[float] = "zscore",
    grey: bool = False,
    patch: Sequence[int] | None = None,
    name: str | None = None,
) -> DataSource:
    """Open the images and masks of a folder; docs/data.md shows every option at work.

    Args:
        root: The folder; `~` and environment variables are expanded, and a relative one starts
            at the current folder.
        images: Pattern of the images, relative to `root`, such as 'sub-{group}/{case}.png'; or
            several, whose files become channels.
        masks: Pattern of the mask of each image, or class name to pattern where each class has
            a file (in an overlap the later class wins).
        classes: Class name to its value or values in a single mask file. 'background' is 0
            unless named here.
        threshold: With a file for each class: the class is where the value is above.
        regions: Region name to class names. By default one for each class.
        table: CSV or TSV with a row for each case: `file`, `key` (the column with the case ids),
            and `group` (a column) and `keep` (column to the values of the rows to use).
        pixel_size: A number, one for each axis, {file = PATTERN, key = NAME} for JSON files, or
            {column = NAME} of `table`. By default what a NIfTI header says.
        target_pixel_size: Resample to it, in the same unit.
        intensity: 'zscore', 'none' or (low, high): see `tfunet.data.preprocess.normalise`.
        grey: Turn colour images into their luminance.
        patch: What training sees. By default the median shape, at most 256 (2D) or 64 (3D).
        name: For messages and records. By default the folder's.

    Raises:
        ValueError: For wrong options, and for defects of the files: all of them in one message.
            Only the files' headers are read here; `tfunet.data.check.check` reads all.
    """
    folder = _folder(root)
    name = name or folder.resolve().name
    labels = labelling(masks, classes, threshold)
    region_labels = named_regions(regions, labels.names)
    scale = check_intensity(intensity)
    patterns = [images] if isinstance(images, str) else list(images)
    rows = Table(folder, table) if table is not None else None
    sizes = PixelSizes(folder, pixel_size, target_pixel_size, patterns, rows)

    cases, defects, numbers = pair(folder, patterns, labels.patterns)
    if rows is not None:
        cases, wrong = rows.select(cases)
        defects += wrong
    headers, wrong = _headers(folder, cases, grey)
    defects += wrong
    spacings, wrong = sizes.of(cases, headers)
    refuse(name, defects + wrong, numbers)

    target = [
        resampled_shape(header.shape, *spacing) if spacing else header.shape
        for header, spacing in zip(headers, spacings, strict=True)
    ]

    def read(index: int) -> tuple[np.ndarray, np.ndarray]:
        case = cases[index]
        image = np.concatenate([read_image(folder / file, grey=grey) for file in case.images], -1)
        mask = labels.read([folder / file for file in case.masks])
        if mask.shape != image.shape[:-1]:
            raise ValueError(
                f"{folder / case.masks[0]}: the mask has shape {mask.shape}, its image "
                f"{image.shape[:-1]}."
            )
        image = normalise(resize_linear(image, target[index]), scale)
        return image, resize_nearest(mask, target[index])

    def read_parts(index: int) -> CaseParts | None:
        case = cases[index]
        if math.prod(target[index]) * headers[0].channels * 4 < LARGE_BYTES:
            return None
        stored = joined([open_image(folder / file, grey=grey) for file in case.images])
        paths = [folder / file for file in case.masks]
        masks = [open_mask(path) for path in paths]
        if not all(one.by_parts for one in (stored, *masks)):
            return None
        image = resized(stored, target[index])

        def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            statistics = statistics_for(scale, image.parts())
            rows = nearest(stored.shape[0], image.shape[0])
            seen: list[set[int]] = [set() for _ in paths]
            for first, last in cuts(image.shape, image.channels):
                start, stop = (first, *[0] * (len(image.shape) - 1)), (last, *image.shape[1:])
                top, bottom = int(rows[first]), int(rows[last - 1]) + 1
                box = (top, *start[1:]), (bottom, *stored.shape[1:])
                mask = labels.of(paths, (one.read(*box) for one in masks), seen)
                mask = mask.take(rows[first:last] - top, 0)
                pixels = normalise(image.read(start, stop), scale, statistics)
                yield pixels, resize_nearest(mask, pixels.shape[:-1])

        return CaseParts(shape=image.shape, parts=parts())

    pixels = {
        "version": PREPROCESS_VERSION,
        "intensity": scale,
        "grey": grey,
        "labels": [labels.names, labels.values and sorted(labels.values.items()), labels.threshold],
        "shapes": target,
    }
    return DataSource(
        name=name,
        case_ids=tuple(case.case_id for case in cases),
        groups=tuple(case.group for case in cases),
        num_classes=len(labels.names) + 1,
        channels=headers[0].channels,
        regions=region_labels,
        patch=_patch(patch, target),
        fingerprint=_fingerprint(folder, cases, pixels),
        read=read,
        read_parts=read_parts,
    )


def _folder(root: str) -> Path:
    path = Path(os.path.expandvars(root)).expanduser()
    if path.is_dir():
        return path
    if "$" in str(path):
        raise ValueError(f"root={root!r} names an environment variable that is not set.")
    what = "is a file" if path.exists() else "does not exist"
    raise ValueError(
        f"root={root!r} {what}; a folder is needed. A relative one starts at the current folder, "
        f"{Path.cwd()}."
    )


def _headers(root: Path, cases: Sequence[Case], grey: bool) -> tuple[list[Header], list[str]]:
    """Return what each case's image is, from its files' headers, and one line for each defect."""
    headers, defects = [], []
    for case in cases:
        try:
            parts = [read_header(root / file) for file in case.images]
            masks = [read_header(root / file) for file in case.masks]
        except ValueError as error:
            defects.append(str(error))
            continue
        if grey:
            parts = [
                replace(one, channels=1 if one.channels == 3 else one.channels) for one in parts
            ]
        for file, other in zip([*case.images, *case.masks], [*parts, *masks], strict=True):
            if other.shape != parts[0].shape:
                defects.append(
                    f"{file}: has shape {other.shape}, and its image {case.images[0]} "
                    f"{parts[0].shape}"
                )
        headers.append(replace(parts[0], channels=sum(one.channels for one in parts)))
    if not defects:
        defects = _unlike(cases, headers)
    return headers, defects


def _unlike(cases: Sequence[Case], headers: Sequence[Header]) -> list[str]:
    """Return a line for each case whose image is of another kind than most."""
    kinds = [(len(header.shape), header.channels) for header in headers]
    if len(set(kinds)) < 2:
        return []
    usual = max(sorted(set(kinds)), key=kinds.count)
    return [
        f"{case.images[0]}: {kind[0]}D with {kind[1]} channels, the other images {usual[0]}D with "
        f"{usual[1]}"
        + ("; grey = true makes colours one channel" if 3 in (kind[1], usual[1]) else "")
        for case, kind in zip(cases, kinds, strict=True)
        if kind != usual
    ]


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


def _fingerprint(root: Path, cases: Sequence[Case], pixels: Mapping[str, Any]) -> str:
    """Hash the settings and the files: their content, or sizes and times above 256 MiB in all."""
    digest = hashlib.sha256(json.dumps(pixels, sort_keys=True).encode())
    files = [file for case in cases for file in (*case.images, *case.masks)]
    stats = [(root / file).stat() for file in files]
    by_content = sum(stat.st_size for stat in stats) <= HASHED_BYTES
    for file, stat in zip(files, stats, strict=True):
        digest.update(f"\n{file}\n{stat.st_size}\n".encode())
        digest.update((root / file).read_bytes() if by_content else str(stat.st_mtime_ns).encode())
    return digest.hexdigest()[:32]
