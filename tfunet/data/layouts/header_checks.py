"""Checks by their headers that the files of each case, and all cases, fit together.

Imports no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from tfunet.data.defects import BadFileError, Defect
from tfunet.data.formats.container import split_container
from tfunet.data.formats.units import METRES, converted, sizes_in_words
from tfunet.data.image_files import Header, read_header
from tfunet.data.layouts.case_files import CaseFiles
from tfunet.data.opening import has_no_axes
from tfunet.files.remote import fetched_ahead


@dataclass(frozen=True, kw_only=True)
class CaseHeaders:
    """A case whose files fit together.

    Args:
        case: Its files.
        image: Header of the first image file, with the channels of all of them.
        masks: Headers of the mask files.
    """

    case: CaseFiles
    image: Header
    masks: tuple[Header, ...]


def read_headers(
    root: Path,
    cases: Sequence[CaseFiles],
    *,
    grey: bool,
    axes: str | None,
    alpha: str | None,
    compare_sizes: bool,
) -> tuple[list[CaseHeaders], list[Defect]]:
    """Return the cases whose files fit together, and the defects of the others.

    With `compare_sizes` the positions and pixel sizes in the headers must agree too.
    """
    usable: list[CaseHeaders] = []
    defects: list[Defect] = []

    def files(case: CaseFiles) -> list[Path]:
        return [split_container(root / file)[0] for file in (*case.images, *case.masks)]

    for case in fetched_ahead(cases, files, heads=True):
        headers: list[Header] = []
        case_defects: list[Defect] = []
        for number, file in enumerate([*case.images, *case.masks]):
            try:
                is_mask = number >= len(case.images)
                image = headers[0] if is_mask and headers else None
                beside = image.shape if image else None
                header = read_header(
                    root / file,
                    axes=axes,
                    alpha=alpha,
                    mask=is_mask,
                    beside=beside,
                    image=image,
                )
                headers.append(header)
            except BadFileError as error:
                case_defects.append(error.defect(case.case_id, root))
        if not case_defects:
            case_defects = _disagreements(case, headers, compare_sizes)
        defects += case_defects
        if not case_defects:
            images = headers[: len(case.images)]
            channels = sum(
                1 if grey and image.channels == 3 else image.channels for image in images
            )
            in_colour = len(images) == 1 and images[0].in_colour and channels > 1
            image = replace(images[0], channels=channels, in_colour=in_colour)
            masks = tuple(headers[len(case.images) :])
            usable.append(CaseHeaders(case=case, image=image, masks=masks))
    return _of_the_usual_kind(usable, defects)


def axes_by_mask(root: Path, cases: Sequence[CaseFiles]) -> str | None:
    """Return the axes of images in a format without words for them, where the mask tells.

    Rows, columns and colours look like a stack; but then the mask would have as many planes.
    """
    for case in cases[:1]:
        image, mask = root / case.images[0], root / case.masks[0]
        try:
            shape = read_header(image).shape
            plane = read_header(mask, mask=True)
        except BadFileError:
            return None
        is_plane = plane.channels == 1 and plane.shape == shape[:-1]
        if has_no_axes(image) and len(shape) == 3 and is_plane:
            return "yxc"
    return None


def misplaced(image: Header, other: Header) -> str:
    """Say how the pixels of a file lie elsewhere than those of its image; "" where they agree.

    They disagree if a corner is more than half a pixel away by the positions in both headers, or
    if the pixel sizes in the headers differ by more than 1 %.
    """
    advice = (
        "Resample it onto its image, or correct its header (pixel_size= and target_pixel_size= "
        "override headers)"
    )
    other = in_unit(other, image.unit)
    if image.affine is not None and other.affine is not None:
        ends = product(*((0, length - 1) for length in image.shape))
        corners = np.array([(*corner, 0, 0)[:3] for corner in ends], float)
        change = np.asarray(other.affine) - np.asarray(image.affine)
        with np.errstate(invalid="ignore"):  # A header may hold NaN, which is in no place.
            distance = np.linalg.norm(corners @ change[:3, :3].T + change[:3, 3], axis=1).max()
        pixel = np.linalg.norm(np.asarray(image.affine)[:3, : len(image.shape)], axis=0).min()
        if distance <= pixel / 2:
            return ""
        if image.spacing and other.spacing and np.allclose(image.spacing, other.spacing, 1e-2):
            return f"its header puts it up to {distance:g} from its image. {advice}"
    if not image.spacing or not other.spacing or np.allclose(image.spacing, other.spacing, 1e-2):
        return ""
    own, of_image = sizes_in_words(other.spacing), sizes_in_words(image.spacing)
    return f"has pixels of {own}, and its image of {of_image}. {advice}"


def in_unit(header: Header, unit: str) -> Header:
    """Return a header with its sizes in another unit, where both are known."""
    if header.unit == unit or not {header.unit, unit} <= METRES.keys():
        return header
    factor = METRES[header.unit] / METRES[unit]
    affine = None if header.affine is None else np.diag([factor] * 3 + [1.0]) @ header.affine
    sizes = tuple(converted(size, header.unit, unit) for size in header.spacing or ())
    return replace(header, unit=unit, spacing=sizes or None, affine=affine)


def _disagreements(case: CaseFiles, headers: Sequence[Header], compare_sizes: bool) -> list[Defect]:
    """Return a defect for each file of a case whose pixels are not those of its first image."""
    defects = _contradictions(case, headers) if compare_sizes else []
    first = headers[0]
    for file, header in zip([*case.images, *case.masks][1:], headers[1:], strict=True):
        if header.shape != first.shape:
            what = (
                f"has shape {header.shape}, and its image {case.images[0]} has {first.shape}; "
                "both must have the same pixels: crop or export them alike"
                f"{_axes_advice(header.shape, first.shape)}"
                f"{_turned(first, header)}"
            )
        else:
            what = misplaced(first, header) if compare_sizes else ""
        if what:
            defects.append(Defect(file=file, what=what, case_id=case.case_id))
    return defects


def _contradictions(case: CaseFiles, headers: Sequence[Header]) -> list[Defect]:
    """Return a defect for each file that says two things about where its pixels lie."""
    return [
        Defect(
            file=file,
            what=f"makes {header.contradiction}. Correct its header (nibabel: set_sform and "
            "set_qform), or give pixel_size= and target_pixel_size=, which override headers",
            case_id=case.case_id,
        )
        for file, header in zip([*case.images, *case.masks], headers, strict=True)
        if header.contradiction
    ]


def _turned(image: Header, other: Header) -> str:
    """Say that one of two files is turned by a tag, where this exchanges rows and columns."""
    if image.transposed == other.transposed:
        return ""
    whose = "the image" if image.transposed else "this file"
    return (
        f". The header of {whose} has an orientation tag that exchanges rows and columns: if the "
        "other was made without it, remove the tag (exiftool -Orientation=)"
    )


def _axes_advice(mask: tuple[int, ...], image: tuple[int, ...]) -> str:
    """Say which axes an image has, if its last or first axis holds channels by its mask."""
    planes = [shape for shape in (mask, mask[:-1]) if len(shape) == len(image) - 1 >= 2]
    letters = "zyx"[1 - len(image) :]
    for order, others in ((f"{letters}c", image[:-1]), (f"c{letters}", image[1:])):
        if others in planes:
            return f". If an axis of the image holds its channels, say axes = {order!r}"
    return ""


def _of_the_usual_kind(
    cases: list[CaseHeaders], defects: list[Defect]
) -> tuple[list[CaseHeaders], list[Defect]]:
    """Return the cases with the usual number of axes and channels, and a defect for each other."""
    kinds = [(len(case.image.shape), case.image.channels) for case in cases]
    usual = max(sorted(set(kinds)), key=kinds.count, default=None)
    for headers, kind in zip(cases, kinds, strict=True):
        if usual is not None and kind != usual:
            advice = "; grey = true makes colours one channel" if 3 in (kind[1], usual[1]) else ""
            what = (
                f"is {kind[0]}D with {kind[1]} channels, the other images are {usual[0]}D with "
                f"{usual[1]}{advice}"
            )
            case = headers.case
            defects.append(Defect(file=case.images[0], what=what, case_id=case.case_id))
    return [case for case, kind in zip(cases, kinds, strict=True) if kind == usual], defects
