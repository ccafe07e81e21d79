"""Runs a trial in its SLURM job: `python -m tfunet.bench.slurm_trial --code HASH FOLDER srun ...`.

The last line of a job script. It records how srun ended; the processes of the run write the rest.
"""

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet import exit_codes
from tfunet.bench.launch.child_process import signals_noted
from tfunet.bench.launch.one_trial import execute
from tfunet.bench.launch.population_trials import goes_on
from tfunet.bench.launch.process_output import LOG_BYTES, TAIL_LINES, last_words
from tfunet.bench.launch.slurm_queue import NoAnswerError, own_job, queue_again
from tfunet.bench.launch.sweep_folder import set_aside
from tfunet.bench.records import sweep_record
from tfunet.bench.records.run_tables import read_steps
from tfunet.files.regular import read_end
from tfunet.machine.environment import code_hash
from tfunet.process.terminal import counted, lines_of
from tfunet.record import RunFolder

# As srun 22.05 prints it: "srun: error: n10: task 1: Killed", "srun: error: n2: tasks 0-1: Exited
# with exit code 2".
ENDED = re.compile(r"^srun: error: (\S+): tasks? (\d+)[^:]*: (.+)$", re.MULTILINE)
# The share of an attempt that steps should take.
LEAST_SHARE = 0.25
EXITED = re.compile(r"Exited with exit code (\d+)")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The first process that srun reports as failed; it ends the others because of it."""

    host: str
    process: int
    words: str

    @property
    def exit_code(self) -> int:
        """The exit code of the trial."""
        match = EXITED.search(self.words)
        code = int(match[1]) if match else exit_codes.PROCESS_DIED
        return code if code in exit_codes.ON_PURPOSE else exit_codes.PROCESS_DIED


def first_failure(messages: str) -> Ended | None:
    """Return the process that srun's messages name first, or None."""
    match = ENDED.search(messages)
    if not match:
        return None
    return Ended(host=match[1], process=int(match[2]), words=match[3].strip())


def run_trial(
    trial: sweep_record.TrialRecord,
    command: Sequence[str],
    code: str,
    environment: Mapping[str, str],
) -> int:
    """Run `command`, which runs the trial, and return an exit code.

    A job that was queued again goes on from its checkpoint, and so does the trainer of a
    tournament; any other job starts anew. After exit code 75 of the command, the job is queued
    again.
    """
    folder = RunFolder(trial.folder)
    if trial.folder.is_dir() and folder.is_locked():
        raise ValueError(f"{trial.folder} is in use by another job.")
    is_again = int(environment.get("SLURM_RESTART_COUNT") or 0) > 0
    has_begun = is_again and (trial.folder / "checkpoint.npz").is_file()
    if not (has_begun or goes_on(trial)):
        set_aside(trial.folder, trial.folder.parent)
    folder.create()
    with signals_noted() as noted, folder.locked():
        if (now := code_hash()) != code:
            folder.write_failure(
                f"the code has changed since the job was submitted (from {code} to {now}): submit "
                "it again with tfunet sweep resume, or go back to the earlier code",
                exit_codes.BAD_INPUT,
            )
            return exit_codes.BAD_INPUT
        folder.clear_failure()
        folder.write_config(trial.config)
        log = trial.folder / "log.txt"
        before, began = len(read_steps(trial.folder)["step"]), time.monotonic()
        ended = execute(command, log, noted, forward=False)
        if folder.is_done():
            return exit_codes.OK
        if noted:
            # SLURM ends the job, and decides whether it runs again.
            folder.write_failure("ended by SLURM: cancelled, preempted or out of time", 143)
            return exit_codes.TERMINATED
        if ended == exit_codes.STOPPED:
            return _again(folder, own_job(environment), before, time.monotonic() - began)
        return _explain(ended, trial, folder, read_end(log, LOG_BYTES))


def _again(folder: RunFolder, job: str, before: int, seconds: float) -> int:
    """Queue the job again; its reason says how far this attempt of so many seconds came."""
    taken = read_steps(folder.path)["seconds"]
    reason = (
        f"stopped by a signal of SLURM after step {len(taken)}, to run again: this attempt made "
        f"{counted(len(taken) - before, 'step')} in {seconds:.0f} s"
    )
    if sum(taken[before:]) < LEAST_SHARE * seconds:
        reason += ", most of which went into its start: give time= in [slurm] more"
    print(f"tfunet: {reason}")
    folder.write_failure(reason, exit_codes.TERMINATED)
    try:
        queue_again(job)
    except NoAnswerError as error:
        print(lines_of(f"tfunet: {error}. To run it again: tfunet sweep resume"), file=sys.stderr)
    return exit_codes.STOPPED


def _explain(code: int, trial: sweep_record.TrialRecord, folder: RunFolder, messages: str) -> int:
    failed = first_failure(messages)
    if failed is None:
        errors = [line for line in messages.splitlines() if "error" in line]
        reason = errors[-1] if errors else f"srun ended with exit code {code} and without a result"
        folder.write_failure(reason, exit_codes.PROCESS_DIED)
        return exit_codes.PROCESS_DIED
    log = folder.log_path(failed.process)
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = read_end(log, LOG_BYTES).splitlines()
    said = last_words(lines[-TAIL_LINES:])
    reason = f"process {failed.process} on {failed.host}: {failed.words}, see {log.name}"
    folder.write_failure(f"{reason}: {said}" if said else reason, failed.exit_code, failed.process)
    return failed.exit_code


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tfunet.bench.slurm_trial", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="folder of the trial, inside the folder of its sweep"
    )
    parser.add_argument("--code", required=True, help="hash of the planned code")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command that runs the trial")
    options = parser.parse_args()
    try:
        trial = sweep_record.planned_trial(options.folder.parent, options.folder.name)
        if trial.state in sweep_record.FINISHED:
            print(f"{trial.id} is done already.")
            return exit_codes.OK
        return run_trial(trial, options.command, options.code, os.environ)
    except (ValueError, OSError) as error:
        print(f"error: {lines_of(error)}", file=sys.stderr)
        return exit_codes.of_error(error) or exit_codes.PROCESS_DIED


if __name__ == "__main__":
    sys.exit(main())
