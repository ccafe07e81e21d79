"""Scores each voxel of each validation case once, on any number of replicas."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.data.pipeline import EvaluationPipeline, truth_of
from tfunet.learning.losses import per_sample
from tfunet.learning.scoring import Scoring
from tfunet.swap import LargeModelSupport


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The result of an evaluation, the same in every process: the mean loss over windows, and
    the sums (cases, *scoring.shape) float64.
    """

    loss: float
    sums: np.ndarray
    scoring: Scoring

    @property
    def voxels(self) -> np.ndarray:
        """Voxels of each case that were counted."""
        return self.sums[:, 0, -1]

    def logs(self) -> dict[str, float]:
        """Return what Keras callbacks see; means over cases."""
        means = {"loss": self.loss, **self.scoring.means(self.sums)}
        return {f"val_{name}": float(value) for name, value in means.items()}

    def case_rows(self, epoch: int, case_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the rows of the scoring's table."""
        for row in self.scoring.rows(self.sums, case_ids):
            yield {"epoch": epoch, **row}


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
        scoring: Scoring,
        supports: Sequence[LargeModelSupport] = (),
        prepare: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]] = lambda batch: batch,
    ) -> None:
        self._backend = backend
        self._pipeline = pipeline
        self._num_cases = num_cases
        self._scoring = scoring

        def replica_step(fed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            batch = prepare(fed)
            output = model(batch["image"], training=False)
            sums = scoring.sums(output, batch)
            losses = per_sample(loss, truth_of(batch), output)
            return {
                "sums": sums,
                "case": batch["case"],
                "loss": tf.reduce_sum(losses * batch["valid"]),
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
        sums = np.zeros((self._num_cases, *self._scoring.shape))
        loss = windows = 0.0
        for batch in self._backend.feed(self._pipeline):
            begin("evaluation")
            output = {key: value.numpy() for key, value in self._step(batch).items()}
            rows = output["sums"].reshape(-1, *sums.shape[1:])
            np.add.at(sums, output["case"].reshape(-1), rows)
            loss += float(output["loss"].sum())
            windows += float(output["windows"].sum())
        total = self._backend.sum(np.concatenate([sums.ravel(), [loss, windows]]))
        return Scores(
            loss=float(total[-2] / total[-1]),
            sums=total[:-2].reshape(sums.shape),
            scoring=self._scoring,
        )
