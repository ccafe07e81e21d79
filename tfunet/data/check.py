"""Reads every case of a data set once, and says what is in it and what is wrong. No TensorFlow."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfunet.data.defects import BadFileError, Defect, DefectsError
from tfunet.data.source import DataSource, RawCase
from tfunet.data.split import SIDES, Split

# Pixel sizes that differ by more ask for target_pixel_size.
SAME_SPACING = 1.1


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """What a case holds before preprocessing.

    Args:
        case_id: Its name.
        file: The file to name in messages.
        side: "train" or "validation"; empty without a split.
        shape: Spatial shape.
        image_dtype: Type of the stored pixels.
        mask_dtype: Likewise of the mask.
        spacing: Pixel size along `shape`, where it is known.
        target: Pixel size that it is resampled to, where it is.
        low: Smallest intensity of each channel.
        mean: Mean of each channel.
        high: Greatest intensity of each channel.
        label_pixels: Pixels of each label, background first.
        content: Hash of the pixels.
    """

    case_id: str
    file: str
    side: str
    shape: tuple[int, ...]
    image_dtype: str
    mask_dtype: str
    spacing: tuple[float, ...] | None
    target: tuple[float, ...] | None
    low: tuple[float, ...]
    mean: tuple[float, ...]
    high: tuple[float, ...]
    label_pixels: tuple[int, ...]
    content: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a data set holds.

    Args:
        name: The data set.
        num_cases: Cases whose files were found and could be opened.
        found: How many files were found, in words, where no case could be opened.
        label_names: A name for each label, background first.
        cases: Those that training can use.
        defects: What training cannot use.
        warnings: What training can use, and may not be meant.
    """

    name: str
    num_cases: int
    found: str = ""
    label_names: tuple[str, ...]
    cases: tuple[CaseFacts, ...]
    defects: tuple[Defect, ...]
    warnings: tuple[Defect, ...]

    @classmethod
    def of_nothing(cls, error: DefectsError) -> "Report":
        """Return the report of a data set that has no case that can be opened."""
        return cls(
            name=error.name,
            num_cases=0,
            found=error.found,
            label_names=(),
            cases=(),
            defects=error.defects,
            warnings=(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON knows it."""
        return asdict(self)


def check(
    source: DataSource,
    split: Split | None = None,
    *,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Report:
    """Read every case once; `progress` wraps the indices, as tqdm does."""
    cases: list[CaseFacts] = []
    defects = list(source.defects)
    sides = {index: side for side in SIDES for index in getattr(split, side, ())}
    for index in progress(range(len(source.case_ids))):
        case_id = source.case_ids[index]
        try:
            raw = raw_case(source, index)
        except BadFileError as error:
            defects.append(error.defect(case_id, source.root))
        except (ValueError, OSError) as error:
            defects.append(Defect(file=case_id, what=str(error), case_id=case_id))
        else:
            wrong = case_defects(source, raw.image, raw.mask)
            defects += [Defect(file=raw.file, what=what, case_id=case_id) for what in wrong]
            if not wrong:
                cases.append(_facts(source, case_id, raw, sides.get(index, "")))
    copies, warnings = _duplicates(cases)
    return Report(
        name=source.name,
        num_cases=len(source.case_ids),
        label_names=("background", *source.label_names().values()),
        cases=tuple(cases),
        defects=(*defects, *copies),
        warnings=(*warnings, *_warnings(source, cases)),
    )


def case_defects(source: DataSource, image: np.ndarray, mask: np.ndarray) -> list[str]:
    """Return what is wrong with a case that was read, one line a defect."""
    found = []
    if image.dtype != np.float32 or mask.dtype != np.uint8:
        found.append(
            f"image of type {image.dtype} and mask of type {mask.dtype}; needed: float32 and uint8."
        )
    if image.ndim != len(source.patch) + 1 or image.shape[-1] != source.channels:
        spatial = ", ".join(["height", "width", "depth"][: len(source.patch)])
        found.append(f"image of shape {image.shape}; needed: ({spatial}, {source.channels}).")
    if mask.shape != image.shape[:-1]:
        found.append(f"mask of shape {mask.shape} for an image of shape {image.shape[:-1]}.")
    if not np.isfinite(image).all():
        found.append("the image holds NaN or infinity.")
    if mask.size and int(mask.max()) >= source.num_classes:
        found.append(
            f"labels out of range: up to {int(mask.max())}; allowed: 0 to {source.num_classes - 1}."
        )
    return found


def report_text(report: Report) -> str:
    """Return the report for a person, in a screenful where nothing is wrong."""
    number = _count(report.num_cases, "case")
    if not report.num_cases:
        number += f" that can be used{f', of {report.found}' if report.found else ''}"
    lines = [f"{report.name}: {number}", *_summary(report)]
    for title, found in (("warning", report.warnings), ("defect", report.defects)):
        lines += ["", _count(len(found), title) + (":" if found else "")]
        lines += [f"  {one}" for one in found]
    return "\n".join(lines)


def raw_case(source: DataSource, index: int) -> RawCase:
    """Return a case before preprocessing, or as its code made it."""
    if source.raw is not None:
        return source.raw(index)
    image, mask = source.read(index)
    return RawCase(
        image=image,
        mask=mask,
        file=source.case_ids[index],
        image_dtype=str(image.dtype),
        mask_dtype=str(mask.dtype),
    )


def _facts(source: DataSource, case_id: str, raw: RawCase, side: str) -> CaseFacts:
    axes = tuple(range(raw.image.ndim - 1))
    means = raw.image.mean(axes, dtype=np.float64)
    counts = np.bincount(raw.mask.ravel(), minlength=source.num_classes)
    content = hashlib.blake2b(repr(raw.image.shape).encode(), digest_size=16)
    content.update(np.ascontiguousarray(raw.image).data)
    return CaseFacts(
        case_id=case_id,
        file=raw.file,
        side=side,
        shape=raw.mask.shape,
        image_dtype=raw.image_dtype,
        mask_dtype=raw.mask_dtype,
        spacing=raw.spacing,
        target=raw.target,
        low=tuple(map(float, raw.image.min(axes))),
        mean=tuple(map(float, means)),
        high=tuple(map(float, raw.image.max(axes))),
        label_pixels=tuple(map(int, counts)),
        content=content.hexdigest(),
    )


def _duplicates(cases: Sequence[CaseFacts]) -> tuple[list[Defect], list[Defect]]:
    """Return the cases that show what an earlier one shows: across the split, and on one side."""
    first: dict[str, CaseFacts] = {}
    across, beside = [], []
    for case in cases:
        other = first.setdefault(case.content, case)
        if other is case:
            continue
        what = f"has the same pixels as {other.file}"
        if other.side == case.side:
            what += ", which then counts twice. Remove one of them."
            beside.append(Defect(file=case.file, what=what, case_id=case.case_id))
        else:
            what += (
                f", and they are on both sides of the split ({case.side}, {other.side}): the "
                "scores would be of training data. Remove one, or give both one group."
            )
            across.append(Defect(file=case.file, what=what, case_id=case.case_id))
    return across, beside


def _warnings(source: DataSource, cases: Sequence[CaseFacts]) -> list[Defect]:
    found = []
    for case in cases:
        if sum(case.label_pixels[1:]) == 0:
            found.append(Defect(file=case.file, what="its mask is empty", case_id=case.case_id))
        for channel, (low, high) in enumerate(zip(case.low, case.high, strict=True)):
            if low == high:
                what = f"every pixel of channel {channel} is {low:g}"
                found.append(Defect(file=case.file, what=what, case_id=case.case_id))
    for side in sorted({case.side for case in cases}):
        counts = np.array([case.label_pixels for case in cases if case.side == side]).sum(0)
        for label, name in source.label_names().items():
            if counts[label] == 0:
                where = f"no case of {side}" if side else "no case"
                found.append(Defect(file=source.name, what=f"{where} has the class {name}"))
    trained = [case.target or case.spacing for case in cases]
    spacings = np.array([one for one in trained if one is not None])
    if len(spacings) and (spacings.max(0) > SAME_SPACING * spacings.min(0)).any():
        ends = " to ".join(_sizes(one) for one in (spacings.min(0), spacings.max(0)))
        what = f"pixel sizes from {ends}; target_pixel_size= makes them one"
        found.append(Defect(file=source.name, what=what))
    return found


def _summary(report: Report) -> list[str]:
    cases = report.cases
    if not cases:
        return []
    shapes = np.array([case.shape for case in cases])
    rows = {"shape": _range(shapes)}
    spacings = [case.spacing for case in cases if case.spacing is not None]
    if spacings:
        rows["pixel size"] = _range(np.array(spacings))
    rows["image type"] = _tally(case.image_dtype for case in cases)
    rows["mask type"] = _tally(case.mask_dtype for case in cases)
    for channel in range(len(cases[0].low)):
        name = "intensity" if len(cases[0].low) == 1 else f"channel {channel}"
        low = min(case.low[channel] for case in cases)
        high = max(case.high[channel] for case in cases)
        means = [case.mean[channel] for case in cases]
        rows[name] = f"{low:g} to {high:g}; means of the cases {min(means):g} to {max(means):g}"
    counts = np.array([case.label_pixels for case in cases])
    for label, name in enumerate(report.label_names):
        share = counts[:, label].sum() / counts.sum()
        rows[f"class {name}"] = (
            f"{share:.2%} of all pixels, in {(counts[:, label] > 0).sum()} cases"
        )
    if cases[0].side:
        rows["split"] = _tally(case.side for case in cases)
    width = max(map(len, rows)) + 2
    return [f"  {name:{width}}{text}" for name, text in rows.items()]


def _range(rows: np.ndarray) -> str:
    low, high = _sizes(rows.min(0)), _sizes(rows.max(0))
    return low if low == high else f"{low} to {high}, median {_sizes(np.median(rows, axis=0))}"


def _sizes(values: Iterable[float]) -> str:
    return " x ".join(f"{value:g}" for value in values)


def _tally(values: Iterable[str]) -> str:
    listed = list(values)
    return ", ".join(f"{value} ({listed.count(value)})" for value in sorted(set(listed)))


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
