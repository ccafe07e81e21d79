"""Runs a study's trials one after the other, each in a fresh process; can be resumed."""

import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet import exit_codes
from tfunet.bench.launch.child_process import exit_code_of, signals_noted
from tfunet.bench.launch.one_trial import (
    first_exit_code,
    run_trial,
    train_command,
    trial_line,
)
from tfunet.bench.launch.population_trials import run_population, together
from tfunet.bench.launch.search_sweep import run_search
from tfunet.bench.launch.slurm_queue import check_none_queued
from tfunet.bench.launch.sweep_folder import adopted, write_plan
from tfunet.bench.launch.time_left import TimeLeft, duration
from tfunet.bench.records.sweep_record import (
    SweepRecord,
    TrialRecord,
    read_sweep,
    read_trial,
)
from tfunet.bench.study.machine_noise import measure_noise
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.config.tournament import read_tournament
from tfunet.files.atomic import write_atomic, writing
from tfunet.files.typed import RecordError, read_json
from tfunet.process.launcher_variables import check_alone
from tfunet.process.terminal import lines_of
from tfunet.record import RunFolder

NOT_DONE = ("waiting", "interrupted", "failed")
FIRST = (
    "First a fixed computation is timed, to see how steady this machine is. A trial loads "
    "TensorFlow, trains, and has a line here once it has ended."
)


def say_now(line: str) -> None:
    """Print a line and flush it, so that a pipe passes it on at once."""
    print(lines_of(line), flush=True)


def run_sweep(
    study: Study,
    folder: str | Path,
    *,
    command: Callable[[Path], Sequence[str]] = train_command,
    states: Collection[str] = NOT_DONE,
    num_cores: int | None = None,
    refuses: bool = False,
    say: Callable[[str], None] = say_now,
    noise: Callable[[], Mapping[str, Any]] = measure_noise,
) -> int:
    """Run the trials of `study` that are in one of `states`, and return an exit code.

    A trial is done if its result.json has all checks true. A failed trial is run again from its
    start, and the record of the earlier attempt goes to earlier/. The folder may hold an earlier
    version of the study: new trials are added. Raises ValueError, before anything changes, if a
    trial that was run is no longer in the study, or if another sweep is running in the folder, here
    or under SLURM.

    Args:
        command: Returns the command that runs the trial in a folder and writes its record there.
        num_cores: Cores to plan for; by default all of this machine.
        refuses: Raise ValueError before the first trial, if `tfunet train` would refuse trials.
        say: Receives a line for each trial.
        noise: Measures how steady the machine is; called before and after.

    Returns 0, the exit code of the first failed trial, or 130 or 143 if a signal ended the sweep.
    """
    check_alone(os.environ, "run the whole sweep")
    if study.search is not None:
        return run_search(study, folder, command=command, refuses=refuses, say=say)
    planned = plan_trials(study, num_cores)
    root = Path(folder)
    check_none_queued(root)
    RunFolder(root).create()
    with RunFolder(root).locked(), signals_noted() as noted:
        with writing(root / "running.json"):  # A killed sweep leaves it behind.
            (root / "running.json").unlink(missing_ok=True)
        planned = adopted(planned, root)
        write_plan(planned, root)
        sweep = read_sweep(root)
        todo = [trial for trial in sweep.trials if trial.state in states]
        if refuses:
            # Not above: data sets need NumPy, which only this takes.
            from tfunet.bench.study.refusals import refusals, refuse

            refuse(refusals(planned, [trial.id for trial in todo], lambda: bool(noted)))
        begin = f"{sweep.name}: {len(todo)} of {len(sweep.trials)} trials to run in {root}."
        if not noted:
            say(f"{begin}\n{FIRST}\nTo watch: tfunet sweep watch {root}" if todo else begin)
        if todo and not noted:
            note_noise(root, "before", noise)
            _run_trials(todo, sweep, root, command, noted, say)
        if noted:
            say("Ended by a signal. Run the same command to go on.")
            return exit_code_of(noted)
        if todo:
            note_noise(root, "after", noise)
        ended = read_sweep(root).trials
        return first_exit_code(trial for trial in ended if trial.state == "failed")


def _run_trials(
    todo: Sequence[TrialRecord],
    sweep: SweepRecord,
    root: Path,
    command: Callable[[Path], Sequence[str]],
    noted: Sequence[int],
    say: Callable[[str], None],
) -> None:
    seconds: dict[int, list[float]] = {}
    for trial in sweep.trials:
        if trial.result is not None and trial.result.elapsed_seconds:
            seconds.setdefault(trial.cell, []).append(trial.result.elapsed_seconds)
    left = TimeLeft(todo, seconds)
    number = 0
    for group in together(todo):
        if noted:
            return
        since = time.perf_counter()
        code = _run_group(group, root, command, noted, say)
        spent = time.perf_counter() - since
        for trial in group:
            number += 1
            ended = read_trial(trial)
            left.ended(trial.cell, spent / len(group) if ended.state == "done" else None)
            say(f"[{number}/{len(todo)}] {trial_line(ended, spent)}" + _estimate(left.seconds))
        if code == exit_codes.NOT_WRITTEN:
            say("Files cannot be written, so the sweep ends here.")
            return


def _estimate(left: float | None) -> str:
    return f"  (about {duration(left)} left)" if left else ""


def _run_group(
    trials: Sequence[TrialRecord],
    root: Path,
    command: Callable[[Path], Sequence[str]],
    noted: Sequence[int],
    say: Callable[[str], None],
) -> int:
    """Run a trial, or the trainers of a population."""
    running: dict[str, Any] = {"trial": trials[0].id, "process": os.getpid()}
    tournament = read_tournament(trials[0].config.tournament)
    if tournament is not None:
        running["trials"] = [trial.id for trial in trials]
    write_atomic(root / "running.json", json.dumps(running))

    try:
        if tournament is None:
            return run_trial(trials[0], root, command, noted)
        return run_population(
            trials,
            tournament,
            lambda trial, *given: run_trial(trial, root, command, noted, *given),
            noted,
            say,
        )
    finally:
        (root / "running.json").unlink(missing_ok=True)


def note_noise(
    root: Path, when: str, noise: Callable[[], Mapping[str, Any]] = measure_noise
) -> None:
    """Add to noise.json how steady the machine is now."""
    path = root / "noise.json"
    try:
        earlier = (read_json(path, dict[str, Any]) or {}).get("measurements")
    except RecordError:
        earlier = None
    earlier = earlier if isinstance(earlier, list) else []
    table = {"schema_version": 1, "measurements": [*earlier, {"when": when, **noise()}]}
    write_atomic(path, json.dumps(table, indent=1))
