"""A data set from lists of image and mask files. Imports no TensorFlow."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.defects import Defect, DefectsError
from tfunet.data.layouts.case_files import CaseFiles, cases_without_group
from tfunet.data.layouts.encoded_files import encoded_cases
from tfunet.data.layouts.file_reader import FileCase, FileReader
from tfunet.data.layouts.header_checks import axes_by_mask, read_headers
from tfunet.data.layouts.label_mapping import LabelMapping, named_regions
from tfunet.data.layouts.options import FileOptions
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.layouts.unlike_headers import (
    in_usual_unit,
    turned_masks,
    unlike_directions,
    unlike_units,
)
from tfunet.data.no_data import IGNORED
from tfunet.data.opening import content_files
from tfunet.data.preprocess import PREPROCESS_VERSION, check_channels
from tfunet.data.source import DataSource
from tfunet.files.regular import read_bytes

# Above this size, reading all files at every start would take too long.
HASHED_BYTES = 256 * 2**20


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
    cases: Sequence[CaseFiles]
    defects: Sequence[Defect]
    found: str
    warnings: Sequence[Defect] = ()


def open_files(
    listing: Listing, labels: LabelMapping, sizes: PixelSizes, options: FileOptions
) -> DataSource:
    """Open a data set from its files; only their headers are read here.

    Args:
        listing: The files.
        labels: How the values in the masks become labels.
        sizes: Pixel sizes of the cases, and the one to resample to.
        options: What every data set of files has.

    Raises DefectsError where no case is left, and ValueError for wrong options.
    """
    root = listing.root
    region_labels = named_regions(options.regions, labels.names)
    axes = options.axes or axes_by_mask(root, listing.cases)
    options = replace(options, axes=axes, name=options.name or root.resolve().name)
    cases, defects, warnings = _with_headers(listing, sizes, options)
    reader = FileReader(root=root, cases=cases, labels=labels, options=options)
    check_channels(reader.scale, reader.channels)
    ignores = options.fill is not None or labels.ignored is not None
    if ignores and len(labels.names) >= IGNORED:
        raise ValueError(
            f"fill and ignore_label need a free label; allowed: {IGNORED - 1} classes."
        )
    unit = _unit(cases) if sizes.from_headers else ""
    shapes = [case.shape for case in cases]
    return DataSource(
        name=str(options.name),
        case_ids=tuple(case.files.case_id for case in cases),
        groups=tuple(case.files.group for case in cases),
        num_classes=len(labels.names) + 1,
        channels=reader.channels,
        regions=region_labels,
        # nnU-Net names only regions, and its classes are numbers.
        class_names=() if all(map(str.isdigit, labels.names)) else labels.names,
        has_background=labels.has_background,
        patch=_patch(options.patch, shapes),
        fingerprint=_fingerprint(root, [case.files for case in cases], _settings(reader)),
        read=reader.read,
        stored=reader.stored,
        intensity=reader.scale,
        boxes=reader.boxes,
        raw=reader.raw,
        notes=reader.notes,
        files=tuple(case.files.images[0] for case in cases),
        spacings=tuple(case.spacing for case in cases),
        unit=unit,
        shapes=tuple(shapes),
        root=root,
        defects=tuple(defects),
        warnings=tuple(warnings),
        found=listing.found,
        preparation=_preparation(reader, sizes, unit),
        swapped=labels.swapped(),
        ignored=IGNORED if ignores else None,
        in_colour=all(case.headers.image.in_colour for case in cases),
        mask_values=labels.values_of_labels(),
        restore=reader.restore,
        encoded=partial(encoded_cases, reader),
        objects=reader.objects,
    )


def _with_headers(
    listing: Listing, sizes: PixelSizes, options: FileOptions
) -> tuple[list[FileCase], list[Defect], list[Defect]]:
    """Return the cases that can be read, all defects and all warnings."""
    axes, name = options.axes, str(options.name)
    headers, defects = read_headers(
        listing.root,
        listing.cases,
        grey=options.grey,
        axes=axes,
        alpha=options.alpha,
        compare_sizes=sizes.from_headers,
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
        FileCase(headers=header, spacings=pair)
        for header, pair in zip(headers, spacings, strict=True)
        if header.case.case_id not in bad
    ]
    if not cases:
        raise DefectsError(name, defects, listing.found)
    return cases, defects, warnings


def _read_by(reader: FileReader) -> dict[str, Any]:
    """Return the options by which images are read and normalised."""
    names = ("grey", "axes", "alpha", "fill")
    return {"intensity": reader.scale, **{name: getattr(reader.options, name) for name in names}}


def _preparation(reader: FileReader, sizes: PixelSizes, unit: str) -> dict[str, Any]:
    """Return how images were prepared, for the pictures of a prediction."""
    return {
        "num_files": len(reader.cases[0].files.images),
        **_read_by(reader),
        # Pixel sizes from a file or a table are known for the training images only.
        "pixel_size": sizes.fixed,
        "target_pixel_size": sizes.target,
        **({"unit": unit} if sizes.target is not None and unit else {}),
    }


def _settings(reader: FileReader) -> dict[str, Any]:
    """Return all settings that change the pixels of cases."""
    labels, cases = reader.labels, reader.cases
    return {
        "version": PREPROCESS_VERSION,
        **_read_by(reader),
        "labels": [
            *(labels.names, labels.values and sorted(labels.values.items())),
            *(labels.threshold, labels.colours),
        ],
        **({"thresholds": sorted(labels.own_thresholds.items())} if labels.own_thresholds else {}),
        "shapes": [case.shape for case in cases],
        **({} if reader.fill is None else {"ignored": IGNORED}),
        **({} if labels.ignored is None else {"ignore_label": labels.ignored}),
        **({"file_classes": [case.files.mask_labels for case in cases]} if labels.objects else {}),
    }


def _unit(cases: Sequence[FileCase]) -> str:
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


def _fingerprint(root: Path, cases: Sequence[CaseFiles], settings: Mapping[str, Any]) -> str:
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
