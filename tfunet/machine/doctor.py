"""`tfunet doctor`: what works on this machine, what is missing, what to type. No TensorFlow.

Each part does a little of its real work in a process of its own, so that a crash or a hang affects
only its own row.
"""

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from tfunet.backend import BACKENDS, facts_of
from tfunet.config.not_installed import NotInstalledError
from tfunet.exit_codes import CHECK_FAILED, OK
from tfunet.files.transports import served
from tfunet.machine import energy, probes
from tfunet.machine.cores import cpu_quota, usable_cores
from tfunet.machine.environment import gpus

PYTHONS = ("3.11", "3.12")
OLDEST_TENSORFLOW, NEWEST_TENSORFLOW = (2, 16, 2), (2, 21)
# Nothing trains if one of these fails.
CORE = ("Python", "TensorFlow", "Keras", "single", "logs")
COMPILERS = ("c++", "g++", "clang++")
EXTRAS = {
    "io": ("imagecodecs", "nibabel", "pydicom", "h5py", "zarr"),
    "remote": ("adlfs", "fsspec", "gcsfs", "s3fs"),
    "annotations": ("pycocotools", "roifile", "scikit-image"),
    "ensembles": ("optuna", "scipy"),
    "metrics": ("scikit-image", "scipy"),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "trackers": ("mlflow-skinny", "wandb"),
    "report": ("matplotlib", "jinja2"),
    "notebooks": ("nbclient", "ipykernel", "nbformat"),
}
NAME_WIDTH = max(len(f"extra {extra}") for extra in EXTRAS)
INSTALL_COMPILER = (
    "sudo apt-get install g++ make (Debian, Ubuntu), sudo dnf install gcc-c++ make (Red Hat), "
    "or module load gcc (a cluster)"
)
INSTALL_MPI = "sudo apt-get install libopenmpi-dev openmpi-bin, or module load openmpi (a cluster)"

Status = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """One row; `remedy` is what to type, empty if there is nothing to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def diagnose(logs: Path = Path("logs")) -> Iterator[Check]:
    """Yield a check of all that tfunet can use, each as soon as it is known.

    The last ones take as long as a few TensorFlow starts.
    """
    scripts: dict[str, tuple[str, Mapping[str, str]]] = {
        "single": (probes.TENSORFLOW_PROBE, {}),
        "mirrored": (probes.MIRRORED_PROBE, {}),
        "multiworker": (
            probes.MULTIWORKER_PROBE,
            {**probes.HIDE_GPUS, "TF_CONFIG": probes.one_worker()},
        ),
        "horovod": (probes.HOROVOD_PROBE, {**probes.HIDE_GPUS, **probes.OVER_GLOO}),
        "tensorflow-io": (probes.TENSORFLOW_IO_PROBE, probes.HIDE_GPUS),
        "dali": (probes.DALI_PROBE, probes.HIDE_GPUS),
    }
    with ThreadPoolExecutor(max_workers=min(len(usable_cores()), len(scripts))) as pool:
        answers = {name: pool.submit(probes.ask, *asked) for name, asked in scripts.items()}
        compiler = compiler_check()
        yield python_check(platform.python_version())
        yield cores_check()
        yield energy_check(energy.powercap_root(), energy.load_nvml())
        yield memory_check()
        yield logs_check(logs)
        yield compiler
        yield mpi_check()
        yield from (extra_check(extra, packages) for extra, packages in EXTRAS.items())
        yield slurm_check(os.environ)
        core = answers["single"].result()
        num_gpus = core.facts.get("gpus", 0)
        yield from tensorflow_checks(core)
        yield gpu_check(num_seen=num_gpus, listed=[gpu["name"] for gpu in gpus()])
        for name in BACKENDS:
            if name != "horovod":
                yield backend_check(name, answers[name].result())
        has_compiler = compiler.status == "ok"
        yield from horovod_checks(
            answers["horovod"].result(), has_compiler=has_compiler, num_gpus=num_gpus
        )
        answer = answers["tensorflow-io"].result()
        yield tensorflow_io_check(answer)
        yield servers_check(answer.facts.get("schemes", ()))
        yield dali_check(answers["dali"].result())


def row_lines(row: Check, width: int = 100) -> list[str]:
    """Return the lines of a row that `tfunet doctor` prints."""
    indent = " " * (NAME_WIDTH + 2 + len("missing") + 2)
    head = f"{row.name:<{NAME_WIDTH}}  {row.status:<7}  "
    lines = textwrap.wrap(row.detail, width, initial_indent=head, subsequent_indent=indent)
    if row.remedy:
        first = f"{indent}type: "
        rest = " " * len(first)
        lines += textwrap.wrap(row.remedy, width, initial_indent=first, subsequent_indent=rest)
    return lines


def run(*, as_json: bool = False, logs: Path = Path("logs")) -> int:
    """Print the checks; return 0 if one device can train and write its record, else 4."""
    checks = []
    for check in diagnose(logs):
        checks.append(check)
        if not as_json:
            print("\n".join(row_lines(check)), flush=True)
    print(json.dumps([asdict(c) for c in checks], indent=2) if as_json else f"\n{_verdict(checks)}")
    return CHECK_FAILED if _core_failures(checks) else OK


def python_check(version: str) -> Check:
    """Return whether tfunet supports the TensorFlow wheels of this Python."""
    if version.rpartition(".")[0] in PYTHONS:
        return Check("Python", "ok", version)
    return Check(
        "Python",
        "broken",
        f"{version}; supported: {', '.join(PYTHONS)}",
        remedy="make env PYTHON=/path/to/python3.11",
    )


def tensorflow_checks(answer: probes.Answer) -> list[Check]:
    """Return the rows of TensorFlow and Keras."""
    if answer.error:
        remedy = "make env, or pip install tfunet"
        status = _status(answer)
        row = Check("TensorFlow", status, _reason(answer), remedy=remedy)
        return [row, Check("Keras", status, "starts with TensorFlow")]
    version, keras = answer.facts["tensorflow"], answer.facts["keras"]
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if release >= OLDEST_TENSORFLOW and release[:2] <= NEWEST_TENSORFLOW:
        tensorflow = Check("TensorFlow", "ok", version)
    else:
        tensorflow = Check(
            "TensorFlow",
            "broken",
            f"{version}; supported: 2.16.2 to 2.21",
            remedy="make env, or pip install tfunet in a new environment",
        )
    keras_backend = answer.facts["keras_backend"]
    if keras_backend != "tensorflow":
        detail = f"{keras} computes with {keras_backend}, and tfunet needs TensorFlow"
        remedy = "export KERAS_BACKEND=tensorflow"
        return [tensorflow, Check("Keras", "broken", detail, remedy=remedy)]
    return [tensorflow, Check("Keras", "ok", keras)]


def gpu_check(*, num_seen: int, listed: list[str]) -> Check:
    """Return whether TensorFlow sees the GPUs that nvidia-smi lists."""
    if num_seen:
        return Check("GPUs", "ok", f"{num_seen}: {', '.join(listed)}")
    if not listed:
        return Check("GPUs", "ok", "none; replicas are CPU cores")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in ("", "-1"):
        detail = f"{len(listed)}, hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Check("GPUs", "missing", detail, remedy="unset CUDA_VISIBLE_DEVICES")
    return Check(
        "GPUs",
        "broken",
        f"{len(listed)} ({', '.join(listed)}), but TensorFlow sees none",
        remedy="pip install 'tensorflow[and-cuda]', at the version that is installed",
    )


def cores_check() -> Check:
    """Return how many cores this process may use: in a job fewer than the machine has."""
    detail = f"{len(usable_cores())} of {os.cpu_count()} may be used"
    if (quota := cpu_quota()) is not None:
        detail += f"; the container or job has a CPU quota of {quota:g}"
    return Check("cores", "ok", detail)


def energy_check(powercap: Path, nvml: Any) -> Check:
    """Return which energy counters can be read, and how to open those that only root may read."""
    counters = [*energy.package_counters(powercap), *energy.gpu_counters(nvml)]
    readable = [counter.name for counter in counters if energy.is_readable(counter)]
    packages = [counter.name for counter in counters if counter.is_package]
    closed = [name for name in packages if name not in readable]
    known = f"{', '.join(readable)} can be read"
    if closed:
        only_root = f"only root may read {', '.join(closed)}"
        return Check(
            "energy",
            "missing",
            f"{known}, {only_root}" if readable else f"{only_root}; runs record no energy",
            remedy=f"sudo chmod a+r {powercap}/intel-rapl:*/energy_uj (until the next boot)",
        )
    if readable:
        return Check("energy", "ok", known)
    return Check("energy", "missing", "no counter here; runs record no energy")


def memory_check() -> Check:
    """Return how much memory the machine has, and how much is free."""
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    total, free = (int(sizes[name]) / 2**20 for name in ("MemTotal", "MemAvailable"))
    return Check("memory", "ok", f"{total:.1f} GiB, {free:.1f} GiB free")


def logs_check(logs: Path) -> Check:
    """Return whether runs can be written into `logs`; leaves nothing behind."""
    existing = next(path for path in (logs, *logs.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Check("logs", "ok", f"{logs} can be written")
    except OSError as error:
        detail = f"{logs} cannot be written: {error.strerror}"
        remedy = "cd to a folder of your own, or ask for write permission to this one"
        return Check("logs", "broken", detail, remedy=remedy)


def backend_check(name: str, answer: probes.Answer) -> Check:
    """Return the row of a backend that is part of TensorFlow."""
    if answer.error:
        remedy = "make env, or pip install tfunet" if _status(answer) == "missing" else ""
        return Check(name, _status(answer), _reason(answer), remedy=remedy)
    devices = answer.facts.get("devices")
    detail = f"works on {' and '.join(devices)}" if devices else "works"
    if facts_of(name).is_open:
        detail += (
            "; ITS PORTS ARE OPEN on all network interfaces, without a password: docs/security.md"
        )
    return Check(name, "ok", detail)


def horovod_checks(answer: probes.Answer, *, has_compiler: bool, num_gpus: int) -> list[Check]:
    """Return the rows of the Horovod backend and of its communication libraries."""
    build = build_command()
    if answer.error:
        remedy = build if has_compiler else f"{INSTALL_COMPILER}; then {build}"
        row = Check("horovod", _status(answer), _reason(answer), remedy=remedy)
        return [row]
    rows = [Check("horovod", "ok", f"works, {answer.facts['version']}")]
    for name, key, needs in (("Gloo", "gloo", ""), ("MPI", "mpi", f"{INSTALL_MPI}; then ")):
        built = answer.facts[key]
        rows.append(
            Check(
                f"horovod {name}",
                "ok" if built else "missing",
                "built in" if built else "not built in",
                remedy="" if built else f"{needs}{build}",
            )
        )
    if num_gpus and not answer.facts["nccl"]:
        remedy = f"HOROVOD_GPU_OPERATIONS=NCCL {build}"
        detail = "not built in: gradients go through the CPU's memory"
        rows.append(Check("horovod NCCL", "missing", detail, remedy=remedy))
    return rows


def compiler_check() -> Check:
    """Return the C++ compiler that would build Horovod."""
    # CMake takes $CXX, which may carry flags, before any of the usual names.
    names = os.environ.get("CXX", "").split()[:1] or COMPILERS
    compilers = [path for name in names if (path := shutil.which(name))]
    if compilers and shutil.which("make"):
        return Check("compiler", "ok", compilers[0])
    missing = "make" if compilers else "a C++ compiler"
    return Check(
        "compiler",
        "missing",
        f"no {missing.removeprefix('a ')}; only building Horovod needs it",
        remedy=INSTALL_COMPILER,
    )


def mpi_check() -> Check:
    """Return the MPI compiler, with which Horovod is built with MPI."""
    path = shutil.which("mpicxx")
    if path:
        return Check("mpicxx", "ok", path)
    detail = "no MPI compiler; only Horovod under mpirun needs it"
    return Check("mpicxx", "missing", detail, remedy=INSTALL_MPI)


def extra_check(extra: str, packages: Iterable[str]) -> Check:
    """Return whether all packages of an extra are installed; none is imported."""
    missing = [name for name in packages if not _is_installed(name)]
    if not missing:
        return Check(f"extra {extra}", "ok", ", ".join(packages))
    return Check(
        f"extra {extra}",
        "missing",
        f"without {', '.join(missing)}",
        remedy=f"pip install 'tfunet[{extra}]'",
    )


def tensorflow_io_check(answer: probes.Answer) -> Check:
    """Return whether a native operation of tensorflow-io runs."""
    if not answer.error:
        detail = f"{answer.facts['version']}, its native operations run"
        return Check("tensorflow-io", "ok", detail)
    if _status(answer) == "missing":
        detail = "not installed; tifffile and pillow read instead"
        remedy = "pip install 'tfunet[io]'"
    else:
        detail = "its native operations do not load; tifffile and pillow read instead"
        remedy = "make env TF=2.16.2, the newest TensorFlow for which they were built"
    return Check("tensorflow-io", "missing", detail, remedy=remedy)


def dali_check(answer: probes.Answer) -> Check:
    """Return whether DALI decodes; it needs no GPU."""
    if not answer.error:
        return Check("DALI", "ok", f"{answer.facts['version']}, it decodes")
    detail = f"{_reason(answer)}; only pipeline = 'dali' needs it"
    return Check("DALI", _status(answer), detail, remedy="pip install 'tfunet[dali]'")


def servers_check(by_tensorflow: Collection[str]) -> Check:
    """Return what reads files of servers, for each kind of URL; see `served`."""
    detail, missing = served(by_tensorflow)
    # Hadoop comes from its own packages.
    if missing <= {"hdfs"}:
        return Check("files of servers", "ok", detail)
    return Check("files of servers", "missing", detail, remedy="pip install 'tfunet[remote]'")


def slurm_check(variables: Mapping[str, str]) -> Check:
    """Return whether jobs can be submitted from here."""
    path = shutil.which("sbatch")
    if path is None:
        detail = "no sbatch here; sweeps run on this machine"
        return Check("SLURM", "missing", detail)
    job = variables.get("SLURM_JOB_ID")
    return Check("SLURM", "ok", f"{path}{f', in job {job}' if job else ''}")


def check_installed(backend: str) -> None:
    """Raise NotInstalledError for a backend whose library is missing. Imports none."""
    library = facts_of(backend).library
    if library and importlib.util.find_spec(library) is None:
        raise NotInstalledError(
            f"The backend {backend!r} needs {library}, which is not installed. To build it: "
            f"{build_command()}. Or choose another backend: multiworker also has several processes."
        )


def build_command(prefix: Path = Path(sys.prefix)) -> str:
    """Return the command that builds Horovod into the environment at `prefix`."""
    made_by_make = prefix.name.startswith("tf-") and (prefix.parents[1] / "Makefile").is_file()
    return f"make horovod TF={prefix.name[3:]}" if made_by_make else "python -m hvd.build"


def _status(answer: probes.Answer) -> Status:
    return "missing" if "ModuleNotFoundError" in answer.error else "broken"


def _reason(answer: probes.Answer) -> str:
    missing = re.search(r"ModuleNotFoundError: No module named '([^']+)'", answer.error)
    # Some of TensorFlow's errors are pages long.
    return f"{missing[1]} is not installed" if missing else answer.error[:300]


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _core_failures(checks: Iterable[Check]) -> list[str]:
    return [check.name for check in checks if check.name in CORE and check.status != "ok"]


def _verdict(checks: Iterable[Check]) -> str:
    failures = _core_failures(checks)
    return (
        f"Nothing can be trained yet: {', '.join(failures)}."
        if failures
        else "One device can train here. Missing parts are needed only for what their rows name."
    )
