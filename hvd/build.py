"""Builds Horovod for the installed TensorFlow and checks that it starts: python -m hvd.build.

Uses only the standard library, since it runs before the rest of tfunet is known to work.
"""

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOROVOD_VERSION = "0.28.1"
# The hash of its source on PyPI.
HOROVOD_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
NOT_BUILT = 3
ASK_DOCTOR = "What to type: tfunet doctor"

XLA_OPS = "horovod/tensorflow/xla_mpi_ops.cc"
NEWEST_TENSORFLOW_FOR_XLA_OPS = (2, 16)

COMPILERS = ("c++", "g++", "clang++")
# The user's build settings, for NCCL or another MPI. Other HOROVOD_ variables tune a run.
BUILD_SETTINGS = (
    "HOROVOD_BUILD_",
    "HOROVOD_CUDA_",
    "HOROVOD_GPU",
    "HOROVOD_NCCL_",
    "HOROVOD_ROCM_",
    "HOROVOD_WITH",
)

START_CHECK = """
import tensorflow as tf
import horovod.tensorflow as horovod

horovod.init()
total = horovod.allreduce(tf.constant([1.0, 2.0]), op=horovod.Sum, name="start_check")
if horovod.size() != 1 or total.numpy().tolist() != [1.0, 2.0]:
    raise SystemExit(f"allreduce over {horovod.size()} process gave {total.numpy()}")
"""


class BuildError(RuntimeError):
    """A step of the build failed. The message is one line; the log has the details."""


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """The environment of Horovod's own build, and the source files to leave out of it."""

    environment: Mapping[str, str]
    left_out: tuple[str, ...]

    @property
    def controllers(self) -> str:
        return "Gloo and MPI" if "HOROVOD_WITH_MPI" in self.environment else "Gloo"


def plan_build(
    tensorflow_version: str, *, mpi: bool, settings: Mapping[str, str] | None = None
) -> BuildPlan:
    """Return the plan for a TensorFlow. The user's `settings` take precedence."""
    controllers = {"HOROVOD_WITH_GLOO": "1"}
    controllers["HOROVOD_WITH_MPI" if mpi else "HOROVOD_WITHOUT_MPI"] = "1"
    frameworks = {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
    }
    release = tuple(int(part) for part in tensorflow_version.split(".")[:2])
    # TensorFlow 2.17 removed or changed headers that these files include.
    left_out = (XLA_OPS,) if release > NEWEST_TENSORFLOW_FOR_XLA_OPS else ()
    return BuildPlan(
        environment={**controllers, **frameworks, **(settings or {})}, left_out=left_out
    )


def plans_to_try(
    tensorflow_version: str, *, mpicxx: str | None, environment: Mapping[str, str]
) -> list[BuildPlan]:
    """Return the plans in order: with MPI if it is there and not refused, then with Gloo alone."""
    settings = {
        name: value for name, value in environment.items() if name.startswith(BUILD_SETTINGS)
    }
    with_mpi = plan_build(tensorflow_version, mpi=True, settings=settings)
    gloo_only = plan_build(tensorflow_version, mpi=False, settings=settings)
    if "HOROVOD_WITH_MPI" in settings:
        return [with_mpi]
    if mpicxx is None or "HOROVOD_WITHOUT_MPI" in settings:
        return [gloo_only]
    return [with_mpi, gloo_only]


def wheel_folder(
    plan: BuildPlan, *, tensorflow_version: str, python: str, compiler: str, mpicxx: str | None
) -> str:
    """Return a name that depends on everything that goes into the wheel."""
    controllers = plan.controllers.replace(" and ", "-").lower()
    facts = [HOROVOD_VERSION, compiler, *plan.left_out, *map(str, sorted(plan.environment.items()))]
    if "mpi" in controllers:
        facts.append(str(mpicxx))
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return f"horovod-{HOROVOD_VERSION}-tf{tensorflow_version}-{python}-{controllers}-{digest}"


def without_sources(cmake_lists: str, sources: Sequence[str]) -> str:
    """Return a CMakeLists.txt without the line that names each source."""
    lines = cmake_lists.splitlines(keepends=True)
    for source in sources:
        naming = [line for line in lines if source in line]
        if len(naming) != 1:
            raise BuildError(
                f"Horovod's CMakeLists.txt names {source} in {len(naming)} lines, expected 1. "
                f"Is this Horovod {HOROVOD_VERSION}?"
            )
        lines.remove(naming[0])
    return "".join(lines)


def find_compiler(environment: Mapping[str, str]) -> str | None:
    """Return the C++ compiler that CMake would use: $CXX, else the first of the usual names."""
    names = [environment["CXX"].split()[0]] if environment.get("CXX") else COMPILERS
    paths = (shutil.which(name, path=environment.get("PATH", "")) for name in names)
    return next(filter(None, paths), None)


def missing_tools(environment: Mapping[str, str]) -> list[str]:
    """Return what must be installed before a build can start."""
    missing = [] if find_compiler(environment) else ["a C++ compiler"]
    return missing + ([] if shutil.which("make", path=environment.get("PATH", "")) else ["make"])


def _first_line_of_version(program: str) -> str:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (shown.stdout or shown.stderr).partition("\n")[0]


def _run(command: Sequence[str | Path], log: Path, environment: Mapping[str, str]) -> None:
    with log.open("a") as output:
        print("$", *command, file=output, flush=True)
        status = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
        ).returncode
    if status != 0:
        # After `python -m` or `python -c`: "pip wheel", "horovod's start".
        raise BuildError(f"{' '.join(map(str, command[2:4]))} ended with {status}; see {log}")


def _build_environment(plan: BuildPlan) -> dict[str, str]:
    # A surrounding make passes on its variables and job slots, which CMake's make would use.
    variables = {
        name: value for name, value in os.environ.items() if name not in ("MFLAGS", "MAKELEVEL")
    }
    variables["MAKEFLAGS"] = f"-j{len(os.sched_getaffinity(0))}"
    scripts = sysconfig.get_path("scripts")
    variables["PATH"] = os.pathsep.join((scripts, os.environ.get("PATH", os.defpath)))
    return {**variables, **plan.environment}


def _pip(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", *arguments]


def _build_wheel(plan: BuildPlan, folder: Path, log: Path) -> None:
    """Build the wheel into `folder`, which appears only when the wheel is complete."""
    work = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True)
    environment = _build_environment(plan)
    source_only = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:")
    # pip checks the hash before it runs anything of the source.
    pinned = work / "horovod.txt"
    pinned.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{HOROVOD_SHA256}\n")
    hashed = ("--require-hashes", "--requirement", pinned)
    _run(_pip("download", *source_only, "--dest", work, *hashed), log, environment)
    with tarfile.open(next(work.glob("horovod-*.tar.gz"))) as archive:
        # Python 3.11 has no filters before 3.11.4. The hash of the archive was checked.
        data_filter = getattr(tarfile, "data_filter", None)
        if data_filter is not None:
            archive.extraction_filter = data_filter
        archive.extractall(work)
    source = work / f"horovod-{HOROVOD_VERSION}"
    cmake_lists = source / "horovod" / "tensorflow" / "CMakeLists.txt"
    cmake_lists.write_text(without_sources(cmake_lists.read_text(), plan.left_out))
    flags = ("--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", work / "wheel")
    _run(_pip("wheel", *flags, source), log, environment)
    (work / "wheel").replace(folder)
    shutil.rmtree(work)


def _install(wheel: Path, log: Path) -> None:
    # Removed by hand, since pip cannot uninstall after an interrupted installation.
    packages = Path(sysconfig.get_path("platlib"))
    for leftover in (packages / "horovod", *packages.glob("horovod-*.dist-info")):
        shutil.rmtree(leftover, ignore_errors=True)
    _run(_pip("install", "--no-deps", "--no-index", "--force-reinstall", wheel), log, os.environ)


def _check_start(log: Path) -> None:
    settings = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with log.open("a") as output:
        try:
            status = subprocess.run(
                [sys.executable, "-c", START_CHECK],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings, **hidden},
                timeout=120,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    if status != 0:
        raise BuildError(f"built, but horovod.init() fails ({status}); see {log}")


def build(plan: BuildPlan, folder: Path, log: Path) -> None:
    """Install the wheel in `folder`, and build it first if it is missing. Raises BuildError."""
    if not list(folder.glob("*.whl")):
        _build_wheel(plan, folder, log)
    try:
        _install(next(folder.glob("*.whl")), log)
        _check_start(log)
    except BuildError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _tensorflow_version() -> str | None:
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hvd.build", description=__doc__)
    parser.add_argument(
        "--wheels",
        type=Path,
        default=Path(sys.prefix, "wheels"),
        help="folder of the built wheels (default: %(default)s)",
    )
    parser.add_argument(
        "--log",
        type=Path,
        default=Path(sys.prefix, "horovod.log"),
        help="file for the compiler's output (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if Horovod works, else 3 after a line that says why and what to type."""
    options = _parse(arguments)
    options.wheels.mkdir(parents=True, exist_ok=True)
    tensorflow_version, compiler = _tensorflow_version(), find_compiler(os.environ)
    if tensorflow_version is None or compiler is None or not shutil.which("make"):
        needed = " and ".join(missing_tools(os.environ)) or "TensorFlow in this environment"
        print(f"Horovod is not built: it needs {needed}. Everything else works. {ASK_DOCTOR}")
        return NOT_BUILT
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError:
        # Its first start would fail, after minutes of building.
        print(
            f"Horovod is not built: it looks up the name of this host, and {name} has no address. "
            f"Put this line into /etc/hosts: 127.0.0.1 {name}. Everything else works. {ASK_DOCTOR}"
        )
        return NOT_BUILT
    mpicxx = shutil.which("mpicxx")
    for plan in plans_to_try(tensorflow_version, mpicxx=mpicxx, environment=os.environ):
        folder = wheel_folder(
            plan,
            tensorflow_version=tensorflow_version,
            python=f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}",
            compiler=_first_line_of_version(compiler),
            mpicxx=mpicxx and os.path.realpath(mpicxx),
        )
        horovod = f"Horovod {HOROVOD_VERSION} with {plan.controllers}"
        try:
            build(plan, options.wheels / folder, options.log)
        except BuildError as error:
            print(f"{horovod} is not built: {error}. Everything else works. {ASK_DOCTOR}")
        else:
            print(f"{horovod} works on TensorFlow {tensorflow_version}.")
            return 0
    return NOT_BUILT


if __name__ == "__main__":
    sys.exit(main())
