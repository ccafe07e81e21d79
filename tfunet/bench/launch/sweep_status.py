"""The state of each trial of a sweep: from its files, and from SLURM's queue."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tfunet.bench.launch.slurm_queue import Entry, NoAnswerError, queued_trials
from tfunet.bench.records.sweep_record import FINISHED, State, SweepRecord, TrialRecord, read_sweep
from tfunet.process.terminal import columns

STATES: tuple[State, ...] = get_args(State)


def current(folder: str | Path) -> SweepRecord:
    """Return the sweep with states from its files and from SLURM, if it has job scripts.

    Raises NoAnswerError if SLURM does not answer.
    """
    return overlay(read_sweep(folder), queued_trials(Path(folder)))


def overlay(sweep: SweepRecord, queued: Mapping[str, Entry]) -> SweepRecord:
    """Return the sweep with SLURM's states of the trials that are not done."""
    return replace(
        sweep, trials=tuple(_overlaid(trial, queued.get(trial.id)) for trial in sweep.trials)
    )


def status(folder: str | Path) -> dict[str, Any]:
    """Return the number of trials in each state, and a row for each trial, for JSON."""
    sweep, note = _known(folder)
    return {
        "study": sweep.name,
        "counts": counts(sweep.trials),
        "trials": [_row(trial) for trial in sweep.trials],
        "skipped": [dict(cell) for cell in sweep.skipped],
        "note": note,
    }


def status_table(folder: str | Path) -> str:
    """Return the same as text."""
    sweep, note = _known(folder)
    rows = [["trial", "state", "seconds", "images/s", "Dice", "reason"]]
    rows += [[_text(value) for value in _row(trial).values()] for trial in sweep.trials]
    return "\n".join([_headline(sweep), "", *columns(rows), *([note] if note else [])])


def counts(trials: Iterable[TrialRecord]) -> dict[str, int]:
    """Return the number of trials in each state."""
    by_state = Counter(trial.state for trial in trials)
    return {str(state): by_state[state] for state in STATES}


def _known(folder: str | Path) -> tuple[SweepRecord, str]:
    try:
        sweep = current(folder)
        notes = []
    except NoAnswerError as error:
        sweep = read_sweep(folder)
        notes = [f"{error} The states above come from the files alone."]
    return sweep, "\n".join([*(f"{fault}." for fault in sweep.faults), *notes])


def _overlaid(trial: TrialRecord, entry: Entry | None) -> TrialRecord:
    if entry is None or trial.state in FINISHED:
        return trial
    if entry.is_waiting:
        words = f"queued as {entry.job}: {entry.reason}"
        return replace(trial, state="waiting", reason=words, job=entry.job)
    return replace(trial, state="running", reason=f"job {entry.job}", job=entry.job)


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
