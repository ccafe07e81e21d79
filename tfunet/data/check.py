"""`tfunet data check`: reads every case once, reports facts and defects. No TensorFlow."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfunet.data.arrays import SIDES
from tfunet.data.defects import Defect, DefectsError, by_cause, defect_of, lines_by_cause
from tfunet.data.doubts import CaseLook, doubts
from tfunet.data.formats.units import sizes_in_words
from tfunet.data.preprocess import channel_statistics, pooled_statistics
from tfunet.data.source import DataSource, RawCase
from tfunet.data.split import Split

# Files with one cause that the text names.
NAMED = 10


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
        ignored_pixels: Pixels that count neither in the loss nor in scores.
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
    deviation: tuple[float, ...]
    label_pixels: tuple[int, ...]
    ignored_pixels: int
    content: str


@dataclass(frozen=True, kw_only=True)
class DataReport:
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
    def of_nothing(cls, error: DefectsError) -> "DataReport":
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
    refusal: str = "",
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
    note: Callable[[int], None] = lambda index: None,
) -> DataReport:
    """Read every case; `progress` wraps the indices, as tqdm does, and `note` gets those of use.

    `refusal` says why the data set has no split. It comes after the defects that may be its cause.
    """
    cases: list[CaseFacts] = []
    looks: list[CaseLook] = []
    defects = list(source.defects)
    sides = {index: side for side in SIDES for index in getattr(split, side, ())}
    for index in progress(range(len(source.case_ids))):
        case_id = source.case_ids[index]
        try:
            raw = raw_case(source, index)
        except (ValueError, OSError) as error:
            defects.append(defect_of(error, case_id, source.root))
        else:
            problems = case_defects(source, raw.image, raw.mask)
            defects += [Defect(file=raw.file, what=what, case_id=case_id) for what in problems]
            if not problems:
                cases.append(_facts(source, case_id, raw, sides.get(index, "")))
                looks.append(_look(cases[-1], raw.notes))
                note(index)
    defects += [Defect(file=source.name, what=refusal)] if refusal else []
    copies, warnings = doubts(source, looks)
    # Pixels without data are ignored, too, with fill: then none is no mistake.
    marks = source.ignored is not None and (source.preparation or {}).get("fill") is None
    if marks and cases and not any(case.ignored_pixels for case in cases):
        what = (
            "no mask has the value of pixels to ignore (ignore_label): correct it, or leave it out"
        )
        warnings.append(Defect(file=source.name, what=what))
    return DataReport(
        name=source.name,
        num_cases=len(source.case_ids),
        label_names=() if source.targets else ("background", *source.label_names().values()),
        cases=tuple(cases),
        defects=(*defects, *copies),
        warnings=tuple(warnings),
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
    labels = mask if source.ignored is None else mask[mask != source.ignored]
    if labels.size and int(labels.max()) >= source.num_classes:
        most = source.num_classes - 1
        problems.append(f"labels out of range: up to {int(labels.max())}; allowed: 0 to {most}.")
    return problems


def report_text(report: DataReport) -> str:
    """Return the report as text, which fits a screen if nothing is wrong."""
    number = _count(report.num_cases, "case")
    if not report.num_cases:
        number += f" that can be used{f', of {report.found}' if report.found else ''}"
    lines = [f"{report.name}: {number}", *_summary(report)]
    for title, problems in (("warning", report.warnings), ("defect", report.defects)):
        lines += ["", _count(len(problems), title) + (":" if problems else "")]
        lines += [f"  {line}" for line in lines_by_cause(problems, most=NAMED - 1)]
        if any(len(group) > NAMED for group in by_cause(problems)):
            lines.append("  --json names every file.")
    return "\n".join(lines)


def raw_case(source: DataSource, index: int) -> RawCase:
    """Return a case before preprocessing, or as `read` gives it."""
    if source.raw is not None:
        return source.raw(index)
    image, mask = source.read_case(index)
    return RawCase(
        image=image,
        mask=mask,
        file=source.case_ids[index],
        image_dtype=str(image.dtype),
        mask_dtype=str(mask.dtype),
    )


def _facts(source: DataSource, case_id: str, raw: RawCase, side: str) -> CaseFacts:
    counted = raw.mask != (-1 if source.ignored is None else source.ignored)
    # An image of which no pixel counts has values all the same.
    is_partial = counted.any() and not counted.all()
    pixels = raw.image[counted] if is_partial else raw.image
    axes = tuple(range(pixels.ndim - 1))
    means = pixels.mean(axes, dtype=np.float64)
    counts = np.bincount(raw.mask[counted], minlength=source.num_classes)
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
        low=tuple(map(float, pixels.min(axes))),
        mean=tuple(map(float, means)),
        high=tuple(map(float, pixels.max(axes))),
        deviation=tuple(map(float, channel_statistics([pixels])[1])),
        label_pixels=tuple(map(int, counts)),
        ignored_pixels=int(counted.size - counted.sum()),
        content=content.hexdigest(),
    )


def _look(facts: CaseFacts, notes: tuple[Defect, ...]) -> CaseLook:
    ends = enumerate(zip(facts.low, facts.high, strict=True))
    return CaseLook(
        case_id=facts.case_id,
        file=facts.file,
        side=facts.side,
        label_pixels=facts.label_pixels[1:],
        num_pixels=math.prod(facts.shape),
        constant={channel: f"is {low:g}" for channel, (low, high) in ends if low == high},
        content=facts.content,
        spacing=facts.target or facts.spacing,
        notes=notes,
    )


def _summary(report: DataReport) -> list[str]:
    cases = report.cases
    if not cases:
        return []
    shapes = np.array([case.shape for case in cases])
    rows = {"shape": _range(shapes)}
    spacings = [case.spacing for case in cases if case.spacing is not None]
    if spacings:
        rows["pixel size"] = _range(np.array(spacings))
    rows["image type"] = _tally(case.image_dtype for case in cases)
    if report.label_names:
        rows["mask type"] = _tally(case.mask_dtype for case in cases)
    for channel in range(len(cases[0].low)):
        name = "intensity" if len(cases[0].low) == 1 else f"channel {channel}"
        low = min(case.low[channel] for case in cases)
        high = max(case.high[channel] for case in cases)
        means = [case.mean[channel] for case in cases]
        rows[name] = f"{low:g} to {high:g}; means of the cases {min(means):g} to {max(means):g}"
    training = [case for case in cases if case.side != "validation"] or cases
    if any(sum(case.label_pixels) for case in training):
        rows["statistics"] = _statistics(training)
    counts = np.array([case.label_pixels for case in cases])
    ignored = [case.ignored_pixels for case in cases]
    whole = "the pixels that count" if any(ignored) else "all pixels"
    for label, name in enumerate(report.label_names):
        share = counts[:, label].sum() / max(counts.sum(), 1)
        rows[f"class {name}"] = f"{share:.2%} of {whole}, in {(counts[:, label] > 0).sum()} cases"
    if any(ignored):
        share = sum(ignored) / (sum(ignored) + counts.sum())
        rows["ignored"] = f"{share:.2%} of all pixels, in {np.count_nonzero(ignored)} cases"
    if cases[0].side:
        rows["split"] = _tally(case.side for case in cases)
    width = max(map(len, rows)) + 2
    return [f"  {name:{width}}{text}" for name, text in rows.items()]


def _statistics(cases: Sequence[CaseFacts]) -> str:
    """Return mean and deviation of each channel over all pixels of cases, as an option."""
    statistics = pooled_statistics(
        [sum(case.label_pixels) for case in cases],
        [case.mean for case in cases],
        [case.deviation for case in cases],
    )
    mean_text, deviation_text = (
        ", ".join(f"{value:.6g}" for value in values) for values in statistics
    )
    sides = " of the training cases" if cases[0].side else ""
    pixels = "the pixels that count" if any(case.ignored_pixels for case in cases) else "all pixels"
    return f"{{ mean = [{mean_text}], deviation = [{deviation_text}] }} over {pixels}{sides}"


def _range(rows: np.ndarray) -> str:
    low, high = sizes_in_words(rows.min(0)), sizes_in_words(rows.max(0))
    return (
        low if low == high else f"{low} to {high}, median {sizes_in_words(np.median(rows, axis=0))}"
    )


def _tally(values: Iterable[str]) -> str:
    listed = list(values)
    return ", ".join(f"{value} ({listed.count(value)})" for value in sorted(set(listed)))


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
