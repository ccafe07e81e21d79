"""The state of each trial of a sweep: from its files, and from SLURM's queue."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from tfunet.bench.launch.slurm_queue import NoAnswerError, QueueEntry, queued_trials
from tfunet.bench.records.sweep_record import FINISHED, State, SweepRecord, TrialRecord, read_sweep
from tfunet.bench.records.trial_states import MANY, SweepStates, TrialState, read_states
from tfunet.process.terminal import columns

Trial = TypeVar("Trial", TrialRecord, TrialState)
# In the table of a large sweep, trials in these states have no row.
UNREMARKABLE = ("done", "waiting")
MOST_ROWS = 50
STATES: tuple[State, ...] = get_args(State)


def current(folder: str | Path) -> SweepRecord:
    """Return the sweep with states from its files and from SLURM, if it has job scripts.

    Raises NoAnswerError if SLURM does not answer.
    """
    return overlay(read_sweep(folder), queued_trials(Path(folder)))


def overlay(sweep: SweepRecord, queued: Mapping[str, QueueEntry]) -> SweepRecord:
    """Return the sweep with SLURM's states of the trials that are not done."""
    trials = []
    for trial in sweep.trials:
        entry = queued.get(trial.id)
        told = _overlaid(trial, entry)
        trials.append(told if told is trial or entry is None else replace(told, job=entry.job))
    return replace(sweep, trials=tuple(trials))


def status(folder: str | Path) -> dict[str, Any]:
    """Return the number of trials in each state, and a row for each trial, for JSON."""
    sweep, note = _known(folder)
    return {
        "study": sweep.name,
        "counts": counts(sweep.trials),
        "trials": [vars(trial) for trial in sweep.trials],
        "skipped": [dict(cell) for cell in sweep.skipped],
        "note": note,
    }


def status_table(folder: str | Path) -> str:
    """Return the same as text. In a sweep of thousands, only trials that ended badly or run have
    a row.
    """
    sweep, note = _known(folder)
    shown = sweep.trials
    if len(shown) >= MANY:
        remarkable = [trial for trial in shown if trial.state not in UNREMARKABLE]
        shown = tuple(remarkable[:MOST_ROWS])
        left_out = len(sweep.trials) - len(shown)
        note = "\n".join([f"{left_out} more trials: add --json.", *([note] if note else [])])
    rows = [["trial", "state", "seconds", "images/s", "Dice", "reason"]]
    rows += [[_text(value) for value in vars(trial).values()] for trial in shown]
    return "\n".join([_headline(sweep), "", *columns(rows), *([note] if note else [])])


def counts(trials: Iterable[TrialRecord | TrialState]) -> dict[str, int]:
    """Return the number of trials in each state."""
    by_state = Counter(trial.state for trial in trials)
    return {str(state): by_state[state] for state in STATES}


def _known(folder: str | Path) -> tuple[SweepStates, str]:
    sweep = read_states(folder)
    notes = []
    try:
        queued = queued_trials(Path(folder))
        sweep = replace(
            sweep, trials=tuple(_overlaid(trial, queued.get(trial.trial)) for trial in sweep.trials)
        )
    except NoAnswerError as error:
        notes = [f"{error} The states above come from the files alone."]
    return sweep, "\n".join([*(f"{fault}." for fault in sweep.faults), *notes])


def _overlaid(trial: Trial, entry: QueueEntry | None) -> Trial:
    if entry is None or trial.state in FINISHED:
        return trial
    if entry.is_waiting:
        words = f"queued as {entry.job}: {entry.reason}"
        return replace(trial, state="waiting", reason=words)
    return replace(trial, state="running", reason=f"job {entry.job}")


def _headline(sweep: SweepStates) -> str:
    parts = [f"{count} {state}" for state, count in counts(sweep.trials).items() if count]
    return f"Study {sweep.name}: {len(sweep.trials)} trials: {', '.join(parts)}."


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
