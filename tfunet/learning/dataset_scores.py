"""Scores of regions over a data set: means over cases, and all pixels together. No TensorFlow.

Benchmarks of semantic segmentation take the pixels of all images together: IoU of PASCAL VOC
(Everingham et al. 2015, doi.org/10.1007/s11263-014-0733-5) and Cityscapes (Cordts et al. 2016,
arxiv.org/abs/1604.01685).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfunet.learning import scores

COUNTS = ("true_positive", "false_positive", "false_negative")


@dataclass(frozen=True, kw_only=True)
class RegionScores:
    """Scores of a region; NaN where there is nothing to compare.

    Attributes:
        cases: All that were scored.
        present: Cases whose mask has the region.
        empty: Cases with the region neither in the mask nor in the prediction. They score 1.
        dice, iou: Means over all cases.
        dice_where_present, iou_where_present: Means over the cases whose mask has the region.
        dataset_dice, dataset_iou: From the counts of all cases together.
    """

    cases: int
    present: int
    empty: int
    dice: float
    iou: float
    dice_where_present: float
    iou_where_present: float
    dataset_dice: float
    dataset_iou: float


def dataset_score(score: str, counts: np.ndarray) -> np.ndarray:
    """Return "dice" or "iou" for counts (cases, ..., 3) of all cases together.

    NaN for a region that is in no mask and in no prediction.
    """
    total = np.asarray(counts, np.float64).sum(axis=0)
    return np.where(total.sum(axis=-1) > 0, getattr(scores, score)(total), np.nan)


def region_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, RegionScores]:
    """Return the scores of each region from rows with `region` and COUNTS, one for each case."""
    by_region: dict[str, list[list[float]]] = {}
    for row in rows:
        by_region.setdefault(row["region"], []).append([row[name] for name in COUNTS])
    return {region: _scores(np.array(counts, float)) for region, counts in by_region.items()}


def mean_of_defined(values: Iterable[float]) -> float:
    """Return the mean without NaN; NaN if nothing is left."""
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan


def mean_of(found: Mapping[str, RegionScores], score: str) -> float:
    """Return the mean of a score over the regions that have it, such as the mIoU."""
    return mean_of_defined(getattr(its, score) for its in found.values())


def score_rows(found: Mapping[str, RegionScores]) -> list[dict[str, str]]:
    """Return a row of texts for each region, and the means over several of them."""
    named = {
        "Dice": "dice",
        "IoU": "iou",
        "Dice where present": "dice_where_present",
        "IoU where present": "iou_where_present",
        "dataset Dice": "dataset_dice",
        "dataset IoU": "dataset_iou",
    }
    rows = [
        {"region": region, "cases": str(its.cases), "present": str(its.present)}
        | {column: score_text(getattr(its, name)) for column, name in named.items()}
        for region, its in found.items()
    ]
    if len(rows) < 2:
        return rows
    means = {column: score_text(mean_of(found, name)) for column, name in named.items()}
    return [*rows, {"region": "mean", "cases": "", "present": "", **means}]


def score_text(value: float) -> str:
    """Return three decimals; "-" where a score is not defined."""
    return "-" if math.isnan(value) else f"{value:.3f}"


def dataset_iou_line(found: Mapping[str, RegionScores]) -> str:
    """Return the dataset IoU of each region, and their mean if there are several."""
    line = ", ".join(f"{region} {score_text(its.dataset_iou)}" for region, its in found.items())
    mean = mean_of(found, "dataset_iou")
    return f"Dataset IoU: {line}{f'; mIoU {score_text(mean)}' if len(found) > 1 else ''}."


def absent_line(found: Mapping[str, RegionScores]) -> str:
    """Return which means say little, as most of their cases lack the region; "" if none does."""
    absent = [
        f"{its.cases - its.present} of {its.cases} cases have no {region}"
        for region, its in found.items()
        if 2 * its.present < its.cases or 2 * its.empty > its.dice * its.cases
    ]
    if not absent:
        return ""
    return (
        f"{', '.join(absent)}. In the mean over cases, a case without a region scores 1 if none "
        "is predicted there, else 0: see the dataset scores."
    )


def _scores(counts: np.ndarray) -> RegionScores:
    present = counts[:, 0] + counts[:, 2] > 0
    by_case = {name: getattr(scores, name)(counts) for name in ("dice", "iou")}
    return RegionScores(
        cases=len(counts),
        present=int(present.sum()),
        empty=int((counts.sum(axis=1) == 0).sum()),
        **{name: float(values.mean()) for name, values in by_case.items()},
        **{
            f"{name}_where_present": mean_of_defined(values[present].tolist())
            for name, values in by_case.items()
        },
        **{f"dataset_{name}": float(dataset_score(name, counts)) for name in by_case},
    )
