"""Cases whose headers disagree with each other on units and directions. Imports no TensorFlow."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfunet.data.defects import Defect
from tfunet.data.formats.units import METRES
from tfunet.data.image_files import Header
from tfunet.data.layouts.header_checks import CaseHeaders, in_unit
from tfunet.data.opening import has_no_axes

# Where a positive and a negative step along x, y and z lead.
DIRECTIONS = ("RL", "AP", "SI")
SHOWN_CASES = 3


def in_usual_unit(cases: Sequence[CaseHeaders]) -> list[CaseHeaders]:
    """Return the cases with the pixel sizes of their images in the unit that most files state."""
    usual = _usual_unit(cases)
    return [replace(case, image=in_unit(case.image, usual)) for case in cases]


def unlike_units(name: str, cases: Sequence[CaseHeaders]) -> list[Defect]:
    """Return a warning where files state pixel sizes in several units."""
    groups = _grouped(cases, lambda image: image.unit if image.unit in METRES else "")
    if len(groups) < 2:
        return []
    what = f"pixel sizes are in several units: {_shown(groups)}; all are taken in "
    return [Defect(file=name, what=what + _usual_unit(cases))]


def unlike_directions(name: str, cases: Sequence[CaseHeaders]) -> list[Defect]:
    """Return a warning where the axes of volumes lead to different sides of the body."""
    groups = _grouped(cases, directions)
    if len(groups) < 2:
        return []
    what = (
        f"the axes of volumes lead in different directions: {_shown(groups)}. They are read as "
        "they are stored, so the same organ lies turned or mirrored. Store all alike, such as "
        "with nibabel.as_closest_canonical"
    )
    return [Defect(file=name, what=what)]


def turned_masks(cases: Sequence[CaseHeaders]) -> list[Defect]:
    """Return a warning for each mask that may be turned, since its format has other axes.

    NIfTI has x, y, z and others z, y, x. Where all lengths fit both ways, shapes do not tell.
    """
    found = []
    for case in cases:
        image = case.image
        for file, mask in zip(case.case.masks, case.masks, strict=True):
            files = (Path(case.case.images[0]), Path(file))
            fits_both = image.shape == image.shape[::-1] and mask.axes == image.axes[::-1]
            if fits_both and not any(map(has_no_axes, files)):
                orders = [", ".join(header.axes) for header in (mask, image)]
                what = (
                    f"in its format the axes are {orders[0]}, and in that of its image "
                    f"{orders[1]}: is it turned? Store both in one format"
                )
                found.append(Defect(file=file, what=what, case_id=case.case.case_id))
    return found


def directions(header: Header) -> str:
    """Return where each axis of a volume leads, such as "RAS"; "" where its header does not say."""
    if header.affine is None or len(header.shape) != 3:
        return ""
    columns = np.asarray(header.affine)[:3, :3].T
    if not np.isfinite(columns).all() or not np.abs(columns).max(1).all():
        return ""
    axes = np.abs(columns / np.linalg.norm(columns, axis=1)[:, np.newaxis]).argmax(1)
    return "".join(
        DIRECTIONS[axis][int(column[axis] < 0)] for axis, column in zip(axes, columns, strict=True)
    )


def _usual_unit(cases: Sequence[CaseHeaders]) -> str:
    units = [case.image.unit for case in cases if case.image.unit in METRES]
    return max(sorted(set(units)), key=units.count, default="")


def _grouped(
    cases: Sequence[CaseHeaders], kind: Callable[[Header], str]
) -> list[tuple[str, list[str]]]:
    """Return each kind of header with the names of its cases, the most first; "" is none."""
    groups: dict[str, list[str]] = {}
    for case in cases:
        groups.setdefault(kind(case.image), []).append(case.case.case_id)
    groups.pop("", None)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _shown(groups: Sequence[tuple[str, list[str]]]) -> str:
    texts = []
    for kind, names in groups:
        more = ", ..." if len(names) > SHOWN_CASES else ""
        texts.append(f"{kind} in {len(names)} ({', '.join(names[:SHOWN_CASES])}{more})")
    return ", ".join(texts)
