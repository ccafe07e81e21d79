"""Runs one trial in a fresh process, with its output in a log, and says how it ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tfunet import exit_codes
from tfunet.bench.launch.population_trials import goes_on
from tfunet.bench.launch.process_output import LOG_BYTES
from tfunet.bench.launch.sweep_folder import set_aside
from tfunet.bench.launch.time_left import duration
from tfunet.bench.records.sweep_record import TrialRecord, read_trial
from tfunet.bench.study.toml_writer import config_toml
from tfunet.files.atomic import write_atomic, writing
from tfunet.files.regular import open_regular, read_end
from tfunet.machine.cores import usable_cores
from tfunet.process.exec_on_cores import on_cores
from tfunet.process.stop_request import TRIAL_VARIABLE
from tfunet.record import RunFolder

# Time between the signal and SIGKILL: a run needs some seconds to end its processes.
GRACE_SECONDS = 20.0
TICK_SECONDS = 0.2


def train_command(folder: Path) -> list[str]:
    """Return the command that runs the trial whose config.toml lies in `folder`."""
    config = str(folder / "config.toml")
    return [sys.executable, "-m", "tfunet", "train", "--config", config, "--out", str(folder)]


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
    with writing(log):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        output = os.fdopen(open_regular(log, flags), "wb")
    with output:
        process = subprocess.Popen(
            on_cores(where, command),
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


def trial_line(trial: TrialRecord, seconds: float) -> str:
    """Return how a trial ended, in one line."""
    result = trial.result
    if result is None:
        return f"{trial.id}  {duration(seconds)}  {trial.state}: {trial.reason}"
    dice = "" if result.mean_dice is None else f"  Dice {result.mean_dice:.3f}"
    return f"{trial.id}  {duration(seconds)}  {result.images_per_second:.1f} images/s{dice}"


def first_exit_code(trials: Iterable[TrialRecord]) -> int:
    """Return the exit code of the first of these trials, which failed; 0 if there are none."""
    return next((trial.exit_code or exit_codes.PROCESS_DIED for trial in trials), exit_codes.OK)
