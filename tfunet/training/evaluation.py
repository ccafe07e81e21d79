"""Scores each voxel of each validation case once, on any number of replicas."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import truth_of
from tfunet.graph.traced import traced
from tfunet.learning.losses import per_sample
from tfunet.learning.own_part import own_part, own_pixels
from tfunet.learning.scoring import Scoring
from tfunet.swap import LargeModelSupport
from tfunet.training.state import ValidationMetrics
from tfunet.training.whole_cases import CaseValues, WholeCases

# Keys of what a step of an evaluation returns.
SUMMED = ("sums", "case", "loss", "windows")
PLACES = ("start", "core_start", "core_stop")
LABELLED = ("labels", *PLACES)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The result of an evaluation, the same in every process: the mean loss over windows, the sums
    (cases, *scoring.shape) float64, the confusion matrix of all cases, metrics of whole cases, and
    those of Keras over all samples of arrays.
    """

    loss: float
    sums: np.ndarray
    confusion: np.ndarray
    scoring: Scoring
    metrics: CaseValues | None = None
    of_samples: Mapping[str, float] = field(default_factory=dict)

    @property
    def voxels(self) -> np.ndarray:
        """Voxels of each case that were counted."""
        return self.sums[:, 0, -1]

    def logs(self) -> dict[str, float]:
        """Return what Keras callbacks see; means over cases."""
        means = {} if self.metrics is None else self.metrics.means()
        means |= {"loss": self.loss, **self.of_samples, **self.scoring.means(self.sums)}
        return {f"val_{name}": float(value) for name, value in means.items()}

    def case_rows(self, epoch: int, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of the scoring's table."""
        for number, row in enumerate(self.scoring.rows(self.sums, case_ids)):
            measured = {} if self.metrics is None else self.metrics.cells(number)
            yield {"epoch": epoch, **row, **measured}


@final
class Evaluation:
    """Evaluates a model each time it is called; it is traced once.

    Args:
        forward: Runs the model; see `Network.evaluate`.
        labels: Returns the predicted labels of an output and a batch that tells places; with it,
            an evaluation can also give the labels.
        whole_cases: Measures each case from its labels.
        metrics: Metrics of Keras over all samples together.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        forward: Callable[..., dict[str, tf.Tensor]],
        loss: keras.Loss,
        pipeline: EvaluationPipeline,
        num_cases: int,
        scoring: Scoring,
        supports: Sequence[LargeModelSupport] = (),
        prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]] = lambda batch: batch,
        labels: Callable[..., tf.Tensor] | None = None,
        whole_cases: WholeCases | None = None,
        metrics: ValidationMetrics | None = None,
    ) -> None:
        self._backend = backend
        self._pipeline = pipeline
        self._num_cases = num_cases
        self._scoring = scoring
        self._whole_cases = whole_cases
        self._metrics = metrics
        # Devices that share samples have the whole output each.
        self._num_parts = math.prod(pipeline.split)

        def scored(batch: dict[str, tf.Tensor], output: tf.Tensor) -> dict[str, tf.Tensor]:
            truth, share = truth_of(batch), batch["valid"]
            if pipeline.grid is not None:
                share *= own_pixels(batch, "float32") / math.prod(pipeline.grid.image)
            found = {
                "sums": scoring.sums(output, batch),
                "loss": per_sample(loss, own_part(batch, truth), own_part(batch, output)),
                "share": share,
                **{name: batch[name] for name in PLACES if name in batch},
            }
            if labels is not None:
                found["labels"] = tf.cast(labels(output, batch), tf.uint8)
            if metrics is not None:
                found["state"] = metrics.added(truth, output, share)
            return found

        def replica_step(fed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            batch = prepare(fed)
            found = forward(batch, scored, partial(_nothing, scoring, batch, metrics))
            results = {
                "sums": found["sums"],
                "case": batch["case"],
                "loss": tf.reduce_sum(found["loss"] * found["share"]),
                "windows": tf.reduce_sum(found["share"]),
            }
            if labels is not None:
                results["labels"] = _filled(found["labels"], fed["mask"])
                results |= {name: found[name] for name in PLACES}
            if metrics is not None:
                results["state"] = tf.reduce_sum(found["state"], axis=0)
            return results

        planned: Callable[..., Any] = replica_step
        for support in supports:
            planned = support.evaluating(planned)
        self._step: Callable[..., Any] = traced(lambda batch: backend.run(planned, batch))
        for support in supports:
            self._step = support.guarding(self._step, evaluates=True)

    def __call__(self, begin: Callable[[str], None]) -> Scores:
        """Evaluate; called by all processes together. `begin` is told of every batch."""
        scoring = self._scoring
        sums = np.zeros((self._num_cases, *scoring.shape))
        confusion = np.zeros((scoring.num_classes, scoring.num_classes))
        loss = windows = 0.0
        state = np.zeros(0 if self._metrics is None else self._metrics.size)
        if self._whole_cases is not None:
            self._whole_cases.begin()
        for batch in self._backend.feed(self._pipeline):
            begin("evaluation")
            results = self._step(batch)
            output = {key: results[key].numpy() for key in SUMMED}
            rows = output["sums"].reshape(-1, *scoring.window_shape)
            np.add.at(sums, output["case"].reshape(-1), scoring.case_sums(rows))
            confusion += scoring.confusion(rows)
            loss += float(output["loss"].sum())
            windows += float(output["windows"].sum())
            if self._metrics is not None:
                state += results["state"].numpy().reshape(-1, state.size).sum(axis=0)
            if self._whole_cases is not None:
                self._whole_cases.add(output | {key: results[key].numpy() for key in LABELLED})
        means = np.array([loss, windows])
        parts = (sums.ravel(), confusion.ravel(), means, state)
        total = self._backend.sum(np.concatenate(parts))
        summed = np.split(total, np.cumsum([part.size for part in parts])[:-1])
        return Scores(
            loss=float(summed[2][0] / summed[2][1]),
            sums=summed[0].reshape(sums.shape),
            confusion=summed[1].reshape(confusion.shape),
            scoring=scoring,
            metrics=None if self._whole_cases is None else self._whole_cases.measure(begin),
            of_samples={}
            if self._metrics is None
            else self._metrics.results(summed[3] / self._num_parts),
        )

    def predict(
        self,
        pipeline: EvaluationPipeline,
        add: Callable[[dict[str, np.ndarray]], None],
        begin: Callable[[str], None],
    ) -> None:
        """Give `add` the labels of some cases and their places, batch by batch.

        Called by all processes together; each has those of its own windows.
        """
        for batch in self._backend.feed(pipeline):
            begin("evaluation")
            results = self._step(batch)
            add({key: results[key].numpy() for key in ("case", *LABELLED)})


def _nothing(
    scoring: Scoring, batch: dict[str, tf.Tensor], metrics: ValidationMetrics | None
) -> dict[str, tf.Tensor]:
    """Return what is found in windows that another stage scores: an empty core."""
    rows = batch["valid"].shape
    return {
        "sums": tf.zeros((*rows, *scoring.window_shape), tf.float64),
        "loss": tf.zeros(rows),
        "share": tf.zeros(rows),
        **({"labels": tf.zeros_like(batch["mask"])} if "mask" in batch else {}),
        **({} if metrics is None else {"state": tf.zeros((1, metrics.size), tf.float64)}),
        **{name: tf.zeros_like(batch[name]) for name in PLACES if name in batch},
    }


def _filled(labels: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return labels with zeros at their ends up to the shape of a mask, which all devices share."""
    missing = [whole - own for whole, own in zip(mask.shape[1:], labels.shape[1:], strict=True)]
    return tf.pad(labels, [[0, 0], *([0, more] for more in missing)]) if any(missing) else labels
