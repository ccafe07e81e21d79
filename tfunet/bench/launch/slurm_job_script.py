"""Writes SLURM job scripts that a person can read and submit by hand. Pure."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet.backend import num_processes
from tfunet.bench.study.slurm_settings import CHOICES, Slurm
from tfunet.config.run import RunConfig
from tfunet.files.printable import is_printable

# SLURM's MaxArraySize is 1001 unless a site raises it.
MOST_IN_ARRAY = 1000


@dataclass(frozen=True, order=True, kw_only=True)
class Shape:
    """What one run needs of a cluster; all trials of an array have the same shape."""

    nodes: int
    tasks: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int

    @property
    def options(self) -> list[str]:
        """Options of sbatch and of srun."""
        return [
            f"--nodes={self.nodes}",
            f"--ntasks={self.tasks}",
            f"--ntasks-per-node={self.tasks_per_node}",
            f"--cpus-per-task={self.cpus_per_task}",
        ]

    @property
    def name(self) -> str:
        """Short form for names of job scripts: "2n2t1c", with GPUs "2n8t8c4g"."""
        gpus = f"{self.gpus_per_node}g" if self.gpus_per_node else ""
        return f"{self.nodes}n{self.tasks}t{self.cpus_per_task}c{gpus}"


@dataclass(frozen=True, kw_only=True)
class ArrayJob:
    """One job script: an array of trials of one shape."""

    shape: Shape
    trials: tuple[str, ...]


def shape_of(config: RunConfig, slurm: Slurm) -> Shape:
    """Return the shape of a run: a task for each process, cores for each replica (or one)."""
    tasks = num_processes(config)
    replicas = config.num_devices // tasks
    tasks_per_node = min(tasks, slurm.processes_per_node)
    return Shape(
        nodes=math.ceil(tasks / tasks_per_node),
        tasks=tasks,
        tasks_per_node=tasks_per_node,
        cpus_per_task=replicas * (config.cores_per_replica or 1),
        gpus_per_node=tasks_per_node * replicas * slurm.gpus_per_replica,
    )


def jobs_of(trials: Sequence[tuple[str, RunConfig]], slurm: Slurm) -> list[ArrayJob]:
    """Return one array job for each shape, because the trials of an array share it, in order."""
    names: dict[Shape, list[str]] = {}
    for name, config in trials:
        names.setdefault(shape_of(config, slurm), []).append(name)
    return [
        ArrayJob(shape=shape, trials=tuple(trial_names[at : at + MOST_IN_ARRAY]))
        for shape, trial_names in names.items()
        for at in range(0, len(trial_names), MOST_IN_ARRAY)
    ]


def job_script(
    job: ArrayJob,
    slurm: Slurm,
    *,
    study: str,
    path: Path,
    folder: Path,
    code: str,
    python: str,
    cwd: Path,
) -> str:
    """Return the text of the job script at `path` for a sweep's folder.

    `code` is the hash of the planned code (`tfunet.machine.environment.code_hash`), `python` the
    interpreter of the trials and `cwd` their working folder, which paths of data sets are relative
    to.
    """
    for text in (str(path), str(folder), python, str(cwd), code, study, *job.trials):
        if not is_printable(text):
            raise ValueError(
                f"A job script cannot hold {text!r}: a newline or another control character would "
                "begin a line of its own. Rename the folder."
            )
    shape = job.shape
    number = "1 trial" if len(job.trials) == 1 else f"{len(job.trials)} trials"
    options = _sbatch_options(job, slurm, study, path, cwd)
    srun = [
        "srun",
        # Since SLURM 22.05, srun does not inherit --cpus-per-task from sbatch.
        *shape.options,
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
        "# Runs srun, and records how it ended; refuses other code than that of the plan.",
        f'exec {shlex.quote(python)} -m tfunet.bench.slurm_trial --code {code} "$trial" \\',
        f"  {' '.join(map(shlex.quote, srun[:5]))} \\",
        f"  {' '.join(map(shlex.quote, srun[5:]))} \\",
        '  --open-mode=append --output="$trial/log-%t.txt" \\',
        f'  {shlex.quote(python)} -m tfunet.worker "$trial"',
    ]
    return "\n".join(lines) + "\n"


def _sbatch_options(job: ArrayJob, slurm: Slurm, study: str, path: Path, cwd: Path) -> list[str]:
    shape = job.shape
    throttle = f"%{slurm.max_running}" if slurm.max_running else ""
    job_name = re.sub(r"[^A-Za-z0-9._-]+", "_", study)
    return [
        f"--job-name=tfunet-{job_name}",
        f"--array=0-{len(job.trials) - 1}{throttle}",
        # A space would begin another option, which may name a file to write.
        *(f"--{key}={shlex.quote(getattr(slurm, key))}" for key in CHOICES if getattr(slurm, key)),
        *shape.options,
        *([f"--gpus-per-node={shape.gpus_per_node}"] if shape.gpus_per_node else []),
        "--requeue",
        "--open-mode=append",
        f"--signal=USR1@{slurm.signal_seconds}",
        f"--chdir={shlex.quote(str(cwd))}",
        f"--output={shlex.quote(str(path.with_name(path.stem + '-%a.txt')))}",
        *slurm.sbatch,
    ]


def trials_of(script: str) -> list[str]:
    """Return the trials that a job script lists, in the order of the array."""
    match = re.search(r"^trials=\(\n(.*?)^\)$", script, re.DOTALL | re.MULTILINE)
    return shlex.split(match[1]) if match else []
