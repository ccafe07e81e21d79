"""The state of each trial of a sweep of thousands, from few and short reads. Never writes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tfunet.bench.records.plan_lines import PlanLines, grown
from tfunet.bench.records.sweep_record import (
    State,
    TrialRecord,
    planned_trials,
    read_plan,
    read_sweep,
    read_trial,
    running_trials,
)
from tfunet.bench.records.trial_result import LEAST
from tfunet.config.run import SCHEMA_VERSION
from tfunet.files.regular import open_regular
from tfunet.files.typed import MOST, Name, read_record, shown_path

# Smaller sweeps are read in full, with every setting checked again.
MANY = 1000
PARSE_BYTES = 2**16
# What reading a file raises that is not as a run writes it.
UNUSUAL = (OSError, ValueError, RecursionError, msgspec.MsgspecError)


@dataclass(frozen=True, kw_only=True)
class TrialState:
    """How far a trial is, and its main numbers if it is done."""

    trial: str
    state: State
    elapsed_seconds: float | None = None
    images_per_second: float | None = None
    mean_dice: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepStates:
    """The states of the trials of a sweep, in the order in which they run."""

    name: str
    trials: tuple[TrialState, ...]
    skipped: tuple[Any, ...] = ()
    faults: tuple[str, ...] = ()


class _Planned(msgspec.Struct):
    id: Name
    changes: dict[str, Any]


class _Plan(msgspec.Struct):
    base: dict[str, Any]
    trials: list[_Planned]
    study: str = ""
    skipped: list[dict[str, Any]] = []


class _Done(msgspec.Struct):
    """What status shows of result.json."""

    schema_version: int
    images_per_second: float
    num_replicas: int
    checks: dict[str, bool]
    elapsed_seconds: float | None = None
    dice: dict[str, float] | None = None


def read_states(folder: str | Path, many: int = MANY) -> SweepStates:
    """Return the states of a sweep's trials.

    In a plan with `many` trials or more, settings are not checked, and only result.json is read
    where a trial ended well. Whatever is not as a run writes it is read in full.
    """
    root = Path(folder)
    plan = _large_plan(root, many)
    if plan is None:
        sweep = read_sweep(root)
        return SweepStates(
            name=sweep.name,
            trials=tuple(map(state_of, sweep.trials)),
            skipped=sweep.skipped,
            faults=sweep.faults,
        )
    faults: list[str] = []
    return SweepStates(
        name=shown_path(plan.study or root.resolve().name),
        trials=tuple(_states(root, plan, faults)),
        skipped=tuple(plan.skipped),
        faults=tuple(faults),
    )


def state_of(trial: TrialRecord) -> TrialState:
    """Return the state of a trial that was read in full."""
    result = trial.result
    return TrialState(
        trial=trial.id,
        state=trial.state,
        elapsed_seconds=result.elapsed_seconds if result else None,
        images_per_second=result.images_per_second if result else None,
        mean_dice=result.mean_dice if result else None,
        reason=trial.reason,
    )


def _large_plan(root: Path, many: int) -> _Plan | None:
    """Return a plan with `many` trials or more; None for any other, or for a wrong one."""
    try:
        plan = msgspec.json.decode(read_record(root / "plan.json") or "", type=_Plan)
        if lines := PlanLines(root).new():
            table, skipped = grown(msgspec.to_builtins(plan.trials), plan.skipped, lines)
            plan.trials = msgspec.convert(table, list[_Planned])
            plan.skipped = skipped
    except UNUSUAL:
        return None
    names = {trial.id for trial in plan.trials}
    return plan if many <= len(names) == len(plan.trials) else None


def _states(root: Path, plan: _Plan, faults: list[str]) -> Iterator[TrialState]:
    with os.scandir(root) as entries:
        begun = {entry.name for entry in entries}
    running = running_trials(root, faults)
    table: dict[str, Any] | None = None
    for number, trial in enumerate(plan.trials):
        state = (
            _brief(root, plan, trial)
            if trial.id in begun
            else TrialState(trial=trial.id, state="waiting")
        )
        if state is None:
            table = table or read_plan(root)
            (full,) = planned_trials(root, {**table, "trials": [table["trials"][number]]})
            if full.is_readable:
                full = read_trial(full, is_running=full.id in running)
            faults += full.faults
            state = state_of(full)
        yield state


def _brief(root: Path, plan: _Plan, trial: _Planned) -> TrialState | None:
    """Return the state of a trial that is done; None if it takes more to know it."""
    try:
        descriptor = open_regular(Path(os.path.join(root, trial.id, "result.json")), os.O_RDONLY)
        try:
            text = os.read(descriptor, PARSE_BYTES)
        finally:
            os.close(descriptor)
        done = msgspec.json.decode(text, type=_Done)
    except UNUSUAL:
        return None
    settings = {**plan.base, **trial.changes} if trial.changes else plan.base
    is_right = (
        done.schema_version == SCHEMA_VERSION
        and LEAST < done.images_per_second < MOST
        and done.num_replicas == settings.get("num_replicas")
        and done.checks
        and all(done.checks.values())
        and not settings.get("profile")
    )
    if not is_right:
        return None
    dice = done.dice or {}
    return TrialState(
        trial=trial.id,
        state="done",
        elapsed_seconds=done.elapsed_seconds,
        images_per_second=done.images_per_second,
        mean_dice=sum(dice.values()) / len(dice) if dice else None,
    )
