"""The table [slurm] of a study: what its jobs ask for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfunet.config.typed_values import read
from tfunet.files.printable import printable

# Settings that become options of sbatch with the same names.
CHOICES = ("partition", "account", "constraint", "time")
TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """How trials run under SLURM; not part of what a study compares.

    Args:
        partition: By default the choice of the cluster.
        account: By default the choice of the cluster.
        constraint: Features that nodes must have; by default none.
        time: Limit of one trial, as sbatch takes it: "30" (minutes), "2:00:00".
        processes_per_node: At most so many processes of a run on one node; with a process for each
            GPU, the GPUs of a node.
        gpus_per_replica: 0 trains on CPUs.
        max_running: At most so many trials of an array run at once.
        signal_seconds: So long before its time limit, a trial writes a checkpoint and is queued
            again.
        setup: Lines of the job script before the run, which load modules or set variables.
        sbatch: Any other options of sbatch, such as "--qos=long".
        srun: Any other options of srun.
    """

    partition: str = ""
    account: str = ""
    constraint: str = ""
    time: str = ""
    processes_per_node: int = 1
    gpus_per_replica: int = 0
    max_running: int | None = None
    signal_seconds: int = 120
    setup: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """What a shell obeys, and options of sbatch and srun, which may name a program."""
        return (*self.setup, *self.sbatch, *self.srun)

    def __post_init__(self) -> None:
        for name in (*CHOICES, "sbatch", "srun"):
            value = getattr(self, name)
            for text in (value,) if isinstance(value, str) else value:
                _check_line(name, text)
        for text in self.setup:  # Its lines may be of any shell.
            _check_line("setup", text, keep="\n\t")
        if self.time and not TIME.fullmatch(self.time):
            raise ValueError(
                f'time in [slurm] must be minutes or [days-]hours:minutes:seconds, as "30" or '
                f'"2:00:00", got {self.time!r}.'
            )
        for name, least in (("processes_per_node", 1), ("gpus_per_replica", 0), ("max_running", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} in [slurm] must be at least {least}, got {value}.")
        # SLURM counts in minutes, and may send the signal up to a minute early.
        if not 0 < self.signal_seconds <= 65535:
            raise ValueError(
                f"signal_seconds in [slurm] must lie in 1..65535, got {self.signal_seconds}."
            )


def _check_line(name: str, text: str, keep: str = "") -> None:
    """Raise ValueError for a text that would begin another line of the job script."""
    if printable(text, keep=keep) != text:
        raise ValueError(
            f"{name} in [slurm] becomes a part of a line of the job script, so it has no newline "
            f"and no other control character; got {text!r}. Commands go into setup."
        )


def read_slurm(table: Mapping[str, Any]) -> Slurm:
    """Return the table [slurm] of a study, checked."""
    advice = ' Any other option goes into sbatch = ["--option=value"].'
    return read(Slurm, table, "[slurm]", advice)
