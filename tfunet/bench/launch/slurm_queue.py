"""Asks SLURM: submits job scripts, says which trials of a sweep are queued, cancels them.

Through squeue alone: most small clusters keep no accounting.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet.bench.launch.slurm_job_script import trials_of

SCRIPTS = "slurm"
ANSWER_SECONDS = 60.0
# The path last: it alone may hold the separator.
FORMAT = "%i|%T|%r|%o"
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")


class NoAnswerError(ValueError):
    """SLURM did not do what it was asked; the message has its words."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of squeue.

    Args:
        job: "12_3", the fourth trial of the array 12.
        state: In SLURM's words, such as PENDING.
        reason: Why it waits, such as Priority or Resources.
        script: Path of the job script.
    """

    job: str
    state: str
    reason: str
    script: Path

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun, or not begun again."""
        return self.state in WAITING

    @property
    def index(self) -> int | None:
        """Its place in the array; None for a job that is none."""
        match = re.fullmatch(r"\d+_(\d+)", self.job)
        return int(match[1]) if match else None


def submit(script: Path) -> str:
    """Queue a job script and return the job's number; NoAnswerError if SLURM refuses it."""
    return _ask(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]


def own_job(environment: Mapping[str, str]) -> str:
    """Return the number of the job that this process is in; in an array, of its task alone.

    Not SLURM_JOB_ID: in one task of each array that is the number of the whole array.
    """
    array = environment.get("SLURM_ARRAY_JOB_ID", "")
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array else environment.get("SLURM_JOB_ID", "")


def queue_again(job: str) -> None:
    """Have a running job end and wait in the queue; it starts from its script's first line."""
    _ask(["scontrol", "requeue", job])


def cancel(jobs: Sequence[str]) -> None:
    """Take jobs out of the queue, and end those that run."""
    if jobs:
        _ask(["scancel", *jobs])


def queued_trials(folder: Path) -> dict[str, Entry]:
    """Return the trials of a sweep that SLURM has in its queue, running or not.

    By the scripts in the sweep's folder, whoever submitted them and from wherever. Without such
    scripts SLURM is not asked.
    """
    scripts = (folder / SCRIPTS).resolve()
    if not any(scripts.glob("*.sh")):
        return {}
    trials: dict[Path, list[str]] = {}
    entries: dict[str, Entry] = {}
    listing = _ask(["squeue", "--me", "--array", "--noheader", f"--format={FORMAT}"])
    for entry in parse_queue(listing):
        if entry.script.parent != scripts or entry.index is None:
            continue
        if entry.script not in trials:
            with contextlib.suppress(OSError):
                trials[entry.script] = trials_of(entry.script.read_text(encoding="utf-8"))
        names = trials.get(entry.script, [])
        if entry.index < len(names):
            entries[names[entry.index]] = entry
    return entries


def parse_queue(listing: str) -> Iterable[Entry]:
    """Yield the entries of squeue's output in the format of this module."""
    for line in listing.splitlines():
        parts = line.split("|", 3)
        if len(parts) == 4:
            job, state, reason, script = parts
            yield Entry(job=job, state=state, reason=reason, script=Path(script))


def _ask(command: list[str]) -> str:
    # A user's own defaults (SQUEUE_FORMAT, SBATCH_ARRAY_INX) are not for our questions.
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
            f"There is no {command[0]} here: run this where SLURM's commands are, or leave out "
            "--slurm."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(
            f"{command[0]} did not answer within {ANSWER_SECONDS:.0f} s. Try again later."
        ) from error
    if done.returncode != 0:
        raise NoAnswerError(f"{' '.join(command[:2])} failed: {done.stderr.strip()}")
    return done.stdout
