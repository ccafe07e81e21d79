"""Scores each voxel of each validation case once, on any number of replicas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.data.pipeline import EvaluationPipeline
from tfunet.learning import scores
from tfunet.learning.counting import count, predicted_labels, region_table
from tfunet.learning.ignoring import background_where_ignored
from tfunet.learning.losses import per_sample
from tfunet.swap import LargeModelSupport


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The result of an evaluation, the same in every process: the mean loss over windows, and
    counts (cases, regions, 4) float64 of TP, FP, FN and voxels.
    """

    loss: float
    counts: np.ndarray
    regions: tuple[str, ...]

    def logs(self) -> dict[str, float]:
        """Return what Keras callbacks see; means over cases."""
        dice = scores.dice(self.counts).mean(axis=0)
        iou = scores.iou(self.counts).mean(axis=0)
        logs = {"val_loss": self.loss, "val_dice": dice.mean(), "val_iou": iou.mean()}
        for index, region in enumerate(self.regions):
            logs[f"val_dice_{region}"] = dice[index]
            logs[f"val_iou_{region}"] = iou[index]
        return {key: float(value) for key, value in logs.items()}

    def case_rows(self, epoch: int, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of cases.csv."""
        names = ("true_positive", "false_positive", "false_negative")
        for row, case in enumerate(case_ids):
            for column, region in enumerate(self.regions):
                counts = (int(value) for value in self.counts[row, column, :3])
                head = {"epoch": epoch, "case": case, "region": region}
                yield {**head, **dict(zip(names, counts, strict=True))}


@final
class Evaluation:
    """Evaluates a model each time it is called; it is traced once."""

    def __init__(
        self,
        *,
        backend: Backend,
        model: keras.Model,
        loss: keras.Loss,
        pipeline: EvaluationPipeline,
        num_cases: int,
        num_classes: int,
        regions: Mapping[str, tuple[int, ...]],
        ignored: int | None = None,
        supports: Sequence[LargeModelSupport] = (),
        prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]] = lambda batch: batch,
    ) -> None:
        self._backend = backend
        self._pipeline = pipeline
        self._num_cases = num_cases
        self._regions = tuple(regions)
        table = region_table(num_classes, regions)

        def replica_step(fed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            batch = prepare(fed)
            logits = model(batch["image"], training=False)
            mask, labels = batch["mask"], predicted_labels(logits)
            if ignored is not None:
                mask, labels = background_where_ignored(mask, labels, ignored)
            counted = count(
                labels,
                mask,
                table,
                batch["core_start"],
                batch["core_stop"],
                batch["valid"],
            )
            return {
                "counts": counted,
                "case": batch["case"],
                "loss": tf.reduce_sum(per_sample(loss, batch["mask"], logits) * batch["valid"]),
                "windows": tf.reduce_sum(batch["valid"]),
            }

        planned: Callable[..., Any] = replica_step
        for support in supports:
            planned = support.evaluating(planned)
        self._step: Callable[..., Any] = tf.function(lambda batch: backend.run(planned, batch))
        for support in supports:
            self._step = support.guarding(self._step, evaluates=True)

    def __call__(self, begin: Callable[[str], None]) -> Scores:
        """Evaluate; called by all processes together. `begin` is told of every batch."""
        counts = np.zeros((self._num_cases, len(self._regions), 4))
        loss = windows = 0.0
        for batch in self._backend.feed(self._pipeline):
            begin("evaluation")
            output = {key: value.numpy() for key, value in self._step(batch).items()}
            rows = output["counts"].reshape(-1, *counts.shape[1:])
            np.add.at(counts, output["case"].reshape(-1), rows)
            loss += float(output["loss"].sum())
            windows += float(output["windows"].sum())
        total = self._backend.sum(np.concatenate([counts.ravel(), [loss, windows]]))
        return Scores(
            loss=float(total[-2] / total[-1]),
            counts=total[:-2].reshape(counts.shape),
            regions=self._regions,
        )
