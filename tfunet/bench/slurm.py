"""Turns trials into SLURM job scripts that a person can read, and submit by hand. Pure."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tfunet.backend import num_processes
from tfunet.config import RunConfig
from tfunet.refs import near_match

# SLURM's MaxArraySize is 1001 unless a site raises it.
MOST_IN_ARRAY = 1000
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


@dataclass(frozen=True, order=True, kw_only=True)
class Shape:
    """What one run takes of a cluster; trials in one array have the same."""

    nodes: int
    tasks: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int

    @property
    def name(self) -> str:
        """As in the name of a job script: "2n2t1c", with GPUs "2n8t8c4g"."""
        gpus = f"{self.gpus_per_node}g" if self.gpus_per_node else ""
        return f"{self.nodes}n{self.tasks}t{self.cpus_per_task}c{gpus}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job script: an array of trials of one shape."""

    shape: Shape
    trials: tuple[str, ...]


def read_slurm(table: Mapping[str, Any]) -> Slurm:
    """Return the table [slurm] of a study, checked."""
    known = {one.name: one.default for one in fields(Slurm)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ValueError(
                f"Unknown key {key!r} in [slurm].{near_match(key, known)} Known: "
                f'{", ".join(known)}. Any other option goes into sbatch = ["--option=value"].'
            )
        if isinstance(known[key], tuple):
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise ValueError(f"{key} in [slurm] must be a list of texts, got {value!r}.")
            values[key] = tuple(value)
            continue
        kind = str if isinstance(known[key], str) else int
        if not isinstance(value, kind) or isinstance(value, bool):
            words = "a text" if kind is str else "a whole number"
            raise ValueError(f"{key} in [slurm] must be {words}, got {value!r}.")
        values[key] = value
    return Slurm(**values)


def shape_of(config: RunConfig, slurm: Slurm) -> Shape:
    """Return what a run takes: a task a process, one core a replica unless cores_per_replica."""
    tasks = num_processes(config)
    replicas = config.num_replicas // tasks
    tasks_per_node = min(tasks, slurm.processes_per_node)
    return Shape(
        nodes=math.ceil(tasks / tasks_per_node),
        tasks=tasks,
        tasks_per_node=tasks_per_node,
        cpus_per_task=replicas * (config.cores_per_replica or 1),
        gpus_per_node=tasks_per_node * replicas * slurm.gpus_per_replica,
    )


def jobs_of(trials: Sequence[tuple[str, RunConfig]], slurm: Slurm) -> list[Job]:
    """Return one array for each shape (nodes cannot differ within one), in the order of trials."""
    names: dict[Shape, list[str]] = {}
    for name, config in trials:
        names.setdefault(shape_of(config, slurm), []).append(name)
    return [
        Job(shape=shape, trials=tuple(some[at : at + MOST_IN_ARRAY]))
        for shape, some in names.items()
        for at in range(0, len(some), MOST_IN_ARRAY)
    ]


def job_script(
    job: Job,
    slurm: Slurm,
    *,
    study: str,
    path: Path,
    folder: Path,
    code: str,
    python: str,
    cwd: Path,
) -> str:
    """Return the text of a job script.

    Args:
        path: Where the script will lie.
        folder: Of the sweep.
        code: What `tfunet.code_version.code_hash` gives for the code that was planned.
        python: The interpreter that runs the trials.
        cwd: Folder in which they run; paths of data sets are relative to it.
    """
    shape = job.shape
    number = "1 trial" if len(job.trials) == 1 else f"{len(job.trials)} trials"
    throttle = f"%{slurm.max_running}" if slurm.max_running else ""
    options = [
        f"--job-name=tfunet-{_word(study)}",
        f"--array=0-{len(job.trials) - 1}{throttle}",
        *(f"--{key}={getattr(slurm, key)}" for key in CHOICES if getattr(slurm, key)),
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.tasks}",
        f"--ntasks-per-node={shape.tasks_per_node}",
        f"--cpus-per-task={shape.cpus_per_task}",
        *([f"--gpus-per-node={shape.gpus_per_node}"] if shape.gpus_per_node else []),
        "--requeue",
        "--open-mode=append",
        f"--signal=USR1@{slurm.signal_seconds}",
        f"--chdir={shlex.quote(str(cwd))}",
        f"--output={shlex.quote(str(path.with_name(path.stem + '-%a.txt')))}",
        *slurm.sbatch,
    ]
    srun = [
        "srun",
        f"--nodes={shape.nodes}",
        f"--ntasks={shape.tasks}",
        f"--ntasks-per-node={shape.tasks_per_node}",
        # Since SLURM 22.05 srun does not take it over from sbatch.
        f"--cpus-per-task={shape.cpus_per_task}",
        "--distribution=block",
        "--kill-on-bad-exit=1",
        "--export=ALL",
        *slurm.srun,
    ]
    lines = [
        "#!/bin/bash",
        f"# {number} of study {study}. By hand: sbatch {shlex.quote(str(path))}",
        *(f"#SBATCH {option}" for option in options),
        "",
        "trials=(",
        *(f"  {shlex.quote(name)}" for name in job.trials),
        ")",
        *slurm.setup,
        f'trial={shlex.quote(str(folder))}/"${{trials[$SLURM_ARRAY_TASK_ID]}}"',
        "# Runs srun, and writes down how it ended; refuses other code than the one of the plan.",
        f'exec {shlex.quote(python)} -m tfunet.bench.trial --code {code} "$trial" \\',
        f"  {' '.join(map(shlex.quote, srun[:5]))} \\",
        f"  {' '.join(map(shlex.quote, srun[5:]))} \\",
        '  --open-mode=append --output="$trial/log-%t.txt" \\',
        f'  {shlex.quote(python)} -m tfunet.worker "$trial"',
    ]
    return "\n".join(lines) + "\n"


def trials_of(script: str) -> list[str]:
    """Return the trials that a job script lists, by their place in the array."""
    found = re.search(r"^trials=\(\n(.*?)^\)$", script, re.DOTALL | re.MULTILINE)
    return shlex.split(found[1]) if found else []


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)
