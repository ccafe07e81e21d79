"""Calls SLURM: submits job scripts, lists the queued trials of a sweep, cancels jobs.

States come from squeue alone, because most small clusters keep no accounting.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet.bench.launch.slurm_job_script import trials_of
from tfunet.files.regular import read_text

SCRIPTS = "slurm"
ANSWER_SECONDS = 60.0
# The path comes last because it may contain the separator.
FORMAT = "%i|%T|%r|%o"
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")


class NoAnswerError(ValueError):
    """SLURM did not answer, or refused; the message has its words."""


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """One line of squeue.

    Args:
        job: "12_3", the fourth trial of the array 12.
        reason: Why the job waits, such as Priority or Resources.
    """

    job: str
    state: str
    reason: str
    script: Path

    @property
    def is_waiting(self) -> bool:
        """Whether it is not running, for the first time or again."""
        return self.state in WAITING

    @property
    def index(self) -> int | None:
        """Its place in the array; None for a job that is no array."""
        match = re.fullmatch(r"\d+_(\d+)", self.job)
        return int(match[1]) if match else None


def submit(script: Path) -> str:
    """Queue a job script and return the job's number; NoAnswerError if SLURM refuses it."""
    return _ask(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]


def own_job(environment: Mapping[str, str]) -> str:
    """Return the number of this process's job; in an array, that of its own task.

    SLURM_JOB_ID does not do: in one task of each array it is the number of the whole array.
    """
    array = environment.get("SLURM_ARRAY_JOB_ID", "")
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array else environment.get("SLURM_JOB_ID", "")


def queue_again(job: str) -> None:
    """Put a running job back into the queue; its script starts again from the first line."""
    _ask(["scontrol", "requeue", job])


def cancel(jobs: Sequence[str]) -> None:
    """Remove jobs from the queue, and end those that run."""
    if jobs:
        _ask(["scancel", *jobs])


def queued_trials(folder: Path) -> dict[str, QueueEntry]:
    """Return the trials of a sweep that are in SLURM's queue, running or waiting.

    Jobs belong to the sweep if their scripts lie in its folder. Without scripts there, SLURM is not
    asked.
    """
    scripts = (folder / SCRIPTS).resolve()
    if not any(scripts.glob("*.sh")):
        return {}
    trials: dict[Path, list[str]] = {}
    entries: dict[str, QueueEntry] = {}
    listing = _ask(["squeue", "--me", "--array", "--noheader", f"--format={FORMAT}"])
    for entry in parse_queue(listing):
        if entry.script.parent != scripts or entry.index is None:
            continue
        if entry.script not in trials:
            with contextlib.suppress(OSError):
                trials[entry.script] = trials_of(read_text(entry.script))
        names = trials.get(entry.script, [])
        if entry.index < len(names):
            entries[names[entry.index]] = entry
    return entries


def check_none_queued(folder: Path) -> None:
    """Raise ValueError if trials of the sweep are in SLURM's queue, which run beside others."""
    if queued := queued_trials(folder):
        raise ValueError(
            f"{folder} has {len(queued)} trials in SLURM's queue. Wait for them (tfunet sweep "
            "wait), cancel them (tfunet sweep cancel), or choose another folder with --out."
        )


def parse_queue(listing: str) -> Iterable[QueueEntry]:
    """Yield the entries of squeue's output in the format FORMAT."""
    for line in listing.splitlines():
        parts = line.split("|", 3)
        if len(parts) == 4:
            job, state, reason, script = parts
            yield QueueEntry(job=job, state=state, reason=reason, script=Path(script))


def _ask(command: list[str]) -> str:
    # A user's defaults (SQUEUE_FORMAT, SCANCEL_STATE) would change the answers.
    skipped = ("SQUEUE_", "SCANCEL_")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(skipped)
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
        )
    except FileNotFoundError as error:
        raise NoAnswerError(
            f"There is no {command[0]} here. Run this on a machine with SLURM's commands, or leave "
            "out --slurm."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{command[0]} did not answer within {ANSWER_SECONDS:.0f} s. Try again later."
        ) from error
    if done.returncode != 0:
        raise NoAnswerError(f"{' '.join(command[:2])} failed: {done.stderr.strip()}")
    return done.stdout
