"""Scores the validation cases, and tells which weights were scored last."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

from tfunet.swap import LargeModelSupport
from tfunet.training.attempt import Attempt
from tfunet.training.checks import every_voxel_once, make_fingerprint
from tfunet.training.evaluation import Evaluation, Scores
from tfunet.training.network import Network
from tfunet.training.progress import Progress
from tfunet.training.run_data import RunData
from tfunet.training.state import ValidationMetrics
from tfunet.training.whole_cases import WholeCases


@final
class Validation:
    """The validation cases of a run, and how its weights score.

    Each process calls its methods together with the others.
    """

    def __init__(
        self,
        attempt: Attempt,
        data: RunData,
        network: Network,
        supports: Sequence[LargeModelSupport],
        progress: Progress,
    ) -> None:
        self._attempt, self._data, self._network = attempt, data, network
        self._supports, self._progress = supports, progress
        self._fingerprint = make_fingerprint(attempt.backend, network.weights)
        # Under large-model support evaluations tell labels only where metrics need them: they take
        # memory that is not to spare.
        is_free = data.labels is not None and not supports
        has_samples = data.task.source.samples is not None
        self._metrics = ValidationMetrics(network.model) if has_samples else None
        self.tells_labels = is_free or data.whole_cases is not None
        self.evaluation = self.of(
            data.split.validation,
            whole_cases=data.whole_cases,
            labels=data.labels if self.tells_labels else None,
        )

    def of(
        self,
        cases: Sequence[int],
        *,
        whole_cases: WholeCases | None = None,
        labels: Callable[..., Any] | None = None,
    ) -> Evaluation:
        """Return an evaluation of some cases."""
        data, network = self._data, self._network
        return Evaluation(
            backend=self._attempt.backend,
            forward=network.evaluate,
            loss=network.loss,
            pipeline=replace(
                data.evaluation, validation=tuple(cases), tells_places=labels is not None
            ),
            num_cases=len(cases),
            scoring=data.scoring(cases),
            supports=self._supports,
            prepare=network.own_part,
            labels=labels,
            whole_cases=whole_cases,
            metrics=self._metrics,
        )

    @property
    def metric_names(self) -> list[str]:
        """The names under which callbacks see metrics of the validation."""
        if self._data.whole_cases is not None:
            return self._data.whole_cases.score_names
        return [] if self._metrics is None else self._metrics.names()

    def score_modes(self) -> dict[str, str | None]:
        """Return the scores of arrays, the main one first, and which way is better of each.

        The main one is the first metric of which that is known, or else the loss.
        """
        if self._metrics is None:
            return {}
        modes = {**self._metrics.modes(), "val_loss": "min"}
        main = next(name for name, mode in modes.items() if mode is not None)
        return {main: modes[main], **modes}

    def weights_hash(self) -> str:
        """Return the hash of the weights; raises CheckFailedError where replicas differ."""
        return self._network.held.weights_hash(self._fingerprint().numpy())

    def score(self) -> Scores:
        """Return the scores of the validation cases, and note that these weights have them.

        Raises CheckFailedError where the voxels of a case were not all counted once.
        """
        data, progress = self._data, self._progress
        scores = self.evaluation(self._attempt.begin)
        every_voxel_once(scores.voxels, data.validation_voxels, data.validation_ids)
        progress.logs.update(scores.logs())
        progress.scored_hash = self.weights_hash()
        return scores
