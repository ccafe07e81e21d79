"""How far a sweep is, from its files alone."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from tfunet.bench.collect import State, SweepRecord, TrialRecord, read_sweep
from tfunet.bench.text import columns

STATES: tuple[State, ...] = get_args(State)


def status(folder: str | Path) -> dict[str, Any]:
    """Return the number of trials in each state, and a row a trial; JSON can hold it."""
    sweep = read_sweep(folder)
    return {
        "study": sweep.name,
        "counts": counts(sweep.trials),
        "trials": [_row(trial) for trial in sweep.trials],
        "skipped": [dict(one) for one in sweep.skipped],
    }


def status_table(folder: str | Path) -> str:
    """Return the same as text."""
    sweep = read_sweep(folder)
    rows = [["trial", "state", "seconds", "images/s", "Dice", "reason"]]
    rows += [[_text(value) for value in _row(trial).values()] for trial in sweep.trials]
    return "\n".join([_headline(sweep), "", *columns(rows)])


def counts(trials: Iterable[TrialRecord]) -> dict[str, int]:
    """Return the number of trials in each state."""
    found = Counter(trial.state for trial in trials)
    return {str(state): found[state] for state in STATES}


def _headline(sweep: SweepRecord) -> str:
    parts = [f"{count} {state}" for state, count in counts(sweep.trials).items() if count]
    return f"Study {sweep.name}: {len(sweep.trials)} trials: {', '.join(parts)}."


def _row(trial: TrialRecord) -> dict[str, Any]:
    result = trial.result
    return {
        "trial": trial.id,
        "state": trial.state,
        "elapsed_seconds": result.elapsed_seconds if result else None,
        "images_per_second": result.images_per_second if result else None,
        "mean_dice": result.mean_dice if result else None,
        "reason": trial.reason,
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
