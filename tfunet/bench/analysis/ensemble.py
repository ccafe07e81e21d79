"""An ensemble: the trials of samples, or of a search, ranked by their score. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.bench.records.trial_result import Result
from tfunet.config.keys import flat

Direction = str  # "maximize" or "minimize".
# Objectives by name: of what they are a number, and which direction is better.
OBJECTIVES: Mapping[str, tuple[Callable[[Result], float | None], Direction]] = {
    "val_dice": (lambda result: result.mean_dice, "maximize"),
    "val_mae": (lambda result: fmean(result.mae.values()) if result.mae else None, "minimize"),
    "val_loss": (lambda result: result.val_loss, "minimize"),
    "loss": (lambda result: result.loss, "minimize"),
    "images_per_second": (lambda result: result.images_per_second, "maximize"),
}


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A trial of an ensemble with its settings, and its score."""

    trial: TrialRecord
    values: Mapping[str, Any]
    score: float


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """The trials that have a score, the best first.

    Args:
        columns: The settings that vary from sample to sample.
        num_trials: All trials, with or without a score.
    """

    columns: tuple[str, ...]
    objective: str
    direction: Direction
    scored: tuple[Scored, ...]
    num_trials: int

    @property
    def best(self) -> Scored | None:
        """The trial with the best score."""
        return self.scored[0] if self.scored else None


def ensemble_of(sweep: SweepRecord) -> Ensemble | None:
    """Return the ensemble of a sweep; None if its study has neither samples nor a search."""
    if not sweep.samples:
        return None
    objective = sweep.objective or _first_objective(sweep.trials)
    number, usual = OBJECTIVES[objective]
    direction = sweep.direction or usual
    scored = []
    for trial in sweep.readable:
        score = number(trial.result) if trial.result is not None else None
        if score is not None and math.isfinite(score):
            settings = flat(vars(trial.config))
            values = {column: settings.get(column) for column in sweep.samples}
            scored.append(Scored(trial=trial, values=values, score=score))
    sign = -1 if direction == "maximize" else 1
    return Ensemble(
        columns=sweep.samples,
        objective=objective,
        direction=direction,
        scored=tuple(sorted(scored, key=lambda one: sign * one.score)),
        num_trials=len(sweep.trials),
    )


def _first_objective(trials: Sequence[TrialRecord]) -> str:
    """Return the first objective that some trial has."""
    results = [trial.result for trial in trials if trial.result is not None]
    for name, (number, _) in OBJECTIVES.items():
        if any(number(result) is not None for result in results):
            return name
    return next(iter(OBJECTIVES))


def rank_correlation(ensemble: Ensemble, column: str) -> float | None:
    """Return Spearman's rank correlation of a numeric setting with the score; None for others."""
    values = [one.values[column] for one in ensemble.scored]
    if len(values) < 3 or not all(is_number(value) for value in values):
        return None
    ranks = _ranks(values), _ranks([one.score for one in ensemble.scored])
    means = [fmean(side) for side in ranks]
    first, second = (
        [rank - mean for rank in side] for side, mean in zip(ranks, means, strict=True)
    )
    norm = math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))
    return sum(a * b for a, b in zip(first, second, strict=True)) / norm if norm else None


def is_number(value: Any) -> bool:
    """Whether a setting is a number: not a bool, which is a kind of int in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for at in order[begin:end]:
            ranks[at] = (begin + end - 1) / 2
        begin = end
    return ranks
