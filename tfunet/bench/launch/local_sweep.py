"""Runs a study's trials one after the other, each in a fresh process; can be resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tfunet import exit_codes
from tfunet.bench.launch.child_process import CHILD, signals_noted
from tfunet.bench.launch.population_trials import goes_on, run_population, together
from tfunet.bench.launch.process_output import LOG_BYTES
from tfunet.bench.launch.slurm_queue import queued_trials
from tfunet.bench.launch.sweep_folder import adopted, set_aside, write_plan
from tfunet.bench.launch.time_left import TimeLeft
from tfunet.bench.records.sweep_record import (
    SweepRecord,
    TrialRecord,
    read_sweep,
    read_trial,
)
from tfunet.bench.study.machine_noise import measure_noise
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.toml_writer import config_toml
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.config.tournament import read_tournament
from tfunet.files.atomic import write_atomic, writing
from tfunet.files.regular import open_regular, read_end
from tfunet.files.typed import RecordError, read_json
from tfunet.machine.cores import usable_cores
from tfunet.process.launcher_variables import check_alone
from tfunet.process.stop_request import TRIAL_VARIABLE
from tfunet.process.terminal import lines_of
from tfunet.record import RunFolder

# Time between the signal and SIGKILL: a run needs some seconds to end its processes.
GRACE_SECONDS = 20.0
TICK_SECONDS = 0.2
NOT_DONE = ("waiting", "interrupted", "failed")
FIRST = (
    "First a fixed computation is timed, to see how steady this machine is. A trial loads "
    "TensorFlow, trains, and has a line here once it has ended."
)


def train_command(folder: Path) -> list[str]:
    """Return the command that runs the trial whose config.toml lies in `folder`."""
    config = str(folder / "config.toml")
    return [sys.executable, "-m", "tfunet", "train", "--config", config, "--out", str(folder)]


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
        from tfunet.bench.launch.search_sweep import run_search

        return run_search(study, folder, command=command, refuses=refuses, say=say)
    planned = plan_trials(study, num_cores)
    root = Path(folder)
    if queued := queued_trials(root):
        raise ValueError(
            f"{root} has {len(queued)} trials in SLURM's queue. Wait for them (tfunet sweep wait), "
            "cancel them (tfunet sweep cancel), or choose another folder."
        )
    RunFolder(root).create()
    with RunFolder(root).locked(), signals_noted() as noted:
        # A killed sweep leaves it behind; the lock says that no other sweep runs here.
        with writing(root / "running.json"):
            (root / "running.json").unlink(missing_ok=True)
        planned = adopted(planned, root)
        write_plan(planned, root)
        sweep = read_sweep(root)
        todo = [trial for trial in sweep.trials if trial.state in states]
        if refuses:
            # Not above: data sets need NumPy, which only this takes.
            from tfunet.bench.study.refusals import refusals, refuse

            refuse(refusals(planned, [trial.id for trial in todo]))
        begin = f"{sweep.name}: {len(todo)} of {len(sweep.trials)} trials to run in {root}."
        say(f"{begin}\n{FIRST}\nTo watch: tfunet sweep watch {root}" if todo else begin)
        if todo:
            note_noise(root, "before", noise)
            _run_trials(todo, sweep, root, command, noted, say)
        if noted:
            say("Ended by a signal. Run the same command to go on.")
            return exit_codes.INTERRUPTED if noted[0] == signal.SIGINT else exit_codes.TERMINATED
        if todo:
            note_noise(root, "after", noise)
        return first_exit_code(
            trial for trial in read_sweep(root).trials if trial.state == "failed"
        )


def duration(seconds: float) -> str:
    """Return seconds in a readable unit: "45 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


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


def trial_line(trial: TrialRecord, seconds: float) -> str:
    """Return how a trial ended, in one line."""
    result = trial.result
    if result is None:
        return f"{trial.id}  {duration(seconds)}  {trial.state}: {trial.reason}"
    dice = "" if result.mean_dice is None else f"  Dice {result.mean_dice:.3f}"
    return f"{trial.id}  {duration(seconds)}  {result.images_per_second:.1f} images/s{dice}"


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

    def run(
        trial: TrialRecord,
        cores: Sequence[int] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        return run_trial(trial, root, command, noted, cores, variables)

    try:
        if tournament is None:
            return run(trials[0])
        return run_population(trials, tournament, run, noted, say)
    finally:
        (root / "running.json").unlink(missing_ok=True)


def run_trial(
    trial: TrialRecord,
    root: Path,
    command: Callable[[Path], Sequence[str]],
    noted: Sequence[int],
    cores: Sequence[int] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run one trial from its start, and make sure that its folder records how it ended.

    Returns its exit code. The trainer of a tournament goes on from its checkpoint, since others
    have met it.
    """
    if not goes_on(trial):
        set_aside(trial.folder, root)
    folder = RunFolder(trial.folder)
    folder.create()
    folder.clear_failure()
    write_atomic(trial.folder / "config.toml", config_toml(trial.config))
    log = trial.folder / "log.txt"
    given = {**variables, TRIAL_VARIABLE: "1"}
    code = execute(command(trial.folder), log, noted, cores=cores, variables=given)
    if folder.is_done():
        return code
    has_reason = (trial.folder / "failure.json").exists()
    if noted and (not has_reason or read_trial(trial).state == "failed"):
        folder.write_failure("ended by a signal", exit_codes.INTERRUPTED)
    elif not has_reason:
        reason, code = _explain(code, trial.folder / "log.txt")
        folder.write_failure(reason, code)
    return code


def execute(
    command: Sequence[str],
    log: Path,
    noted: Sequence[int],
    *,
    forward: bool = True,
    cores: Sequence[int] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run a command that dies with this thread, its output in `log`; return its exit code.

    It runs on `cores`, by default all, with `variables` in its environment.

    A noted signal is passed on, followed by SIGKILL after some time. Without `forward`, the sender
    of the signal is expected to end the command.
    """
    where = ",".join(map(str, cores or usable_cores()))
    start = [sys.executable, "-I", "-S", str(CHILD), str(os.getpid()), where]
    with writing(log):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        output = os.fdopen(open_regular(log, flags), "wb")
    with output:
        process = subprocess.Popen(
            [*start, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            return _wait(process, noted if forward else ())
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], noted: Sequence[int]) -> int:
    deadline: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=TICK_SECONDS)
        if noted and deadline is None:
            process.send_signal(noted[0])
            deadline = time.monotonic() + GRACE_SECONDS
        elif deadline is not None and (time.monotonic() > deadline or len(noted) > 1):
            os.killpg(process.pid, signal.SIGKILL)


def _explain(code: int, log: Path) -> tuple[str, int]:
    """Return reason and exit code of a trial that recorded neither result nor failure."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}", exit_codes.PROCESS_DIED
    if code == exit_codes.OK:
        return "ended without a result", exit_codes.PROCESS_DIED
    lines = read_end(log, LOG_BYTES).strip().splitlines()
    return (lines[-1].strip() if lines else f"ended with exit code {code}"), code


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


def first_exit_code(trials: Iterable[TrialRecord]) -> int:
    """Return the exit code of the first of these trials, which failed; 0 if there are none."""
    return next((trial.exit_code or exit_codes.PROCESS_DIED for trial in trials), exit_codes.OK)
