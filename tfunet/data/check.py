"""`tfunet data check`: reads every case once, reports facts and defects. No TensorFlow."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfunet.data.defects import BadFileError, Defect, DefectsError
from tfunet.data.source import DataSource, RawCase
from tfunet.data.split import SIDES, Split

# Pixel sizes that differ by a larger factor need target_pixel_size.
SAME_SPACING = 1.1


@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """Facts about a case before preprocessing.

    Args:
        file: The file to name in messages.
        side: "train" or "validation"; empty without a split.
        shape: Spatial shape.
        spacing: Pixel size along `shape`, where known.
        target: Pixel size to resample to, if any.
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
        num_cases: Cases that could be opened.
        found: How many files there are, in words, where no case could be opened.
        label_names: A name for each label, background first.
        defects: Problems because of which training cannot use a file or case.
        warnings: Things that training can use but that may be a mistake.
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
        """Return the report of a data set in which no case can be opened."""
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
        """Return the report as JSON types."""
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
            problems = case_defects(source, raw.image, raw.mask)
            defects += [Defect(file=raw.file, what=what, case_id=case_id) for what in problems]
            if not problems:
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
    problems = []
    if image.dtype != np.float32 or mask.dtype != np.uint8:
        problems.append(
            f"image of type {image.dtype} and mask of type {mask.dtype}; needed: float32 and uint8."
        )
    if image.ndim != len(source.patch) + 1 or image.shape[-1] != source.channels:
        spatial = ", ".join(["height", "width", "depth"][: len(source.patch)])
        problems.append(f"image of shape {image.shape}; needed: ({spatial}, {source.channels}).")
    if mask.shape != image.shape[:-1]:
        problems.append(f"mask of shape {mask.shape} for an image of shape {image.shape[:-1]}.")
    if not np.isfinite(image).all():
        problems.append("the image holds NaN or infinity.")
    if mask.size and int(mask.max()) >= source.num_classes:
        problems.append(
            f"labels out of range: up to {int(mask.max())}; allowed: 0 to {source.num_classes - 1}."
        )
    return problems


def report_text(report: Report) -> str:
    """Return the report as text, which fits a screen if nothing is wrong."""
    number = _count(report.num_cases, "case")
    if not report.num_cases:
        number += f" that can be used{f', of {report.found}' if report.found else ''}"
    lines = [f"{report.name}: {number}", *_summary(report)]
    for title, problems in (("warning", report.warnings), ("defect", report.defects)):
        lines += ["", _count(len(problems), title) + (":" if problems else "")]
        lines += [f"  {problem}" for problem in problems]
    return "\n".join(lines)


def raw_case(source: DataSource, index: int) -> RawCase:
    """Return a case before preprocessing, or as `read` gives it."""
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
    """Return copies of earlier cases: as defects across the split, as warnings on one side."""
    first: dict[str, CaseFacts] = {}
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


def _warnings(source: DataSource, cases: Sequence[CaseFacts]) -> list[Defect]:
    warnings = []
    for case in cases:
        if sum(case.label_pixels[1:]) == 0:
            warnings.append(Defect(file=case.file, what="its mask is empty", case_id=case.case_id))
        for channel, (low, high) in enumerate(zip(case.low, case.high, strict=True)):
            if low == high:
                what = f"every pixel of channel {channel} is {low:g}"
                warnings.append(Defect(file=case.file, what=what, case_id=case.case_id))
    for side in sorted({case.side for case in cases}):
        counts = np.array([case.label_pixels for case in cases if case.side == side]).sum(0)
        for label, name in source.label_names().items():
            if counts[label] == 0:
                where = f"no case of {side}" if side else "no case"
                warnings.append(Defect(file=source.name, what=f"{where} has the class {name}"))
    trained = [case.target or case.spacing for case in cases]
    spacings = np.array([spacing for spacing in trained if spacing is not None])
    if len(spacings) and (spacings.max(0) > SAME_SPACING * spacings.min(0)).any():
        ends = " to ".join(map(_sizes, (spacings.min(0), spacings.max(0))))
        what = f"pixel sizes from {ends}; target_pixel_size= resamples them to one"
        warnings.append(Defect(file=source.name, what=what))
    return warnings


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


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
