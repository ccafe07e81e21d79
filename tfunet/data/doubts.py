"""What training can use in a data set, but may be a mistake. Imports no TensorFlow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from tfunet.data.arrays import SIDES
from tfunet.data.cached_cases import CachedCases
from tfunet.data.class_lines import MOST_SHARE, dice_everywhere
from tfunet.data.defects import SHOWN_DEFECTS, Defect, lines_by_cause
from tfunet.data.formats.units import sizes_in_words
from tfunet.data.source import DataSource
from tfunet.data.split import GROUP, Split

# Pixel sizes that differ by a larger factor need target_pixel_size.
SAME_SPACING = 1.1


@final
@dataclass(frozen=True, kw_only=True)
class CaseLook:
    """What a case looks like.

    Args:
        case_id: Its name.
        file: The file to name in messages.
        side: "train" or "validation"; empty without a split.
        label_pixels: Pixels of each label from 1 in its mask.
        num_pixels: All pixels of its mask.
        constant: Channels in which all pixels have one value, to words for that.
        content: Hash of the pixels.
        spacing: Pixel size along its axes as training sees it, where known.
        notes: What its files show.
    """

    case_id: str
    file: str
    side: str
    label_pixels: tuple[int, ...]
    num_pixels: int
    constant: dict[int, str]
    content: str
    spacing: tuple[float, ...] | None
    notes: tuple[Defect, ...]


def doubts(source: DataSource, cases: Sequence[CaseLook]) -> tuple[list[Defect], list[Defect]]:
    """Return the defects of the cases together, and what else may be a mistake.

    Defects are images on both sides of the split, and classes that no case has.
    """
    leaks, copies = _duplicates(cases)
    warnings = [*source.warnings, *copies, *_divided(source, cases), *_swapped(source, cases)]
    for case in cases:
        warnings += case.notes
        if not source.targets and not any(case.label_pixels):
            warnings.append(Defect(file=case.file, what="its mask is empty", case_id=case.case_id))
        for channel, words in case.constant.items():
            what = f"every pixel of channel {channel} {words}"
            warnings.append(Defect(file=case.file, what=what, case_id=case.case_id))
    absent = _absent(source, cases)
    leaks += [Defect(file=source.name, what=what) for what in absent.values()]
    for side in sorted({case.side for case in cases}):
        present = np.any([case.label_pixels for case in cases if case.side == side], axis=0)
        for label, name in source.label_names().items():
            if not present[label - 1] and label not in absent:
                where = f"no case of {side}" if side else "no case"
                warnings.append(Defect(file=source.name, what=f"{where} has the class {name}"))
    spacings = np.array([case.spacing for case in cases if case.spacing is not None])
    if len(spacings) and (spacings.max(0) > SAME_SPACING * spacings.min(0)).any():
        ends = " to ".join(map(sizes_in_words, (spacings.min(0), spacings.max(0))))
        what = f"pixel sizes from {ends}; target_pixel_size= resamples them to one"
        warnings.append(Defect(file=source.name, what=what))
    return leaks, warnings


def check_classes(source: DataSource, cached: CachedCases, split: Split) -> None:
    """Raise ValueError for classes of which no case in the split has a pixel, if all are known."""
    if not cached.is_known:
        return
    absent = _absent(source, _looks(source, cached, split))
    if absent:
        raise ValueError(f"The data set {source.name!r} has a defect: {' '.join(absent.values())}")


def _absent(source: DataSource, cases: Sequence[CaseLook]) -> dict[int, str]:
    """Return what to do about each label that no case has anywhere."""
    if not cases or source.targets:
        return {}
    present = np.any([case.label_pixels for case in cases], axis=0)
    return {
        label: f"no case has a pixel of the class {name}: nothing can be learnt or scored. Correct "
        "its value, colour or threshold, or leave the class out. For a first try with some of the "
        "images, add one with this class, or leave the class out until then."
        for label, name in source.label_names().items()
        if not present[label - 1]
    }


def lines_of_doubt(source: DataSource, cached: CachedCases, split: Split) -> list[str]:
    """Return what may be a mistake in decoded cases, in words; the first 20, and their number."""
    if not cached.is_known:
        return []
    leaks, warnings = doubts(source, _looks(source, cached, split))
    lines = lines_by_cause([*leaks, *warnings])
    if len(lines) > SHOWN_DEFECTS:
        more = f"{len(lines) - SHOWN_DEFECTS} more: 'tfunet data check' lists all"
        lines = [*lines[:SHOWN_DEFECTS], more]
    return lines


def _looks(source: DataSource, cached: CachedCases, split: Split) -> list[CaseLook]:
    """Return what decoding showed of the cases in the split, as far as they are decoded."""
    return [
        CaseLook(
            case_id=source.case_ids[index],
            file=source.files[index] if source.files else source.case_ids[index],
            side=side,
            label_pixels=signs.label_pixels[1:],
            num_pixels=math.prod(cached.extents[index]),
            constant=dict.fromkeys(signs.constant, "has the same value"),
            content=signs.content,
            spacing=source.spacings[index] if source.spacings else None,
            notes=signs.notes,
        )
        for side in SIDES
        for index in getattr(split, side)
        if (signs := cached.signs(index)) is not None
    ]


def _swapped(source: DataSource, cases: Sequence[CaseLook]) -> list[Defect]:
    """Return a warning where the only class has most pixels, and may be the background."""
    counts = [(case.label_pixels[0], case.num_pixels) for case in cases if source.swapped]
    pixels, all_pixels = map(sum, zip(*counts, strict=True)) if counts else (0, 0)
    if pixels <= MOST_SHARE * all_pixels:
        return []
    scored = [case for case in cases if case.side == "validation"] or list(cases)
    dice = np.mean([dice_everywhere(case.label_pixels[0] / case.num_pixels) for case in scored])
    where = "the validation cases" if scored[0].side == "validation" else "these cases"
    what = (
        f"the class {source.label_names()[1]} has {pixels / all_pixels:.0%} of all pixels: a "
        f"network that predicts it everywhere has a Dice of {dice:.3f} in {where}. If the other "
        f"pixels are what you look for, {source.swapped}"
    )
    return [Defect(file=source.name, what=what)]


def _divided(source: DataSource, cases: Sequence[CaseLook]) -> list[Defect]:
    """Return a warning where names tell of patients, and the split divides the images of one."""
    if source.groups != source.case_ids:
        return []
    first: dict[str, CaseLook] = {}
    for case in cases:
        match = GROUP.fullmatch(case.case_id)
        other = case if match is None else first.setdefault(match[1], case)
        if match is not None and other.side != case.side:
            what = (
                f"by their names, {other.case_id} ({other.side}) and {case.case_id} ({case.side}) "
                f"may both be of {match[1]}: validation would score what training knows. Put "
                "{group} where its name stands in the pattern of the images, or name a column of "
                "groups"
            )
            return [Defect(file=source.name, what=what)]
    return []


def _duplicates(cases: Sequence[CaseLook]) -> tuple[list[Defect], list[Defect]]:
    """Return copies of earlier cases: those across the split, and those on one side."""
    first: dict[str, CaseLook] = {}
    across, on_one_side = [], []
    for case in cases:
        original = first.setdefault(case.content, case)
        if original is case:
            continue
        what = f"has the same pixels as {original.file}"
        if original.side == case.side:
            what += ", which then counts twice. Remove one of them."
            on_one_side.append(Defect(file=case.file, what=what, case_id=case.case_id))
        else:
            what += (
                f", and they are on both sides of the split ({case.side}, {original.side}): "
                "validation would score training data. Remove one, or give both the same group."
            )
            across.append(Defect(file=case.file, what=what, case_id=case.case_id))
    return across, on_one_side
