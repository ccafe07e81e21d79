"""Reads the records of a sweep, or of single runs, into typed objects. Never writes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tfunet import exit_codes
from tfunet.bench.records.file_fields import (
    FAILURE,
    MEASUREMENT,
    PLAN,
    PLANNED_TRIAL,
    SKIPPED,
    Table,
    of_kinds,
    read_parsed,
    table_or_fault,
    tables_of_kind,
)
from tfunet.bench.records.plan_lines import PlanLines, grown, with_only
from tfunet.bench.records.trial_result import Result, check_result, parse_result
from tfunet.config.run import RunConfig, config_of_record
from tfunet.files.typed import (
    FieldError,
    Name,
    RecordError,
    check_fields,
    parse_json,
    read_record,
    shown_path,
)
from tfunet.record import RunFolder

State = Literal["done", "failed", "interrupted", "profiled", "running", "waiting"]
# States of a trial that has its result, and is not run again.
FINISHED = ("done", "profiled")
# Exit codes of runs that a user ended: these are no failures of the trial.
ENDED_BY_USER = (exit_codes.INTERRUPTED, exit_codes.TERMINATED)


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial as its files record it.

    Args:
        state: "done" only if the run ended and all its correctness checks are true.
        reason: Why it is not done; empty for trials that are done or wait.
        exit_code: Exit code of a failed trial, if known.
        result: None unless done: times of failed trials are not used.
        environment: env.json with dotted keys: "versions.tensorflow" to "2.16.2".
        job: Number of its SLURM job while it is queued or runs; not in its files.
        is_readable: Whether its settings could be read; if not, `config` holds the defaults.
        faults: What is wrong in files that its numbers do not need.
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
    is_readable: bool = True
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """The trials of a folder in the order in which they run, skipped cells, and noise.

    `faults` are sentences on what could not be read, beside trials, which say it themselves.
    `samples` are the settings that vary over samples or in a search, whose score is `objective`.
    """

    name: str
    folder: Path
    trials: tuple[TrialRecord, ...]
    skipped: tuple[Mapping[str, Any], ...] = ()
    noise: tuple[Mapping[str, Any], ...] = ()
    faults: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    objective: str = ""
    direction: str = ""
    is_study: bool = True  # False for a run, or runs, that no study planned.

    @property
    def readable(self) -> tuple[TrialRecord, ...]:
        """The trials whose settings are known."""
        return tuple(trial for trial in self.trials if trial.is_readable)


def read_sweep(folder: str | Path) -> SweepRecord:
    """Return the records in the folder of a sweep, of a run, or of several runs."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"There is no folder {str(folder)!r}.")
    if (root / "plan.json").is_file():
        return _planned(root)
    runs = [root] if _has_config(root) else sorted(root.glob("*/"))
    trials = [_lone_run(run) for run in runs if _has_config(run)]
    if not trials:
        raise ValueError(
            f"{str(folder)!r} is not the folder of a sweep (no plan.json), and holds no runs. "
            "To make one: tfunet sweep run STUDY.toml"
        )
    return SweepRecord(
        name=shown_path(root.resolve().name),
        folder=root,
        trials=_number_cells(trials),
        faults=_faults_of(trials),
        is_study=False,
    )


def read_plan(folder: Path, trial: str | None = None) -> dict[str, Any]:
    """Return plan.json of a sweep's folder; raise ValueError if it cannot be used.

    With the name of a trial, all others are left out, and need not be right: each of thousands of
    jobs looks at its own.
    """
    path = folder / "plan.json"
    try:
        text = read_record(path)
        if text is None:
            raise ValueError(f"{folder} is not the folder of a sweep: it has no plan.json.")
        table = parse_json(text if trial is None else with_only(text, trial), Table, path)
        check_fields(table, PLAN)
        if missing := [key for key in ("base", "trials") if key not in table]:
            raise FieldError(f"it has no {missing[0]}")
        if lines := PlanLines(folder).new():
            table["trials"], table["skipped"] = grown(
                table["trials"], table.get("skipped", []), lines
            )
    except (RecordError, FieldError) as error:
        fault = error.fault if isinstance(error, RecordError) else error
        raise ValueError(
            f"{path} cannot be read ({fault}). Run the sweep again with its study: this writes "
            "plan.json anew and keeps the finished trials."
        ) from error
    return table


def planned_config(base: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a trial of plan.json; raise FieldError for a wrong one."""
    return config_of_record({**base, **changes})


def planned_trials(root: Path, table: Mapping[str, Any]) -> list[TrialRecord]:
    """Return the trials of plan.json, waiting; those that cannot be read are failed.

    Raises ValueError if none can be read.
    """
    trials: list[TrialRecord] = []
    names: set[str] = set()
    for number, planned in enumerate(table["trials"]):
        name = field = f"trials[{number}]"
        try:
            check_fields(planned, {"id": Name}, field)
            if planned.get("id") in names:
                raise FieldError(f"{field}.id: an earlier trial is called {planned['id']!r} too")
            name = planned.get("id", name)
            check_fields(planned, PLANNED_TRIAL, field)
            if missing := [key for key in ("id", "cell", "changes") if key not in planned]:
                raise FieldError(f"{field} has no {missing[0]}")
            trials.append(_planned_trial(root, table, planned))
        except ValueError as error:
            trials.append(_unreadable(root / "plan.json", name, number, error))
        names.add(name)
    if trials and not any(trial.is_readable for trial in trials):
        raise ValueError(
            f"{root / 'plan.json'} cannot be read ({trials[0].reason}). Run the sweep again with "
            "its study: this writes plan.json anew and keeps the finished trials. A plan of "
            "another version of tfunet needs that version, or another folder."
        )
    return trials


def read_trial(trial: TrialRecord, is_running: bool = False) -> TrialRecord:
    """Return the trial with everything that the files in its folder record."""
    read = _read_end(trial)
    # A trainer may have failed while others of its population run.
    has_failed = bool(trial.config.tournament) and read.state == "failed"
    if is_running and read.state not in FINISHED and not has_failed:
        read = replace(trial, state="running")
    faults: list[str] = []
    environment = table_or_fault(trial.folder / "env.json", faults, trial.id)
    return replace(read, environment=flatten(environment), faults=tuple(faults))


def planned_trial(root: Path, name: str) -> TrialRecord:
    """Return a trial of a sweep from its files; raise ValueError if the plan does not have it."""
    table = read_plan(root, name)
    named = [
        trial for trial in table["trials"] if isinstance(trial, dict) and trial.get("id") == name
    ]
    for trial in planned_trials(root, {**table, "trials": named}):
        if trial.is_readable:
            return read_trial(trial)
    raise ValueError(f"The sweep in {root} has no trial {name!r}.")


def running_trials(root: Path, faults: list[str]) -> tuple[str, ...]:
    """Return the trials that a sweep on this machine runs now; add to `faults` what is wrong."""
    if not RunFolder(root).is_locked():
        return ()
    table = table_or_fault(root / "running.json", faults)
    # The trainers of a population run together.
    together = table.get("trials")
    return tuple(map(str, together if isinstance(together, list) else [table.get("trial")]))


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
    faults: list[str] = []
    running = running_trials(root, faults)
    trials = [
        read_trial(trial, is_running=trial.id in running) if trial.is_readable else trial
        for trial in planned_trials(root, table)
    ]
    noise = table_or_fault(root / "noise.json", faults).get("measurements", [])
    return SweepRecord(
        name=shown_path(table.get("study", root.resolve().name)),
        folder=root,
        trials=tuple(trials),
        skipped=tables_of_kind(table.get("skipped", []), SKIPPED, "plan.json", "skipped", faults),
        noise=tables_of_kind(noise, MEASUREMENT, "noise.json", "measurements", faults),
        faults=(*faults, *_faults_of(trials)),
        samples=tuple(table.get("samples", ())),
        objective=table.get("objective", ""),
        direction=table.get("direction", ""),
    )


def _faults_of(trials: Iterable[TrialRecord]) -> tuple[str, ...]:
    return tuple(fault for trial in trials for fault in trial.faults)


def _unreadable(path: Path, name: str, number: int, fault: object) -> TrialRecord:
    """Return the failed row of a trial whose settings cannot be read."""
    return TrialRecord(
        id=name,
        folder=path.with_name(name),
        cell=-1 - number,
        repeat=1,
        scaling="weak",
        settings={},
        config=RunConfig(),
        state="failed",
        reason=f"{path.name} cannot be used: {fault}",
        environment={},
        is_readable=False,
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


def _has_config(folder: Path) -> bool:
    path = folder / "config.json"
    return path.is_symlink() or path.exists()


def _lone_run(folder: Path) -> TrialRecord:
    name = shown_path(folder.resolve().name)
    try:
        config = RunFolder(folder).read_config()
    except RecordError as error:
        return replace(_unreadable(error.path, name, 0, error.fault), folder=folder)
    if config is None:
        return replace(_unreadable(folder / "config.json", name, 0, "it is gone"), folder=folder)
    trial = TrialRecord(
        id=name,
        folder=folder,
        cell=0,
        repeat=1,
        scaling="weak",
        settings={"backend": config.backend, "num_replicas": config.num_replicas},
        config=config,
        environment={},
    )
    return read_trial(trial)


def _number_cells(trials: list[TrialRecord]) -> tuple[TrialRecord, ...]:
    """Put runs that differ only in the seed into one cell, and number its repeats."""
    readable = [trial for trial in trials if trial.is_readable]
    global_batches = {trial.config.global_batch for trial in readable}
    counts = {trial.config.num_replicas for trial in readable}
    scaling = "strong" if len(counts) > 1 and len(global_batches) == 1 else "weak"
    cells: dict[str, int] = {}
    repeats: dict[str, int] = {}
    numbered = []
    for trial in trials:
        # What cannot be read is in no cell with others.
        key = repr(replace(trial.config, seed=0)) if trial.is_readable else trial.id
        cells.setdefault(key, len(cells))
        repeats[key] = repeats.get(key, 0) + 1
        numbered.append(replace(trial, cell=cells[key], repeat=repeats[key], scaling=scaling))
    return tuple(numbered)


def _read_end(trial: TrialRecord) -> TrialRecord:
    """Return the trial with how it ended."""
    folder = trial.folder
    try:
        if (result := read_parsed(folder / "result.json", parse_result)) is not None:
            return _with_result(trial, result)
        if (failure := read_parsed(folder / "failure.json", of_kinds(FAILURE))) is not None:
            code = failure.get("exit_code")
            return replace(
                trial,
                state="interrupted" if code in ENDED_BY_USER else "failed",
                reason=failure.get("reason", "no reason was recorded"),
                exit_code=code,
            )
    except RecordError as error:
        return replace(trial, state="failed", reason=error.row)
    if (folder / "config.toml").exists() or (folder / "config.json").exists():
        if RunFolder(folder).is_locked():  # By a run that another program than a sweep started.
            return replace(trial, state="running")
        return replace(trial, state="interrupted", reason="never finished")
    return trial


def _with_result(trial: TrialRecord, result: Result) -> TrialRecord:
    try:
        check_result(result, trial.config)
    except FieldError as error:
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
