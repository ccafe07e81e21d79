"""Metrics of whole validation cases, whose windows are predicted by many processes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tfunet.backend import Backend, Topology
from tfunet.config.case_metrics import CaseMetric
from tfunet.data.cached_cases import CachedCases
from tfunet.learning.case_metrics import measure, of_objects
from tfunet.learning.scoring import RegionScoring

# A float64 holds whole numbers of 53 bits, so six labels of 8 bits.
LABELS_A_NUMBER = 6
# Voxels whose labels are added up at a time.
CHUNK = LABELS_A_NUMBER * 2**20


@dataclass(frozen=True, kw_only=True)
class CaseValues:
    """Values (cases, regions, metrics) of metrics; NaN where one is not defined."""

    names: tuple[str, ...]
    regions: tuple[str, ...]
    values: np.ndarray

    def means(self) -> dict[str, float]:
        """Return means over the cases in which a metric is defined.

        A metric that no case defines is left out.
        """
        found: dict[str, float] = {}
        for at, name in enumerate(self.names):
            means = {
                region: float(column[~np.isnan(column)].mean())
                for region, column in zip(self.regions, self.values[..., at].T, strict=True)
                if not np.isnan(column).all()
            }
            if means:
                found[name] = float(np.mean(list(means.values())))
                found |= {f"{name}_{region}": mean for region, mean in means.items()}
        return found

    def cells(self, row: int) -> dict[str, float | str]:
        """Return the cells of a row of cases.csv, counted from 0 over the regions of all cases;
        empty where a metric is not defined.
        """
        values = self.values[divmod(row, len(self.regions))].tolist()
        return {
            name: "" if math.isnan(value) else value
            for name, value in zip(self.names, values, strict=True)
        }


@final
class WholeCases:
    """Puts the predicted windows of an evaluation together, and measures each case.

    Args:
        backend: Adds up what processes have.
        topology: Each process measures some of the cases.
        metrics: With tolerances in the unit of `spacings`, or in pixels.
        cases: With the masks.
        validation: The cases, as indices of `cases`.
        spacings: Pixel size of each of them, if it is known.
        objects: Case and shape to the numbers of its true objects, as in `DataSource`.
        scoring: How regions are scored.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        topology: Topology,
        metrics: Sequence[CaseMetric],
        cases: CachedCases,
        validation: Sequence[int],
        spacings: Sequence[tuple[float, ...] | None],
        objects: Callable[[int, Sequence[int]], np.ndarray | None],
        scoring: RegionScoring,
    ) -> None:
        self._backend, self._topology = backend, topology
        self._metrics = tuple(metrics)
        self._cases, self._validation = cases, tuple(validation)
        self._spacings = tuple(spacings)
        self._read_objects = objects if of_objects(metrics) else lambda case, shape: None
        self._objects: dict[int, np.ndarray | None] = {}
        self._regions = scoring.regions
        self._labels: list[np.ndarray] = []

    @property
    def score_names(self) -> list[str]:
        """The names under which callbacks see the means of each metric, and those of regions."""
        names = [metric.name for metric in self._metrics]
        return [
            f"val_{name}{part}"
            for name in names
            for part in ("", *(f"_{region}" for region in self._regions))
        ]

    def begin(self) -> None:
        """Begin an evaluation: no voxel is predicted yet."""
        self._labels = [np.zeros(self._cases.extents[case], np.uint8) for case in self._validation]

    def add(self, output: Mapping[str, Any]) -> None:
        """Keep the cores of this process's windows, (replicas, windows, ...) of an evaluation."""
        for case, corner, labels in cores(output):
            box = tuple(map(slice, corner, np.add(corner, labels.shape)))
            self._labels[case][box] = labels

    def measure(self, begin: Callable[[str], None]) -> CaseValues:
        """Return the metrics; called by all processes together."""
        shape = (len(self._validation), len(self._regions), len(self._metrics))
        values = np.zeros(shape)
        for position, case in enumerate(self._validation):
            begin("evaluation")
            labels = self._whole(self._labels[position])
            if position % self._topology.process_count != self._topology.process_index:
                continue
            mask = np.asarray(self._cases.mask(case))
            objects = self._objects_of(case, mask.shape)
            for at, members in enumerate(self._regions.values()):
                predicted, truth = np.isin(labels, members), np.isin(mask, members)
                spacing = self._spacings[position]
                values[position, at] = measure(self._metrics, predicted, truth, spacing, objects)
        self._labels = []
        values = self._backend.sum(values.ravel()).reshape(shape)
        names = tuple(metric.name for metric in self._metrics)
        return CaseValues(names=names, regions=tuple(self._regions), values=values)

    def _objects_of(self, case: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return the numbers of a case's true objects; they are kept for the next evaluation."""
        if case not in self._objects:
            numbers = self._read_objects(case, shape)
            if numbers is not None:
                numbers = numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
            self._objects[case] = numbers
        return self._objects[case]

    def _whole(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels of all processes together: each voxel is predicted by one of them."""
        if self._topology.process_count == 1:
            return labels
        flat = labels.reshape(-1)
        whole = np.empty_like(flat)
        weights = 256.0 ** np.arange(LABELS_A_NUMBER)
        for first in range(0, len(flat), CHUNK):
            part = flat[first : first + CHUNK]
            padded = np.pad(part, (0, -len(part) % LABELS_A_NUMBER))
            numbers = self._backend.sum(padded.reshape(-1, LABELS_A_NUMBER) @ weights)
            digits = numbers.astype(np.int64)[:, None] >> 8 * np.arange(LABELS_A_NUMBER)
            whole[first : first + CHUNK] = (digits & 255).reshape(-1)[: len(part)]
        return whole.reshape(labels.shape)


def cores(output: Mapping[str, Any]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the case, the first voxel in it and the labels of each window's core.

    `output` is that of an evaluation step with labels, (replicas, windows, ...).
    """
    rank = output["start"].shape[-1]
    windows = output["labels"].reshape(-1, *output["labels"].shape[-rank:])
    places = (output[name].reshape(-1, rank) for name in ("start", "core_start", "core_stop"))
    for window, case, start, low, high in zip(
        windows, output["case"].ravel(), *places, strict=True
    ):
        if (high > low).all():
            yield int(case), start + low, window[tuple(map(slice, low, high))]
