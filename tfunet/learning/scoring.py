"""What an evaluation sums over the voxels of cases, and the scores that come of it.

A scoring has three forms: regions of masks, numbers that are predicted for a whole case, and
samples of arrays, which only metrics of Keras score.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import tensorflow as tf

from tfunet.learning import scores
from tfunet.learning.confusion import region_counts, region_table
from tfunet.learning.counting import count
from tfunet.learning.dataset_scores import dataset_score, mean_of_defined
from tfunet.learning.ignoring import background_where_ignored
from tfunet.learning.outputs import Outputs


class Scoring(Protocol):
    """How the outputs of a model are compared with the truth of each validation case.

    Attributes:
        window_shape: What is summed for a window.
        shape: What is summed for a case: (names, sums). The last sum is that of voxels.
        num_classes: Classes in the confusion matrix; 0 without one.
        table: The table of the run folder that has a row for each case and name; "" for none.
    """

    @property
    def window_shape(self) -> tuple[int, ...]: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def table(self) -> str: ...

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return float64 (windows, *window_shape) over the voxels of each window's core."""

    def case_sums(self, windows: np.ndarray) -> np.ndarray:
        """Return (windows, *shape) of `sums`: what they add to the sums of their cases."""

    def confusion(self, windows: np.ndarray) -> np.ndarray:
        """Return the confusion matrix of `sums`, (num_classes, num_classes)."""

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

    A window's sums are its confusion matrix, from which these follow, and its ignored voxels.

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
    def window_shape(self) -> tuple[int, ...]:
        return (self.num_classes**2 + 1,)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.regions), 4

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        labels, num_classes = self.outputs.labels(output), self.num_classes
        places = (batch[name] for name in ("core_start", "core_stop", "valid"))
        return count(labels, batch["mask"], num_classes, *places)

    def case_sums(self, windows: np.ndarray) -> np.ndarray:
        pairs = windows[:, :-1].reshape(-1, self.num_classes, self.num_classes)
        counts = region_counts(pairs, region_table(self.num_classes, self.regions))
        voxels = windows.sum(axis=-1)[:, np.newaxis, np.newaxis]
        return np.concatenate([counts, np.broadcast_to(voxels, (*counts.shape[:2], 1))], axis=-1)

    def confusion(self, windows: np.ndarray) -> np.ndarray:
        return windows[:, :-1].sum(axis=0).reshape(self.num_classes, self.num_classes)

    def labels(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the predicted labels; 0 where no score counts a voxel."""
        labels = self.outputs.labels(output)
        if self.ignored is None:
            return labels
        return background_where_ignored(batch["mask"], labels, self.ignored)[1]

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
    num_classes: int = 0
    table: str = "errors"

    @property
    def window_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.targets), 2

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        extent = tf.cast(batch["core_stop"] - batch["core_start"], tf.float64)
        voxels = tf.reduce_prod(extent, axis=-1) * tf.cast(batch["valid"], tf.float64)
        voxels = tf.broadcast_to(voxels[:, tf.newaxis], tf.shape(output))
        return tf.stack([tf.cast(output, tf.float64) * voxels, voxels], axis=-1)

    def case_sums(self, windows: np.ndarray) -> np.ndarray:
        return windows

    def confusion(self, windows: np.ndarray) -> np.ndarray:
        return np.zeros((0, 0))

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


@final
@dataclass(frozen=True, kw_only=True)
class SampleScoring:
    """Counts the samples of arrays, so that each is known to be scored once."""

    num_classes: int = 0
    table: str = ""
    window_shape: tuple[int, ...] = (1, 1)
    shape: tuple[int, int] = (1, 1)

    def sums(self, output: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        extent = tf.cast(batch["core_stop"] - batch["core_start"], tf.float64)
        places = tf.reduce_prod(extent, axis=-1) * tf.cast(batch["valid"], tf.float64)
        return places[:, tf.newaxis, tf.newaxis]

    def case_sums(self, windows: np.ndarray) -> np.ndarray:
        return windows

    def confusion(self, windows: np.ndarray) -> np.ndarray:
        return np.zeros((0, 0))

    def means(self, sums: np.ndarray) -> dict[str, float]:
        return {}

    def rows(self, sums: np.ndarray, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        return iter(())
