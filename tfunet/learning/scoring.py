"""What an evaluation sums over the voxels of cases, and the scores that come of it.

A scoring has two forms: regions of masks, and numbers that are predicted for a whole case.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import tensorflow as tf

from tfunet.learning import scores
from tfunet.learning.counting import count, region_table
from tfunet.learning.dataset_scores import dataset_score, mean_of_defined
from tfunet.learning.ignoring import background_where_ignored
from tfunet.learning.outputs import Outputs


class Scoring(Protocol):
    """How the outputs of a model are compared with the truth of each validation case.

    Attributes:
        shape: What is summed for a case: (names, sums). The last sum is that of voxels.
        table: The table of the run folder that has a row for each case and name.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def table(self) -> str: ...

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return float64 (windows, names, sums) over the voxels of each window's core."""

    def means(self, sums: np.ndarray) -> dict[str, float]:
        """Return the scores by name, from the sums of all cases: means over cases, and those of
        the data set.
        """

    def rows(self, sums: np.ndarray, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of `table`."""


@final
@dataclass(frozen=True, kw_only=True)
class RegionScoring:
    """Dice and IoU of each region; sums are true positives, false positives, false negatives.

    Args:
        outputs: How a model's output becomes labels.
        ignored: Label of the voxels that no score counts.
    """

    outputs: Outputs
    num_classes: int
    regions: Mapping[str, tuple[int, ...]]
    ignored: int | None = None
    table: str = "cases"

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.regions), 4

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        mask, labels = self._both(output, batch)
        return count(
            labels,
            mask,
            region_table(self.num_classes, self.regions),
            batch["core_start"],
            batch["core_stop"],
            batch["valid"],
        )

    def labels(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the predicted labels; 0 where no score counts a voxel."""
        return self._both(output, batch)[1]

    def _both(
        self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        mask, labels = batch["mask"], self.outputs.labels(output)
        if self.ignored is None:
            return mask, labels
        return background_where_ignored(mask, labels, self.ignored)

    def means(self, sums: np.ndarray) -> dict[str, float]:
        dice, iou = scores.dice(sums).mean(axis=0), scores.iou(sums).mean(axis=0)
        means = {"dice": dice.mean(), "iou": iou.mean()}
        for index, region in enumerate(self.regions):
            means[f"dice_{region}"] = dice[index]
            means[f"iou_{region}"] = iou[index]
        for score in ("dice", "iou"):
            values = dataset_score(score, sums[..., :3]).tolist()
            named = {f"dataset_{score}": mean_of_defined(values)} | {
                f"dataset_{score}_{region}": value
                for region, value in zip(self.regions, values, strict=True)
            }
            # A region that is in no mask and in no prediction has none.
            means |= {name: value for name, value in named.items() if not math.isnan(value)}
        return means

    def rows(self, sums: np.ndarray, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        names = ("true_positive", "false_positive", "false_negative")
        for row, case in enumerate(case_ids):
            for column, region in enumerate(self.regions):
                counts = (int(value) for value in sums[row, column, :3])
                yield {"case": case, "region": region, **dict(zip(names, counts, strict=True))}


@final
@dataclass(frozen=True, kw_only=True)
class TargetScoring:
    """Mean absolute error of each number; a case's prediction is the mean over its voxels.

    Args:
        targets: Each number's name and its values for the validation cases.
    """

    targets: Mapping[str, tuple[float, ...]]
    table: str = "errors"

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.targets), 2

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        extent = tf.cast(batch["core_stop"] - batch["core_start"], tf.float64)
        voxels = tf.reduce_prod(extent, axis=-1) * tf.cast(batch["valid"], tf.float64)
        voxels = tf.broadcast_to(voxels[:, tf.newaxis], tf.shape(output))
        return tf.stack([tf.cast(output, tf.float64) * voxels, voxels], axis=-1)

    def _errors(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the true numbers (cases, targets), the predicted ones, and how far apart."""
        true = np.array(list(self.targets.values())).T
        predicted = sums[..., 0] / np.maximum(sums[..., 1], 1)
        return true, predicted, np.abs(predicted - true)

    def means(self, sums: np.ndarray) -> dict[str, float]:
        errors = self._errors(sums)[2].mean(axis=0)
        by_target = {f"mae_{name}": error for name, error in zip(self.targets, errors, strict=True)}
        return {"mae": errors.mean(), **by_target}

    def rows(self, sums: np.ndarray, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        names = ("value", "predicted", "absolute_error")
        columns = self._errors(sums)
        for row, case in enumerate(case_ids):
            for column, target in enumerate(self.targets):
                numbers = (float(table[row, column]) for table in columns)
                yield {"case": case, "target": target, **dict(zip(names, numbers, strict=True))}
