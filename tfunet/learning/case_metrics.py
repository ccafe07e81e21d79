"""Metrics of whole cases: surfaces, lesions, volumes. Needs scipy for most; no TensorFlow.

A surface are the voxels of a region with a neighbour outside of it, across a face; beyond the
image is outside. Distances are those between the centres of voxels, in the unit of the pixel size.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import final

import numpy as np

from tfunet.config.case_metrics import PIXELS, UNITS, CaseMetric
from tfunet.learning import scores

WITHOUT_SCIPY = ("dice", "iou", "volume_difference")


def check_library(metrics: Sequence[CaseMetric]) -> None:
    """Raise ValueError if metrics need scipy, and it is not installed."""
    if any(metric.kind not in WITHOUT_SCIPY for metric in metrics):
        _ndimage()


def tolerances(
    metrics: Sequence[CaseMetric], unit: str, *, has_spacing: bool
) -> tuple[CaseMetric, ...]:
    """Return metrics whose tolerances are in the unit of the pixel sizes, or in pixels.

    Args:
        metrics: As the user named them.
        unit: Of the pixel sizes; empty where the files do not say it: then tolerances are taken
            to be in the same unit.
        has_spacing: Whether the pixel sizes are known.

    Raises ValueError for a length where pixel sizes are not known.
    """
    converted = []
    for metric in metrics:
        if metric.unit in ("", PIXELS):
            converted.append(metric)
            continue
        if not has_spacing:
            raise ValueError(
                f"metrics names {metric.name!r}, and the files state no pixel size. Give "
                "pixel_size= and target_pixel_size= in data_options, or a tolerance in pixels, "
                f"such as 'nsd@2{PIXELS}'."
            )
        factor = UNITS[metric.unit] / UNITS[unit] if unit else 1.0
        # 1 um is 0.001 mm, not 0.00099...
        tolerance = float(f"{metric.tolerance * factor:.12g}")
        converted.append(
            CaseMetric(name=metric.name, kind=metric.kind, tolerance=tolerance, unit=unit)
        )
    return tuple(converted)


def measure(
    metrics: Sequence[CaseMetric],
    predicted: np.ndarray,
    truth: np.ndarray,
    spacing: Sequence[float] | None,
) -> list[float]:
    """Return the metrics of one region of a case; NaN where one is not defined.

    Args:
        metrics: With tolerances in the unit of `spacing`, or in pixels.
        predicted: Whether each voxel is predicted to be in the region.
        truth: Whether it is.
        spacing: Pixel size along the axes; None measures in pixels.
    """
    region = _Region(predicted, truth, spacing)
    return [_FUNCTIONS[metric.kind](region, metric) for metric in metrics]


@final
class _Region:
    """A region of a case, predicted and true, with what several metrics need."""

    def __init__(
        self, predicted: np.ndarray, truth: np.ndarray, spacing: Sequence[float] | None
    ) -> None:
        self.predicted, self.truth = predicted.astype(bool), truth.astype(bool)
        self.spacing = tuple(spacing) if spacing is not None else (1.0,) * predicted.ndim

    @property
    def is_absent(self) -> bool:
        """Whether the region is in neither."""
        return not self.predicted.any() and not self.truth.any()

    @cached_property
    def counts(self) -> np.ndarray:
        both = self.predicted & self.truth
        sums = both.sum(), (self.predicted & ~both).sum(), (self.truth & ~both).sum()
        return np.array(sums, np.float64)

    @cached_property
    def distances(self) -> tuple[np.ndarray, np.ndarray]:
        """From each voxel of the predicted surface to the true one, and the other way round."""
        return self._distances(self.spacing)

    @cached_property
    def pixel_distances(self) -> tuple[np.ndarray, np.ndarray]:
        """The same in pixels."""
        return self._distances((1.0,) * self.truth.ndim)

    @cached_property
    def lesions(self) -> tuple[int, int, int, int]:
        """Predicted lesions, those that touch a true one; true lesions, those that are touched."""
        predicted, num_predicted = _lesions(self.predicted)
        true, num_true = _lesions(self.truth)
        touching = len(np.unique(predicted[self.predicted & self.truth]))
        touched = len(np.unique(true[self.predicted & self.truth]))
        return num_predicted, touching, num_true, touched

    def _distances(self, spacing: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        # Only where the region is: beyond it no surface lies.
        inside = np.argwhere(self.predicted | self.truth)
        box = tuple(map(slice, inside.min(0), inside.max(0) + 1))
        predicted, true = _surface(self.predicted[box]), _surface(self.truth[box])
        transform = _ndimage().distance_transform_edt
        to_true = transform(~true, sampling=spacing)[predicted]
        to_predicted = transform(~predicted, sampling=spacing)[true]
        return to_true, to_predicted


def _surface(region: np.ndarray) -> np.ndarray:
    """Return the voxels of a region that have a neighbour outside of it, across a face."""
    return region & ~_ndimage().binary_erosion(region)


def _lesions(region: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the number of each voxel's lesion, and how many there are; corners connect."""
    ndimage = _ndimage()
    return ndimage.label(region, ndimage.generate_binary_structure(region.ndim, region.ndim))


def _ndimage() -> ModuleType:
    try:
        from scipy import ndimage
    except ModuleNotFoundError as error:
        raise ValueError(
            "Metrics of surfaces and lesions need scipy, which is not installed. Install it with: "
            "pip install 'tfunet[metrics]'"
        ) from error
    return ndimage


def _nsd(region: _Region, metric: CaseMetric) -> float:
    """Normalised surface Dice (Nikolov et al. 2021): the share of both surfaces within reach."""
    if region.is_absent:
        return 1.0
    if not region.predicted.any() or not region.truth.any():
        return 0.0
    pair = region.pixel_distances if metric.unit == PIXELS else region.distances
    near = sum(int((distances <= metric.tolerance).sum()) for distances in pair)
    return near / sum(map(len, pair))


def _of_surfaces(
    compute: Callable[[np.ndarray, np.ndarray], float],
) -> Callable[[_Region, CaseMetric], float]:
    def measured(region: _Region, metric: CaseMetric) -> float:
        if region.is_absent:
            return 0.0
        if not region.predicted.any() or not region.truth.any():
            return math.nan
        return float(compute(*region.distances))

    return measured


def _precision(region: _Region, metric: CaseMetric) -> float:
    num_predicted, touching, num_true, _ = region.lesions
    if not num_predicted:
        return math.nan if num_true else 1.0
    return touching / num_predicted


def _recall(region: _Region, metric: CaseMetric) -> float:
    num_predicted, _, num_true, touched = region.lesions
    if not num_true:
        return math.nan if num_predicted else 1.0
    return touched / num_true


def _f1(region: _Region, metric: CaseMetric) -> float:
    if region.is_absent:
        return 1.0
    precision, recall = _precision(region, metric), _recall(region, metric)
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


def _volume_difference(region: _Region, metric: CaseMetric) -> float:
    difference = int(region.predicted.sum()) - int(region.truth.sum())
    return difference * math.prod(region.spacing)


_FUNCTIONS: dict[str, Callable[[_Region, CaseMetric], float]] = {
    "dice": lambda region, metric: float(scores.dice(region.counts)),
    "iou": lambda region, metric: float(scores.iou(region.counts)),
    "nsd": _nsd,
    "hd": _of_surfaces(lambda first, second: max(first.max(), second.max())),
    "hd95": _of_surfaces(
        lambda first, second: max(np.percentile(first, 95), np.percentile(second, 95))
    ),
    "assd": _of_surfaces(lambda first, second: np.concatenate([first, second]).mean()),
    "lesion_precision": _precision,
    "lesion_recall": _recall,
    "lesion_f1": _f1,
    "volume_difference": _volume_difference,
}
