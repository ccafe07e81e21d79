"""Reads the records of a sweep, or of single runs, into typed objects. Never writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tfunet import exit_codes
from tfunet.bench.records.trial_result import Result, check_result, parse_result
from tfunet.config.run import RunConfig, from_json, upgraded
from tfunet.record import RunFolder

State = Literal["done", "failed", "hopeless", "interrupted", "profiled", "running", "waiting"]
# States of a trial that has its result, and is not run again.
FINISHED = ("done", "profiled")
# File in the folder of a trial that is not run because its cell is hopeless; has the reason.
HOPELESS = "hopeless.json"
# Exit codes of runs that a user ended: these are no failures of the trial.
ENDED_BY_USER = (exit_codes.INTERRUPTED, exit_codes.TERMINATED)


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial as its files record it.

    Args:
        state: "done" only if the run ended and all its correctness checks are true; "hopeless" if
            it was not run because its cell was given up (tfunet.bench.study.hopeless).
        reason: Why it is not done; empty for trials that are done or wait.
        exit_code: Exit code of a failed trial, if known.
        result: None unless done: times of failed trials are not used.
        environment: env.json with dotted keys: "versions.tensorflow" to "2.16.2".
        job: Number of its SLURM job while it is queued or runs; not in its files.
    """

    id: str
    folder: Path
    cell: int
    repeat: int
    scaling: str
    settings: Mapping[str, Any]
    config: RunConfig
    state: State = "waiting"
    reason: str = ""
    exit_code: int | None = None
    result: Result | None = None
    environment: Mapping[str, Any]
    job: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """The trials of a folder in the order in which they run, skipped cells, and noise."""

    name: str
    folder: Path
    trials: tuple[TrialRecord, ...]
    skipped: tuple[Mapping[str, Any], ...] = ()
    noise: tuple[Mapping[str, Any], ...] = ()


def read_sweep(folder: str | Path) -> SweepRecord:
    """Return the records in the folder of a sweep, of a run, or of several runs."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"There is no folder {str(folder)!r}.")
    if (root / "plan.json").is_file():
        return _planned(root)
    runs = [root] if (root / "config.json").is_file() else sorted(root.glob("*/"))
    trials = [_lone_run(run) for run in runs if (run / "config.json").is_file()]
    if not trials:
        raise ValueError(
            f"{str(folder)!r} is not the folder of a sweep (no plan.json), and holds no runs. "
            "To make one: tfunet sweep run STUDY.toml"
        )
    return SweepRecord(name=root.resolve().name, folder=root, trials=_number_cells(trials))


def read_plan(folder: Path) -> dict[str, Any]:
    """Return plan.json of a sweep's folder; raise ValueError if it cannot be used."""
    path = folder / "plan.json"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        # Check the keys that all readers rely on.
        [(trial["id"], trial["cell"], trial["changes"]) for trial in table["trials"]], table["base"]
    except FileNotFoundError as error:
        raise ValueError(f"{folder} is not the folder of a sweep: it has no plan.json.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error!r}). Run the sweep again with its study: this writes "
            "plan.json anew and keeps the finished trials."
        ) from error
    return dict(table)


def planned_config(base: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a trial of plan.json."""
    values = upgraded({**base, **changes})
    for key, value in values.items():
        if isinstance(value, list):
            values[key] = tuple(value)
    try:
        return RunConfig(**values)
    except TypeError as error:
        raise ValueError(
            f"plan.json was written by another version of tfunet ({error}). Use that version, or "
            "run the study in another folder."
        ) from error


def read_trial(trial: TrialRecord, is_running: bool = False) -> TrialRecord:
    """Return the trial with everything that the files in its folder record."""
    read = _read_end(trial)
    if is_running and read.state not in FINISHED:
        read = replace(trial, state="running")
    return replace(read, environment=flatten(_json(trial.folder / "env.json") or {}))


def planned_trial(root: Path, name: str) -> TrialRecord:
    """Return a trial of a sweep from its files; raise ValueError if the plan does not have it."""
    table = read_plan(root)
    for trial in table["trials"]:
        if trial["id"] == name:
            return read_trial(_planned_trial(root, table, trial))
    raise ValueError(f"The sweep in {root} has no trial {name!r}.")


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _planned(root: Path) -> SweepRecord:
    table = read_plan(root)
    running = (
        (_json(root / "running.json") or {}).get("trial") if RunFolder(root).is_locked() else None
    )
    trials = [
        read_trial(_planned_trial(root, table, trial), is_running=trial["id"] == running)
        for trial in table["trials"]
    ]
    return SweepRecord(
        name=table.get("study", root.name),
        folder=root,
        trials=tuple(trials),
        skipped=tuple(table.get("skipped", ())),
        noise=tuple((_json(root / "noise.json") or {}).get("measurements", ())),
    )


def _planned_trial(root: Path, table: Mapping[str, Any], planned: Mapping[str, Any]) -> TrialRecord:
    return TrialRecord(
        id=planned["id"],
        folder=root / planned["id"],
        cell=planned["cell"],
        repeat=planned.get("repeat", 1),
        scaling=planned.get("scaling", "weak"),
        settings=planned.get("settings", {}),
        config=planned_config(table["base"], planned["changes"]),
        environment={},
    )


def _lone_run(folder: Path) -> TrialRecord:
    try:
        config = from_json((folder / "config.json").read_text(encoding="utf-8"))
        fault = ""
    except (ValueError, TypeError, AttributeError) as error:
        config, fault = RunConfig(), f"config.json cannot be read: {error}"
    trial = TrialRecord(
        id=folder.resolve().name,
        folder=folder,
        cell=0,
        repeat=1,
        scaling="weak",
        settings={"backend": config.backend, "num_replicas": config.num_replicas},
        config=config,
        environment={},
    )
    return replace(trial, state="failed", reason=fault) if fault else read_trial(trial)


def _number_cells(trials: list[TrialRecord]) -> tuple[TrialRecord, ...]:
    """Put runs that differ only in the seed into one cell, and number its repeats."""
    global_batches = {trial.config.global_batch for trial in trials}
    counts = {trial.config.num_replicas for trial in trials}
    scaling = "strong" if len(counts) > 1 and len(global_batches) == 1 else "weak"
    cells: dict[str, int] = {}
    repeats: dict[str, int] = {}
    numbered = []
    for trial in trials:
        key = repr(replace(trial.config, seed=0))
        cells.setdefault(key, len(cells))
        repeats[key] = repeats.get(key, 0) + 1
        numbered.append(replace(trial, cell=cells[key], repeat=repeats[key], scaling=scaling))
    return tuple(numbered)


def _read_end(trial: TrialRecord) -> TrialRecord:
    """Return the trial with how it ended."""
    folder = trial.folder
    text = _text(folder / "result.json")
    if text is not None:
        return _read_result(trial, text)
    failure = _json(folder / "failure.json")
    if failure is not None:
        code = failure.get("exit_code")
        return replace(
            trial,
            state="interrupted" if code in ENDED_BY_USER else "failed",
            reason=str(failure.get("reason", "no reason was recorded")),
            exit_code=code if isinstance(code, int) else None,
        )
    if (folder / "failure.json").exists():
        return replace(trial, state="failed", reason="failure.json cannot be read")
    if (given_up := _json(folder / HOPELESS)) is not None:
        return replace(trial, state="hopeless", reason=str(given_up.get("reason", "")))
    if (folder / "config.toml").exists() or (folder / "config.json").exists():
        return replace(trial, state="interrupted", reason="never finished")
    return trial


def _read_result(trial: TrialRecord, text: str) -> TrialRecord:
    try:
        result = parse_result(json.loads(text))
        check_result(result, trial.config)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return replace(trial, state="failed", reason=f"result.json cannot be used: {error}")
    wrong = [name for name, passed in result.checks.items() if passed is not True]
    if wrong or not result.checks:
        fault = f"failed: {', '.join(wrong)}" if wrong else "are missing"
        return replace(
            trial,
            state="failed",
            reason=f"correctness checks {fault}",
            exit_code=exit_codes.CHECK_FAILED,
        )
    if trial.config.profile:
        return replace(trial, state="profiled", reason="profiled: its times are not compared")
    return replace(trial, state="done", result=result)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _json(path: Path) -> dict[str, Any] | None:
    """Return a JSON table; None if the file is missing or cannot be read."""
    try:
        table = json.loads(_text(path) or "")
    except ValueError:
        return None
    return table if isinstance(table, dict) else None
