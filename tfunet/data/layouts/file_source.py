"""A data set from lists of image and mask files. Imports no TensorFlow."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.defects import BadFileError, Defect, DefectsError
from tfunet.data.image_files import Header, content_files, read_header, read_image
from tfunet.data.layouts.case_files import Case
from tfunet.data.layouts.label_mapping import Labelling, named_regions
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.lazy_image import cuts, joined, open_image, open_mask, resized
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
from tfunet.data.source import CaseParts, DataSource, RawCase

# Above it, reading all files at every start would take longer than it is worth.
HASHED_BYTES = 256 * 2**20
# A decoded image of more is read part by part, where its format allows it.
LARGE_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a data set.

    Args:
        root: The folder; files are relative to it, or absolute.
        cases: Those whose files are all there.
        defects: What is wrong with the others.
        found: How many files there are, in words.
    """

    root: Path
    cases: Sequence[Case]
    defects: Sequence[Defect]
    found: str


def open_files(
    listing: Listing,
    labels: Labelling,
    sizes: PixelSizes,
    *,
    name: str | None = None,
    regions: Mapping[str, Sequence[str]] | None = None,
    intensity: str | Sequence[float] | Mapping[str, Sequence[float]] = "zscore",
    grey: bool = False,
    axes: str | None = None,
    patch: Sequence[int] | None = None,
) -> DataSource:
    """Open a data set from its files; only their headers are read here.

    Args:
        listing: The files.
        labels: How the values in the masks become labels.
        sizes: Pixel sizes, as they are and as they shall be.
        name: As in `tfunet.data.layouts.folder.open_folder`, and so are all that follow.

    Raises DefectsError where no case is left, and ValueError for wrong options.
    """
    root = listing.root
    name = name or root.resolve().name
    region_labels = named_regions(regions, labels.names)
    scale = check_intensity(intensity)
    _check_axes(axes)
    opened, defects = _open(listing, grey, axes, compare=sizes.from_headers)
    defects = [*listing.defects, *defects]
    spacings, wrong = sizes.of([one.case for one in opened], [one.image for one in opened])
    defects += wrong
    bad = {one.case_id for one in defects}
    usable = [
        (one, pair)
        for one, pair in zip(opened, spacings, strict=True)
        if one.case.case_id not in bad
    ]
    if not usable:
        raise DefectsError(name, defects, listing.found)
    opened = [one for one, _ in usable]
    cases = [one.case for one in opened]
    target = [
        resampled_shape(one.image.shape, *pair) if pair else one.image.shape for one, pair in usable
    ]

    def pixels(index: int) -> tuple[np.ndarray, np.ndarray]:
        case = cases[index]
        images = [read_image(root / file, grey=grey, axes=axes) for file in case.images]
        image = np.concatenate(images, -1) if len(images) > 1 else images[0]
        mask = labels.read([root / file for file in case.masks], axes=axes)
        if mask.shape != image.shape[:-1]:
            raise BadFileError(
                root / case.masks[0],
                f"the mask has shape {mask.shape}, its image {image.shape[:-1]}.",
            )
        return image, mask

    def read(index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = pixels(index)
        image = normalise(resize_linear(image, target[index]), scale)
        return image, resize_nearest(mask, target[index])

    def read_parts(index: int) -> CaseParts | None:
        case = cases[index]
        is_large = math.prod(target[index]) * opened[0].image.channels * 4 >= LARGE_BYTES
        # Percentiles need the whole image.
        if not is_large or isinstance(scale, Mapping):
            return None
        stored = joined([open_image(root / file, grey=grey, axes=axes) for file in case.images])
        paths = [root / file for file in case.masks]
        masks = [open_mask(path, colours=labels.colours, axes=axes) for path in paths]
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

    def raw(index: int) -> RawCase:
        image, mask = pixels(index)
        one, pair = usable[index]
        case = one.case
        return RawCase(
            image=image,
            mask=mask,
            file=case.images[0],
            image_dtype=one.image.dtype,
            mask_dtype=one.mask_dtype,
            spacing=pair[0] if pair else one.image.spacing,
            target=pair[1] if pair else None,
            image_files=case.images,
        )

    settings = {
        "version": PREPROCESS_VERSION,
        "intensity": scale,
        "grey": grey,
        "axes": axes,
        "labels": [
            *(labels.names, labels.values and sorted(labels.values.items())),
            *(labels.threshold, labels.colours),
        ],
        "shapes": target,
    }
    return DataSource(
        name=name,
        case_ids=tuple(case.case_id for case in cases),
        groups=tuple(case.group for case in cases),
        num_classes=len(labels.names) + 1,
        channels=opened[0].image.channels,
        regions=region_labels,
        patch=_patch(patch, target),
        fingerprint=_fingerprint(root, cases, settings),
        read=read,
        read_parts=read_parts,
        raw=raw,
        root=root,
        defects=tuple(defects),
        found=listing.found,
        preparation={
            "num_files": len(cases[0].images),
            "intensity": scale,
            "grey": grey,
            "axes": axes,
            # A file or a table with sizes knows the images of the training, not others.
            "pixel_size": sizes.fixed,
            "target_pixel_size": sizes.target,
        },
    )


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A case with what its files' headers say; the channels are those of all image files."""

    case: Case
    image: Header
    mask_dtype: str


def _open(
    listing: Listing, grey: bool, axes: str | None, *, compare: bool
) -> tuple[list[_Opened], list[Defect]]:
    """Read the headers of all files; return the cases that can be used, and the defects."""
    opened: list[_Opened] = []
    defects: list[Defect] = []
    for case in listing.cases:
        headers: list[Header] = []
        wrong: list[Defect] = []
        for number, file in enumerate([*case.images, *case.masks]):
            try:
                mask = number >= len(case.images)
                headers.append(read_header(listing.root / file, axes=axes, mask=mask))
            except BadFileError as error:
                wrong.append(error.defect(case.case_id, listing.root))
        if not wrong:
            wrong = _disagreements(case, headers, compare)
        defects += wrong
        if not wrong:
            images = headers[: len(case.images)]
            counts = [1 if grey and one.channels == 3 else one.channels for one in images]
            opened.append(
                _Opened(
                    case=case,
                    image=replace(images[0], channels=sum(counts)),
                    mask_dtype=headers[-1].dtype,
                )
            )
    return opened, defects + _unlike(opened)


def _disagreements(case: Case, headers: Sequence[Header], compare: bool) -> list[Defect]:
    """Return a defect for each file of a case that does not lie on its first image's pixels."""
    defects = []
    first = headers[0]
    for file, header in zip([*case.images, *case.masks][1:], headers[1:], strict=True):
        if header.shape != first.shape:
            what = (
                f"has shape {header.shape}, and its image {case.images[0]} {first.shape}; both "
                "must have the same pixels: crop or export them alike"
            )
        else:
            what = misplaced(first, header) if compare else ""
        if what:
            defects.append(Defect(file=file, what=what, case_id=case.case_id))
    return defects


def misplaced(image: Header, other: Header) -> str:
    """Say how a file's pixels lie elsewhere than those of its image; "" where they do not.

    They do if a corner lies more than half a pixel away, by the positions that both headers
    state, or if the stated pixel sizes differ by more than 1 %.
    """
    advice = (
        "Resample it onto its image, or mend its header (pixel_size= and target_pixel_size= "
        "overrule headers)"
    )
    if image.affine is not None and other.affine is not None:
        ends = product(*((0, length - 1) for length in image.shape))
        corners = np.array([(*corner, 0, 0)[:3] for corner in ends], float)
        change = np.asarray(other.affine) - np.asarray(image.affine)
        distance = np.linalg.norm(corners @ change[:3, :3].T + change[:3, 3], axis=1).max()
        pixel = np.linalg.norm(np.asarray(image.affine)[:3, :3], axis=0).min()
        if distance <= pixel / 2:
            return ""
        if image.spacing and other.spacing and np.allclose(image.spacing, other.spacing, 1e-2):
            return f"its header puts it up to {distance:g} from its image. {advice}"
    if not image.spacing or not other.spacing or np.allclose(image.spacing, other.spacing, 1e-2):
        return ""
    sizes = [" x ".join(f"{one:g}" for one in header.spacing or ()) for header in (other, image)]
    return f"has pixels of {sizes[0]}, and its image of {sizes[1]}. {advice}"


def _unlike(opened: list[_Opened]) -> list[Defect]:
    """Take away each case whose image is of another kind than most; return a defect for it."""
    kinds = [(len(one.image.shape), one.image.channels) for one in opened]
    if len(set(kinds)) < 2:
        return []
    usual = max(sorted(set(kinds)), key=kinds.count)
    defects = [
        Defect(
            file=one.case.images[0],
            what=f"{kind[0]}D with {kind[1]} channels, the other images {usual[0]}D with "
            f"{usual[1]}"
            + ("; grey = true makes colours one channel" if 3 in (kind[1], usual[1]) else ""),
            case_id=one.case.case_id,
        )
        for one, kind in zip(opened, kinds, strict=True)
        if kind != usual
    ]
    opened[:] = [one for one, kind in zip(opened, kinds, strict=True) if kind == usual]
    return defects


def _check_axes(axes: str | None) -> None:
    if axes is not None and (
        not {"y", "x"} <= set(axes) <= set("zyxc") or len(set(axes)) < len(axes)
    ):
        raise ValueError(
            f"axes={axes!r}; allowed: y and x, with z for planes and c for channels, each once, "
            "in the order of the files' arrays, such as 'cyx'."
        )


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
    """Hash the settings and the files: their content, or sizes and times above 256 MiB in all."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for case in cases:
        digest.update(json.dumps([case.images, case.masks]).encode())
    named = [root / file for case in cases for file in (*case.images, *case.masks)]
    files = list(dict.fromkeys(file for one in named for file in content_files(one)))
    stats = [file.stat() for file in files]
    by_content = sum(stat.st_size for stat in stats) <= HASHED_BYTES
    for file, stat in zip(files, stats, strict=True):
        shown = file.relative_to(root) if file.is_relative_to(root) else file
        digest.update(f"\n{shown.as_posix()}\n{stat.st_size}\n".encode())
        digest.update(_content(file) if by_content else str(stat.st_mtime_ns).encode())
    return digest.hexdigest()[:32]


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except PermissionError:  # A part of a folder; whoever decodes it names it.
        return b""
