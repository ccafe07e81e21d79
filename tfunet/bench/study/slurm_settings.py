"""What a study says about SLURM, and the shape of its jobs. No TensorFlow."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tfunet.config.refs import near_match

CHOICES = ("partition", "account", "constraint", "time")


TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """How trials run under SLURM: the table [slurm] of a study, no part of what is compared.

    Args:
        partition: Where; by default the cluster's own choice. The same for `account` and
            `constraint`.
        time: Limit of one trial, as sbatch writes it: "30" minutes, "2:00:00".
        processes_per_node: Most processes of a run on one node; with one process a GPU, the
            GPUs of a node.
        gpus_per_replica: GPUs that each replica is allotted.
        max_running: Trials of an array that run at once.
        signal_seconds: Before its time limit a trial writes a checkpoint, and is queued again.
        setup: Lines of the job script before the run: modules, variables.
        sbatch: Further options of sbatch.
        srun: Further options of srun.
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

    def __post_init__(self) -> None:
        if self.time and not TIME.fullmatch(self.time):
            raise ValueError(
                f'time in [slurm] must be minutes or [days-]hours:minutes:seconds, as "30" or '
                f'"2:00:00", got {self.time!r}.'
            )
        for name, least in (("processes_per_node", 1), ("gpus_per_replica", 0), ("max_running", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} in [slurm] must be at least {least}, got {value}.")
        # SLURM counts minutes, and may send the signal up to one early.
        if not 0 < self.signal_seconds <= 65535:
            raise ValueError(
                f"signal_seconds in [slurm] must lie in 1..65535, got {self.signal_seconds}."
            )


def read_slurm(table: Mapping[str, Any]) -> Slurm:
    """Return the table [slurm] of a study, checked."""
    known = {field.name: field.default for field in fields(Slurm)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ValueError(
                f"Unknown key {key!r} in [slurm].{near_match(key, known)} Known: "
                f'{", ".join(known)}. Any other option goes into sbatch = ["--option=value"].'
            )
        if isinstance(known[key], tuple):
            if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
                raise ValueError(f"{key} in [slurm] must be a list of texts, got {value!r}.")
            values[key] = tuple(value)
            continue
        kind = str if isinstance(known[key], str) else int
        if not isinstance(value, kind) or isinstance(value, bool):
            words = "a text" if kind is str else "a whole number"
            raise ValueError(f"{key} in [slurm] must be {words}, got {value!r}.")
        values[key] = value
    return Slurm(**values)


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)
