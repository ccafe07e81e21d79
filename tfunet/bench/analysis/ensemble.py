"""An ensemble: the trials of samples, or of a search, ranked by their score. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from tfunet.bench.analysis.folds import num_folds
from tfunet.bench.records.objectives import OBJECTIVES, objective_of
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.config.keys import flat, show

FEWEST_FOR_IMPORTANCE = 8


@dataclass(frozen=True, kw_only=True)
class ScoredTrial:
    """A trial of an ensemble with its settings, and its score.

    The trials of a cross-validation are one: the trial is the first of them, the score their mean.
    """

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
    direction: str
    scored: tuple[ScoredTrial, ...]
    num_trials: int

    @property
    def best(self) -> ScoredTrial | None:
        """The trial with the best score."""
        return self.scored[0] if self.scored else None


def ensemble_of(sweep: SweepRecord) -> Ensemble | None:
    """Return the ensemble of a sweep; None if its study has neither samples nor a search."""
    if not sweep.samples:
        return None
    objective = sweep.objective or _first_objective(sweep.trials)
    number = objective_of(objective).of_result
    direction = sweep.direction or objective_of(objective).direction
    columns = sweep.samples
    groups: list[tuple[TrialRecord, ...]] = [(trial,) for trial in sweep.readable]
    if num_folds(sweep.readable) > 1:
        columns = tuple(column for column in columns if column != "fold")
        groups = _by_fold(sweep.readable)
    scored = []
    for group in groups:
        scores = [number(trial.result) for trial in group if trial.result is not None]
        known = [score for score in scores if score is not None and math.isfinite(score)]
        if len(known) == len(group):  # Some folds are easier than others.
            settings = flat(vars(group[0].config))
            values = {column: settings.get(column) for column in columns}
            scored.append(ScoredTrial(trial=group[0], values=values, score=fmean(known)))
    sign = -1 if direction == "maximize" else 1
    return Ensemble(
        columns=columns,
        objective=objective,
        direction=direction,
        scored=tuple(sorted(scored, key=lambda one: sign * one.score)),
        num_trials=len(groups) + len(sweep.trials) - len(sweep.readable),
    )


def _by_fold(trials: Sequence[TrialRecord]) -> list[tuple[TrialRecord, ...]]:
    """Return the trials that differ only in the fold together."""
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        groups.setdefault(repr(replace(trial.config, fold=0)), []).append(trial)
    return [tuple(group) for group in groups.values()]


def _first_objective(trials: Sequence[TrialRecord]) -> str:
    """Return the first objective that some trial has."""
    results = [trial.result for trial in trials if trial.result is not None]
    for name, one in OBJECTIVES.items():
        if any(one.of_result(result) is not None for result in results):
            return name
    return next(iter(OBJECTIVES))


def rank_correlation(ensemble: Ensemble, column: str) -> float | None:
    """Return Spearman's rank correlation of a numeric setting with the score; None for others."""
    values = [result.values[column] for result in ensemble.scored]
    if len(values) < 3 or not all(is_number(value) for value in values):
        return None
    ranks = _ranks(values), _ranks([result.score for result in ensemble.scored])
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


def importance(ensemble: Ensemble, most: int = 1000) -> dict[str, float]:
    """Return how much each setting decides whether a trial is among the best tenth, the largest
    first: shares that add up to 1, by PED-ANOVA (Watanabe et al. 2023).

    Empty for too few trials. Raises ModuleNotFoundError without Optuna.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    step = max(1, math.ceil(len(ensemble.scored) / most))
    scored = ensemble.scored[::step]
    kinds: dict[str, Any] = {}
    for column in ensemble.columns:
        values = [result.values[column] for result in scored]
        if len({show(value) for value in values}) < 2:
            continue
        if all(is_number(value) for value in values):
            kinds[column] = FloatDistribution(min(values), max(values))
        else:
            kinds[column] = CategoricalDistribution(sorted({show(value) for value in values}))
    if len(scored) < FEWEST_FOR_IMPORTANCE or not kinds or scored[0].score == scored[-1].score:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=ensemble.direction)
    for result in scored:
        params = {
            column: float(result.values[column])
            if isinstance(kind, FloatDistribution)
            else show(result.values[column])
            for column, kind in kinds.items()
        }
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=kinds, value=result.score)
        )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)
