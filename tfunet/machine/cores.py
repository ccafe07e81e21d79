"""The CPU cores that a process computes on, and its number of threads. No TensorFlow."""

import itertools
import math
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

CORES_VARIABLE = "TFUNET_CORES"
# Files about this process: its cgroups, and where their folders are mounted.
PROCESS = Path("/proc/self")


def usable_cores() -> list[int]:
    """Return the cores that this process may run on: in a job its share of the machine.

    A container may be allowed less time than its cores have. Then there are as many as this time
    fills, and at least one.
    """
    cores = sorted(os.sched_getaffinity(0))
    quota = cpu_quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def cpu_quota() -> float | None:
    """Return the least of the CPU quotas of this process's cgroups, in cores; None without one."""
    return min((quota for folder in _cgroups() for quota in _quotas(folder)), default=None)


def _cgroups() -> Iterator[Path]:
    """Yield the folders of this process's cgroups, and of those around them."""
    try:
        mounts = (PROCESS / "mountinfo").read_text().splitlines()
        groups = (PROCESS / "cgroup").read_text().splitlines()
    except OSError:
        return
    # Version 2 names no controllers.
    paths = {
        name: path
        for _, names, path in (line.split(":", 2) for line in groups)
        for name in names.split(",")
    }
    for line in mounts:
        *_, root, folder = line.split()[:5]
        kind, _, options = line.rpartition(" - ")[2].split(" ", 2)
        name = {"cgroup": "cpu", "cgroup2": ""}.get(kind)
        if name not in paths or (name and name not in options.split(",")):
            continue
        path = Path(paths[name])
        # A container may see its own folder as the root of all, and its path as on the host.
        inside = path.relative_to(root) if path.is_relative_to(root) else Path()
        yield from (Path(folder) / part for part in (inside, *inside.parents))


def _quotas(folder: Path) -> Iterator[float]:
    """Yield the CPU quota of a cgroup, of version 2 or 1, where it has one."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
        except OSError:
            continue
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


def share_cores(
    cores: Sequence[int],
    num_replicas: int,
    process_count: int,
    cores_per_replica: int | None,
    split: Sequence[int] = (),
    stages: int = 1,
    *,
    may_share: bool = False,
) -> list[tuple[int, ...]]:
    """Return the cores of each process: those of its replicas, side by side.

    Every replica gets the same number; cores left over stay idle. With `split` or `stages` each
    device of a replica gets that number. If there are too few, devices take turns on them where
    they `may_share`. Otherwise this raises ValueError.
    """
    num_devices = num_replicas * math.prod(split) * stages
    if may_share and num_devices > len(cores):
        width = num_devices // process_count
        turns = itertools.islice(itertools.cycle(cores), num_devices)
        return [tuple(sorted(set(itertools.islice(turns, width)))) for _ in range(process_count)]
    if num_devices > num_replicas and num_devices > len(cores):
        ways = [f"split={list(split)}"] if math.prod(split) > 1 else []
        ways += [f"stages={stages}"] if stages > 1 else []
        fewer = " or ".join(["parts"] * (math.prod(split) > 1) + ["stages"] * (stages > 1))
        raise ValueError(
            f"num_replicas={num_replicas} with {' and '.join(ways)} needs a CPU core for each of "
            f"{num_devices} devices, but {len(cores)} can be used here. Choose fewer {fewer}, or "
            "share_cores = true to try it out."
        )
    if num_devices > len(cores):
        raise ValueError(
            f"num_replicas={num_replicas} needs a CPU core for each replica, but {len(cores)} can "
            f"be used here. Give num_replicas={len(cores)} or fewer."
        )
    share = cores_per_replica or len(cores) // num_devices
    if share * num_devices > len(cores):
        raise ValueError(
            f"num_replicas={num_replicas} with cores_per_replica={share} needs "
            f"{share * num_devices} CPU cores, but {len(cores)} can be used here. Give "
            f"cores_per_replica={len(cores) // num_devices} or fewer, or fewer replicas."
        )
    width = share * (num_devices // process_count)
    return [tuple(cores[i * width : (i + 1) * width]) for i in range(process_count)]


def thread_limits(num_cores: int) -> dict[str, str]:
    """Return variables that make TensorFlow, OpenMP and BLAS start one thread for each core."""
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    return dict.fromkeys(names, str(num_cores))


def core_variables(cores: Sequence[int]) -> dict[str, str]:
    """Return the environment variables of a process that computes on `cores`."""
    return {CORES_VARIABLE: ",".join(map(str, cores)), **thread_limits(len(cores))}


def read_cores(environment: Mapping[str, str]) -> list[int] | None:
    """Return the cores in TFUNET_CORES; None if it is not set."""
    text = environment.get(CORES_VARIABLE)
    if not text:
        return None
    try:
        return [int(core) for core in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{CORES_VARIABLE} must be core numbers separated by commas, such as '0,1', "
            f"got {text!r}."
        ) from None


def num_threads(environment: Mapping[str, str]) -> int:
    """Return the number of threads for this process: its cores, or SLURM's share of them.

    SLURM may count cores without binding processes to them; then each process could use all.
    """
    cores = len(usable_cores())
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    if CORES_VARIABLE in environment or not given.isdecimal():
        return cores
    return max(1, min(cores, int(given)))


def pin_and_limit(environment: MutableMapping[str, str] = os.environ) -> None:
    """Pin this process to TFUNET_CORES, and limit its threads; call before TensorFlow's import.

    The supervisor pins its processes itself. This is for processes that srun, mpirun or a person
    started; without the variable only the threads are limited, by `num_threads`.
    """
    cores = read_cores(environment)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    for name, value in thread_limits(num_threads(environment)).items():
        environment.setdefault(name, value)
