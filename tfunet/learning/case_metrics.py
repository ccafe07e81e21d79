"""Metrics of whole cases: surfaces, lesions, objects, cells, centre lines, volumes. No TensorFlow.

A surface are the voxels of a region with a neighbour outside of it, across a face; beyond the
image is outside. Distances are those between the centres of voxels, in the unit of the pixel size.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import final

import numpy as np

from tfunet.config.case_metrics import (
    INSTANCE_DIFFERENCE,
    INSTANCES,
    LEAST_OVERLAP,
    OWN,
    PIXELS,
    SEGMENTS,
    UNITS,
    CaseMetric,
)
from tfunet.learning import scores
from tfunet.learning.centre_lines import centre_lines
from tfunet.learning.mask_libraries import morphology, ndimage, segment_metrics
from tfunet.learning.own_metric import measure_own

# COCO and the Data Science Bowl 2018 take 0.5, 0.55, ..., 0.95.
OVERLAPS = tuple(percent / 100 for percent in range(50, 100, 5))
WITHOUT_LIBRARY = ("dice", "iou", "volume_difference", OWN)


def check_library(metrics: Sequence[CaseMetric]) -> None:
    """Raise ValueError if metrics need scipy or scikit-image, and it is not installed."""
    for kind in dict.fromkeys(metric.kind for metric in metrics):
        if kind in SEGMENTS:
            segment_metrics()
        elif kind == "cldice":
            morphology()
        elif kind not in WITHOUT_LIBRARY:
            ndimage()


def of_objects(metrics: Sequence[CaseMetric]) -> bool:
    """Return whether metrics need the numbers of true objects."""
    return any(metric.kind in (*INSTANCES, INSTANCE_DIFFERENCE, *SEGMENTS) for metric in metrics)


def tolerances(
    metrics: Sequence[CaseMetric], unit: str, *, has_spacing: bool
) -> tuple[CaseMetric, ...]:
    """Return metrics whose tolerances are in the unit of the pixel sizes, or in pixels.

    Args:
        metrics: As the user named them.
        unit: Unit of the pixel sizes; empty where the files do not say it: then tolerances are
            taken to be in the same unit.
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
    objects: np.ndarray | None = None,
) -> list[float]:
    """Return the metrics of one region of a case; NaN where one is not defined.

    Args:
        metrics: With tolerances in the unit of `spacing`, or in pixels.
        predicted: Whether each voxel is predicted to be in the region.
        truth: Whether it is.
        spacing: Pixel size along the axes; None measures in pixels.
        objects: The number of the true object in each voxel, 0 where none is. By default true
            objects are the connected components.
    """
    region = _Region(predicted, truth, spacing, objects)
    return [_FUNCTIONS[metric.kind](region, metric) for metric in metrics]


@final
class _Region:
    """A region of a case, predicted and true, with what several metrics need."""

    def __init__(
        self,
        predicted: np.ndarray,
        truth: np.ndarray,
        spacing: Sequence[float] | None,
        objects: np.ndarray | None,
    ) -> None:
        self.predicted, self.truth = predicted.astype(bool), truth.astype(bool)
        self._objects = objects
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
    def components(self) -> tuple[np.ndarray, int, np.ndarray, int]:
        """The number of each voxel's lesion and how many there are, predicted and true."""
        return *_lesions(self.predicted), *_lesions(self.truth)

    @cached_property
    def true_objects(self) -> tuple[np.ndarray, int]:
        """The number of each voxel's true object, and how many there are."""
        if self._objects is None or not self.has_numbers:
            _, _, true, num_true = self.components
            return true, num_true
        return _numbered(np.where(self.truth, self._objects, 0))

    @cached_property
    def has_numbers(self) -> bool:
        """Whether the mask numbers true objects of the region; it numbers no borders."""
        return self._objects is not None and bool(self._objects[self.truth].any())

    def lesions(self, metric: CaseMetric) -> tuple[int, int, int, int]:
        """Predicted lesions, those that touch a true one; true lesions, those that are touched."""
        predicted, num_predicted, true, num_true = self.components
        touching = len(np.unique(predicted[self.predicted & self.truth]))
        touched = len(np.unique(true[self.predicted & self.truth]))
        return num_predicted, touching, num_true, touched

    def instances(self, metric: CaseMetric) -> tuple[int, int, int, int]:
        """Predicted objects, those that are a true one; true objects, those that are found."""
        num_predicted, num_true = self.num_objects
        num_same = self.num_same(metric.overlap)
        return num_predicted, num_same, num_true, num_same

    @property
    def num_objects(self) -> tuple[int, int]:
        """How many objects are predicted, and how many are true."""
        _, num_predicted, _, _ = self.components
        _, num_true = self.true_objects
        return num_predicted, num_true

    def num_same(self, overlap: float | None) -> int:
        """How many predicted objects are a true one; None is the least overlap that is allowed."""
        least = LEAST_OVERLAP if overlap is None else overlap
        return int((self.overlaps > least).sum())

    @cached_property
    def overlaps(self) -> np.ndarray:
        """IoU of each predicted object and each true one that overlap, (pairs,)."""
        predicted, *_ = self.components
        true, num_true = self.true_objects
        inside = self.predicted & (true > 0)
        pairs = predicted[inside].astype(np.int64) * (num_true + 1) + true[inside]
        pairs, both = np.unique(pairs, return_counts=True)
        either = np.bincount(predicted.ravel())[pairs // (num_true + 1)]
        either += np.bincount(true.ravel())[pairs % (num_true + 1)]
        return both / (either - both)

    @cached_property
    def segments(self) -> tuple[np.ndarray, np.ndarray]:
        """The cell of each voxel inside a true cell, predicted and true, (voxels,).

        Corners do not connect: they would join cells across a thin membrane. Predicted cells are
        grown over predicted membranes until they meet, so that their width has no influence.
        """
        predicted, _ = ndimage().label(self.predicted)
        nearest = ndimage().distance_transform_edt(
            predicted == 0, return_distances=False, return_indices=True
        )
        if not self.has_numbers:
            true, _ = ndimage().label(self.truth)
        else:
            true, _ = self.true_objects
        inside = true > 0
        return predicted[tuple(nearest)][inside], true[inside]

    def _distances(self, spacing: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        # Only where the region is: beyond it no surface lies.
        inside = np.argwhere(self.predicted | self.truth)
        box = tuple(map(slice, inside.min(0), inside.max(0) + 1))
        predicted, true = _surface(self.predicted[box]), _surface(self.truth[box])
        transform = ndimage().distance_transform_edt
        to_true = transform(~true, sampling=spacing)[predicted]
        to_predicted = transform(~predicted, sampling=spacing)[true]
        return to_true, to_predicted


def _surface(region: np.ndarray) -> np.ndarray:
    """Return the voxels of a region that have a neighbour outside of it, across a face."""
    return region & ~ndimage().binary_erosion(region)


def _lesions(region: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the number of each voxel's lesion, and how many there are; corners connect."""
    return ndimage().label(region, np.ones((3,) * region.ndim))


def _numbered(objects: np.ndarray) -> tuple[np.ndarray, int]:
    """Return objects with the numbers 1, 2, ..., and how many there are; 0 is none."""
    values, numbers = np.unique(objects, return_inverse=True)
    if not len(values) or values[0] != 0:
        return numbers.reshape(objects.shape) + 1, len(values)
    return numbers.reshape(objects.shape), len(values) - 1


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


# Predicted objects, the right ones among them, true objects, those found.
_Counts = Callable[[_Region, CaseMetric], tuple[int, int, int, int]]
_Measure = Callable[[_Region, CaseMetric], float]


def _precision(counts: _Counts) -> _Measure:
    def measured(region: _Region, metric: CaseMetric) -> float:
        num_predicted, right, num_true, _ = counts(region, metric)
        if not num_predicted:
            return math.nan if num_true else 1.0
        return right / num_predicted

    return measured


def _recall(counts: _Counts) -> _Measure:
    def measured(region: _Region, metric: CaseMetric) -> float:
        num_predicted, _, num_true, found = counts(region, metric)
        if not num_true:
            return math.nan if num_predicted else 1.0
        return found / num_true

    return measured


def _f1(counts: _Counts) -> _Measure:
    def measured(region: _Region, metric: CaseMetric) -> float:
        if region.is_absent:
            return 1.0
        precision, recall = (part(counts)(region, metric) for part in (_precision, _recall))
        total = precision + recall
        return 2 * precision * recall / total if total > 0 else 0.0

    return measured


def _instance_ap(region: _Region, metric: CaseMetric) -> float:
    """Return TP / (TP + FP + FN) of objects, or its mean over OVERLAPS (Caicedo et al. 2019)."""
    if region.is_absent:
        return 1.0
    num_objects = sum(region.num_objects)
    found = [
        region.num_same(overlap)
        for overlap in (OVERLAPS if metric.overlap is None else [metric.overlap])
    ]
    return float(np.mean([same / (num_objects - same) for same in found]))


def _instance_difference(region: _Region, metric: CaseMetric) -> float:
    num_predicted, num_true = region.num_objects
    return float(num_predicted - num_true)


def _panoptic_quality(region: _Region, metric: CaseMetric) -> float:
    """Return the sum of the IoU of matches over the mean of both numbers (Kirillov et al. 2019)."""
    num_predicted, _, num_true, _ = region.instances(metric)
    if region.is_absent:
        return 1.0
    same = region.overlaps[region.overlaps > (metric.overlap or LEAST_OVERLAP)]
    return float(same.sum() / ((num_predicted + num_true) / 2))


def _arand(region: _Region, metric: CaseMetric) -> float:
    """Adapted Rand error (Arganda-Carreras et al. 2015): 1 minus the F-score over pairs."""
    if not region.predicted.any() or not region.truth.any():
        return 0.0 if region.is_absent else 1.0
    predicted, true = region.segments
    with np.errstate(invalid="ignore"):  # Cells of one voxel have no pairs.
        error, *_ = segment_metrics().adapted_rand_error(true, predicted, ignore_labels=())
    return 0.0 if math.isnan(error) else max(0.0, float(error))


def _variation_of_information(part: int) -> _Measure:
    """Return the measure of splits (part 0) or of merges (part 1)."""

    def measured(region: _Region, metric: CaseMetric) -> float:
        if not region.predicted.any() or not region.truth.any():
            return 0.0 if region.is_absent else math.nan
        predicted, true = region.segments
        parts = segment_metrics().variation_of_information(true, predicted)
        return max(0.0, float(parts[part]))

    return measured


def _cldice(region: _Region, metric: CaseMetric) -> float:
    """Centreline Dice (Shit et al. 2021): how much of each centre line the other mask holds."""
    if not region.predicted.any() or not region.truth.any():
        return 1.0 if region.is_absent else 0.0
    precision = float(region.truth[centre_lines(region.predicted)].mean())
    sensitivity = float(region.predicted[centre_lines(region.truth)].mean())
    total = precision + sensitivity
    return 2 * precision * sensitivity / total if total > 0 else 0.0


def _volume_difference(region: _Region, metric: CaseMetric) -> float:
    difference = int(region.predicted.sum()) - int(region.truth.sum())
    return difference * math.prod(region.spacing)


_FUNCTIONS: dict[str, _Measure] = {
    OWN: lambda region, metric: measure_own(metric, region.truth, region.predicted, region.spacing),
    "dice": lambda region, metric: float(scores.dice(region.counts)),
    "iou": lambda region, metric: float(scores.iou(region.counts)),
    "nsd": _nsd,
    "hd": _of_surfaces(lambda first, second: max(first.max(), second.max())),
    "hd95": _of_surfaces(
        lambda first, second: max(np.percentile(first, 95), np.percentile(second, 95))
    ),
    "assd": _of_surfaces(lambda first, second: np.concatenate([first, second]).mean()),
    "lesion_precision": _precision(_Region.lesions),
    "lesion_recall": _recall(_Region.lesions),
    "lesion_f1": _f1(_Region.lesions),
    "instance_precision": _precision(_Region.instances),
    "instance_recall": _recall(_Region.instances),
    "instance_f1": _f1(_Region.instances),
    "instance_ap": _instance_ap,
    INSTANCE_DIFFERENCE: _instance_difference,
    "panoptic_quality": _panoptic_quality,
    "volume_difference": _volume_difference,
    "cldice": _cldice,
    "arand": _arand,
    "vi_split": _variation_of_information(0),
    "vi_merge": _variation_of_information(1),
}
