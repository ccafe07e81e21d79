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
from tfunet.learning.losses import per_sample
from tfunet.swap import LargeModelSupport
from tfunet.training.whole_cases import CaseValues, WholeCases


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The result of an evaluation, the same in every process: the mean loss over windows, counts
    (cases, regions, 4) float64 of TP, FP, FN and voxels, and metrics of whole cases.
    """

    loss: float
    counts: np.ndarray
    regions: tuple[str, ...]
    metrics: CaseValues | None = None

    def logs(self) -> dict[str, float]:
        """Return what Keras callbacks see; means over cases."""
        dice = scores.dice(self.counts).mean(axis=0)
        iou = scores.iou(self.counts).mean(axis=0)
        logs = {"val_loss": self.loss, "val_dice": dice.mean(), "val_iou": iou.mean()}
        for index, region in enumerate(self.regions):
            logs[f"val_dice_{region}"] = dice[index]
            logs[f"val_iou_{region}"] = iou[index]
        if self.metrics is not None:
            logs = self.metrics.logs(self.regions) | logs
        return {key: float(value) for key, value in logs.items()}

    def case_rows(self, epoch: int, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of cases.csv."""
        names = ("true_positive", "false_positive", "false_negative")
        for row, case in enumerate(case_ids):
            for column, region in enumerate(self.regions):
                counts = (int(value) for value in self.counts[row, column, :3])
                head = {"epoch": epoch, "case": case, "region": region}
                measured = {} if self.metrics is None else self.metrics.cells(row, column)
                yield {**head, **dict(zip(names, counts, strict=True)), **measured}


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
        supports: Sequence[LargeModelSupport] = (),
        prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]] = lambda batch: batch,
        whole_cases: WholeCases | None = None,
    ) -> None:
        self._backend = backend
        self._pipeline = pipeline
        self._num_cases = num_cases
        self._regions = tuple(regions)
        self._whole_cases = whole_cases
        table = region_table(num_classes, regions)

        def replica_step(fed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            batch = prepare(fed)
            logits = model(batch["image"], training=False)
            labels = predicted_labels(logits)
            counted = count(
                labels,
                batch["mask"],
                table,
                batch["core_start"],
                batch["core_stop"],
                batch["valid"],
            )
            output = {
                "counts": counted,
                "case": batch["case"],
                "loss": tf.reduce_sum(per_sample(loss, batch["mask"], logits) * batch["valid"]),
                "windows": tf.reduce_sum(batch["valid"]),
            }
            if whole_cases is not None:
                places = {name: batch[name] for name in ("start", "core_start", "core_stop")}
                output |= {"labels": _filled(tf.cast(labels, tf.uint8), fed["mask"]), **places}
            return output

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
        if self._whole_cases is not None:
            self._whole_cases.begin()
        for batch in self._backend.feed(self._pipeline):
            begin("evaluation")
            output = {key: value.numpy() for key, value in self._step(batch).items()}
            rows = output["counts"].reshape(-1, *counts.shape[1:])
            np.add.at(counts, output["case"].reshape(-1), rows)
            loss += float(output["loss"].sum())
            windows += float(output["windows"].sum())
            if self._whole_cases is not None:
                self._whole_cases.add(output)
        total = self._backend.sum(np.concatenate([counts.ravel(), [loss, windows]]))
        return Scores(
            loss=float(total[-2] / total[-1]),
            counts=total[:-2].reshape(counts.shape),
            regions=self._regions,
            metrics=None if self._whole_cases is None else self._whole_cases.measure(begin),
        )


def _filled(labels: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return labels with zeros at their ends up to the shape of a mask, which all devices share."""
    missing = [whole - own for whole, own in zip(mask.shape[1:], labels.shape[1:], strict=True)]
    return tf.pad(labels, [[0, 0], *([0, more] for more in missing)]) if any(missing) else labels
