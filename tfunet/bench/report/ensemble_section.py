"""The section of a report on an ensemble: its best trials, and its figures."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from tfunet.bench.analysis.ensemble import Ensemble, importance, rank_correlation
from tfunet.bench.report import number_text as texts
from tfunet.config.keys import describe, show

MOST_ROWS = 20
# Lines of thousands of trials are a grey area.
MOST_LINES = 300
MOST_PANELS = 12

Figures = list[tuple[str, str, str, Callable[[], Any]]]


def ensemble_facts(ensemble: Ensemble) -> dict[str, Any]:
    """Return its trials with unrounded numbers, for programs."""
    return {
        "objective": ensemble.objective,
        "direction": ensemble.direction,
        "trials": [
            {"trial": result.trial.id, "score": result.score, "settings": dict(result.values)}
            for result in ensemble.scored
        ],
    }


def ensemble_tables(ensemble: Ensemble) -> list[list[dict[str, str]]]:
    """Return the tables: the best trials, and the settings; none without scores."""
    return [_best_rows(ensemble), _setting_rows(ensemble)] if ensemble.scored else []


def _best_rows(ensemble: Ensemble) -> list[dict[str, str]]:
    """Return a row for each of the best trials."""
    return [
        {
            "rank": str(rank),
            ensemble.objective: f"{result.score:.4g}",
            **{column: show(value) for column, value in result.values.items()},
            "trial": result.trial.id,
        }
        for rank, result in enumerate(ensemble.scored[:MOST_ROWS], 1)
    ]


def _setting_rows(ensemble: Ensemble) -> list[dict[str, str]]:
    """Return a row for each setting: its values, and how the score goes with it."""
    rows = []
    for column in ensemble.columns:
        correlation = rank_correlation(ensemble, column)
        rows.append(
            {
                "setting": column,
                "values": values_text([show(result.values[column]) for result in ensemble.scored]),
                "rank correlation with the score": texts.NONE
                if correlation is None
                else f"{correlation:+.2f}",
            }
        )
    return rows


def values_text(values: Sequence[str], most: int = 12) -> str:
    """Return distinct values in one line, or how many there are."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) <= most:
        return ", ".join(distinct)
    return f"{len(distinct)} values: {', '.join(distinct[:3])}, ..."


def ensemble_sentences(ensemble: Ensemble) -> list[str]:
    """Return what the ensemble found."""
    best = ensemble.best
    counts = f"{len(ensemble.scored)} of {ensemble.num_trials} trials have a score"
    if best is None:
        return [f"{counts} ({ensemble.objective})."]
    without = []
    if importlib.util.find_spec("optuna") is None:
        without = ["The importance of settings needs Optuna: pip install 'tfunet[ensembles]'."]
    word = "highest" if ensemble.direction == "maximize" else "lowest"
    middle = ensemble.scored[len(ensemble.scored) // 2].score
    return [
        f"The {word} {ensemble.objective} is {best.score:.4g}, with {describe(best.values)} "
        f"({best.trial.id}). The median is {middle:.4g}; {counts}.",
        "The best of many trials was chosen by its score, so its score is too good. Repeat it "
        "with other seeds before you rely on it.",
        *without,
    ]


def ensemble_figures(ensemble: Ensemble) -> Figures:
    """Return name, title, caption and drawing function of each figure."""
    if len(ensemble.scored) < 2:
        return []
    from tfunet.bench.report import ensemble_plots

    figures: Figures = [
        (
            "samples",
            f"{ensemble.objective} against each setting",
            "A dot for every trial, which links to its row; of thousands, the better ones and "
            "others evenly over the rest. The best is filled.",
            lambda: ensemble_plots.against_settings(ensemble, MOST_PANELS),
        ),
        (
            "parallel",
            "Parallel coordinates",
            f"A line for every trial, at most {MOST_LINES}: those with the best scores, and others "
            f"evenly over the rest. Dark: a good {ensemble.objective}.",
            lambda: ensemble_plots.parallel_coordinates(ensemble, MOST_LINES),
        ),
    ]
    try:
        shares = importance(ensemble)
    except ModuleNotFoundError:
        return figures  # ensemble_sentences says so.
    if shares:
        figures.append(
            (
                "importance",
                "Importance of the settings",
                "How much each setting decides whether a trial is among the best tenth (PED-ANOVA, "
                "by Optuna). The shares add up to 1; interactions of settings are left out.",
                lambda: ensemble_plots.importance_bars(shares),
            )
        )
    return figures
