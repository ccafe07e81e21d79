"""Which CPU cores a process computes on, and how many threads go with them. No TensorFlow."""

import os
from collections.abc import Mapping, MutableMapping, Sequence

CORES_VARIABLE = "TFUNET_CORES"


def usable_cores() -> list[int]:
    """Return the cores that this process may run on (a job's share of the machine, not all)."""
    return sorted(os.sched_getaffinity(0))


def share_cores(
    cores: Sequence[int], num_replicas: int, process_count: int, cores_per_replica: int | None
) -> list[tuple[int, ...]]:
    """Return each process's own cores: those of its replicas, which lie side by side.

    Every replica gets the same number, so what is left over stays idle. Raises ValueError if
    there are not enough.
    """
    if num_replicas > len(cores):
        raise ValueError(
            f"num_replicas={num_replicas} needs a CPU core for each replica, but {len(cores)} can "
            f"be used here. Give num_replicas={len(cores)} or fewer."
        )
    share = cores_per_replica or len(cores) // num_replicas
    if share * num_replicas > len(cores):
        raise ValueError(
            f"num_replicas={num_replicas} with cores_per_replica={share} needs "
            f"{share * num_replicas} CPU cores, but {len(cores)} can be used here. Give "
            f"cores_per_replica={len(cores) // num_replicas} or fewer, or fewer replicas."
        )
    width = share * (num_replicas // process_count)
    return [tuple(cores[i * width : (i + 1) * width]) for i in range(process_count)]


def thread_limits(num_cores: int) -> dict[str, str]:
    """Return the variables that make TensorFlow, OpenMP and BLAS start a thread for each core."""
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    return dict.fromkeys(names, str(num_cores))


def core_variables(cores: Sequence[int]) -> dict[str, str]:
    """Return what a process that computes on `cores` finds in its environment."""
    return {CORES_VARIABLE: ",".join(map(str, cores)), **thread_limits(len(cores))}


def read_cores(environment: Mapping[str, str]) -> list[int] | None:
    """Return the cores that TFUNET_CORES names; None where it is not set."""
    text = environment.get(CORES_VARIABLE)
    if not text:
        return None
    try:
        return [int(core) for core in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{CORES_VARIABLE} must hold core numbers with commas between them, such as '0,1', "
            f"got {text!r}."
        ) from None


def num_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads this process should have: its cores, or what SLURM gave it.

    Where SLURM only counts cores and binds nobody to them, each process could use all.
    """
    cores = len(os.sched_getaffinity(0))
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    if CORES_VARIABLE in environment or not given.isdecimal():
        return cores
    return max(1, min(cores, int(given)))


def pin_and_limit(environment: MutableMapping[str, str] = os.environ) -> None:
    """Stay on the cores of TFUNET_CORES, with as many threads: call before TensorFlow's import.

    A process of the supervisor is pinned already. This is for those that srun, mpirun or a hand
    started: without the variable, threads are limited by `num_threads`.
    """
    cores = read_cores(environment)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    for name, value in thread_limits(num_threads(environment)).items():
        environment.setdefault(name, value)
