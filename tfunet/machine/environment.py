"""The machine and the software of a run, for env.json; a hash of its code. No TensorFlow."""

import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tfunet.machine.cores import cpu_quota
from tfunet.machine.cpu_memory import VARIABLES

PACKAGES = (
    *("tfunet", "tensorflow", "keras", "tf_keras", "horovod", "tensorflow-io", "numpy", "mpi4py"),
    *("nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12"),
    "nvidia-dali-cuda120",
)
OWN_PACKAGES = ("tfunet", "tf_native", "hvd")
GPU_FIELDS = ("index", "name", "memory.total", "driver_version", "pci.bus_id")
SLURM_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID"),
    *("SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_NTASKS"),
    *("SLURM_CPUS_PER_TASK", "SLURM_CLUSTER_NAME"),
)
# Variables of the libraries below that change a step's speed, memory or rounding.
SWITCHES = (
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_GPU_ALLOCATOR",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "NVIDIA_TF32_OVERRIDE",
    *VARIABLES,
)
# Defaults for the processes of a run; the user's own values come first.
DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # By default TensorFlow uses oneDNN on some CPUs only. Without it a 3D convolution takes 8 times
    # as long, a 2D one about twice.
    "TF_ENABLE_ONEDNN_OPTS": "1",
    # By default TensorFlow takes all of a GPU's memory, and leaves none for other processes.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
# Who starts processes, and the variables that they set, from the innermost on.
LAUNCHERS = (
    ("local", ["TFUNET_LAUNCH"]),  # the supervisor
    ("by hand", ["TFUNET_PROCESS"]),
    ("slurm", ["SLURM_PROCID"]),
    ("mpi", ["OMPI_COMM_WORLD_RANK"]),
    ("mpi", ["MV2_COMM_WORLD_RANK"]),
    ("jsrun", ["JSM_NAMESPACE_RANK"]),
    ("flux", ["FLUX_TASK_RANK"]),
    ("pals", ["PALS_RANKID"]),
    ("mpi", ["PMI_RANK"]),
    ("mpi", ["PMIX_RANK"]),
    ("horovodrun", ["HOROVOD_RANK"]),
    ("torchrun", ["RANK", "WORLD_SIZE"]),
    ("TF_CONFIG", ["TF_CONFIG"]),
)
# A sleeping GPU driver takes seconds to answer.
ANSWER_SECONDS = 20.0


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the facts about this machine and this installation that a result depends on."""
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "cpu": _cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        **({} if (quota := cpu_quota()) is None else {"cpu_quota": quota}),
        "machine_cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": gpus(),
        "mpi": _first_line(["mpirun", "--version"]),
        "git": git_state(Path(__file__)),
        "launcher": launcher(variables),
        "switches": {name: variables[name] for name in SWITCHES if name in variables},
        "slurm": {name: variables[name] for name in SLURM_VARIABLES if name in variables},
    }


def gpus() -> list[dict[str, str]]:
    """Return what nvidia-smi says about each GPU; [] if it is not installed."""
    fields = ",".join(GPU_FIELDS)
    answer = _answer(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    rows = [line.split(", ") for line in (answer or "").splitlines()]
    names = [name.replace(".", "_") for name in GPU_FIELDS]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def git_state(file: Path) -> dict[str, Any] | None:
    """Return the commit of the tree that `file` belongs to, and whether the tree is modified."""
    git = ["git", "-C", str(file.parent)]
    # An environment inside another project's tree belongs to no commit of that project.
    if _answer([*git, "ls-files", "--error-unmatch", file.name]) is None:
        return None
    changes = _answer([*git, "status", "--porcelain", "-uno"])
    return {"commit": _first_line([*git, "rev-parse", "HEAD"]), "modified": bool(changes)}


def launcher(variables: Mapping[str, str]) -> str:
    """Return who started this process, a name of LAUNCHERS; "none" for nobody known."""
    return next(
        (name for name, needed in LAUNCHERS if all(variable in variables for variable in needed)),
        "none",
    )


def code_hash() -> str:
    """Return 12 hex digits that change whenever a Python file of the project changes."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in OWN_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    # ARM kernels name no model there.
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _answer(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None


def _first_line(command: list[str]) -> str | None:
    lines = (_answer(command) or "").splitlines()
    return lines[0].strip() if lines else None
