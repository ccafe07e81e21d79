"""The index, count and hosts of a run's processes, by the variables of srun, mpirun or a person.

Pure: the environment is an argument. `tfunet.process.meeting` connects the processes. No
TensorFlow.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOSTS_VARIABLE = "TFUNET_HOSTS"
PROCESS_VARIABLE = "TFUNET_PROCESS"
# (index, count, processes on this host) under each launcher.
MPI_VARIABLES = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
}
# Below the ports that the kernel gives to outgoing connections.
FIRST_PORT, LAST_PORT = 15000, 31999
NUM_PORTS = 16


@dataclass(frozen=True, kw_only=True)
class Place:
    """A process among those of its run, before they are connected.

    Args:
        index: From 0; process 0 is the chief.
        count: Number of processes.
        host: Its host, by the name in the cluster.
        hosts: Host of every process, by index.
        key: Job, step and attempt, so that other runs cannot connect by mistake.
    """

    index: int
    count: int
    host: str
    hosts: tuple[str, ...]
    key: str

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count or len(self.hosts) != self.count:
            raise ValueError(
                f"Process {self.index} of {self.count} has the hosts {', '.join(self.hosts)}. Each "
                f"process needs a host, and the index must be in 0..{self.count - 1}."
            )

    def who(self, index: int) -> str:
        """Return the name of a process in messages: "process 1 of 2 on n10"."""
        return f"process {index} of {self.count} on {self.hosts[index]}"


def find_place(environment: Mapping[str, str], this_host: str | None = None) -> Place | None:
    """Return this process's place; None if the environment names no other processes.

    TFUNET_HOSTS overrides the launcher's hosts; it needs TFUNET_PROCESS unless MPI or SLURM count
    the processes. MPI's count overrides SLURM's, because mpirun runs inside SLURM's jobs and SLURM
    starts it. Raises ValueError for a contradictory environment.
    """
    host = this_host or socket.gethostname()
    given = _hosts(environment)
    for index_name, count_name, local_name in MPI_VARIABLES.values():
        # srun --mpi=pmi2 sets MPICH's rank and count too, but SLURM knows more of the step.
        is_of_slurm = local_name not in environment and "SLURM_STEP_NODELIST" in environment
        if index_name in environment and count_name in environment and not is_of_slurm:
            index, count = _number(environment, index_name), _number(environment, count_name)
            hosts = given or _hosts_of_mpi(environment, count, local_name, host)
            # Not SLURM's step id: mpirun's processes have one on other nodes, and none on its own.
            key = _key(environment, "SLURM_JOB_ID", "PMIX_NAMESPACE", "PMI_JOBID")
            return Place(index=index, count=count, host=host, hosts=hosts, key=key)
    if "SLURM_PROCID" in environment and "SLURM_STEP_NODELIST" in environment:
        return Place(
            index=_number(environment, "SLURM_PROCID"),
            count=_number(environment, "SLURM_STEP_NUM_TASKS"),
            host=environment.get("SLURMD_NODENAME", host),
            hosts=given or _hosts_of_slurm(environment),
            key=_key(environment, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        )
    if given:
        index = _number(environment, PROCESS_VARIABLE)
        return Place(index=index, count=len(given), host=host, hosts=given, key=",".join(given))
    return None


def expand_hostlist(text: str) -> list[str]:
    """Return the hosts of SLURM's short form, in its order: "n[2,10-11]" is n2, n10, n11."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        hosts += _expand(part)
    return hosts


def expand_counts(text: str) -> list[int]:
    """Return SLURM's counts for each node: "2(x3),1" is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not match:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE must look like '2(x3),1', got {text!r}.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def place_tasks(hosts: Sequence[str], counts: Sequence[int], distribution: str) -> list[str]:
    """Return the host of every task as srun places them: in blocks, or in turn if "cyclic"."""
    if not distribution.startswith("cyclic"):
        return [host for host, count in zip(hosts, counts, strict=True) for _ in range(count)]
    rounds = range(max(counts, default=0))
    return [
        host
        for number in rounds
        for host, count in zip(hosts, counts, strict=True)
        if number < count
    ]


def ports_of(key: str, index: int) -> list[int]:
    """Return the ports that a process of a run tries in turn; other processes have others."""
    first = sum((place + 1) * byte for place, byte in enumerate(key.encode())) * 131
    width = LAST_PORT - FIRST_PORT + 1
    return [FIRST_PORT + (first + index * NUM_PORTS + n) % width for n in range(NUM_PORTS)]


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    numbers: list[str] = []
    for span in inside.split(","):
        first, dash, last = span.partition("-")
        if dash:
            # n[08-10] is n08, n09, n10.
            numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(span)
    return [f"{head}{number}{end}" for number in numbers for end in _expand(tail)]


def _hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(expand_hostlist(environment.get(HOSTS_VARIABLE, "").replace(" ", "")))


def _hosts_of_slurm(environment: Mapping[str, str]) -> tuple[str, ...]:
    hosts = expand_hostlist(environment["SLURM_STEP_NODELIST"])
    counts = expand_counts(environment["SLURM_STEP_TASKS_PER_NODE"])
    return tuple(place_tasks(hosts, counts, environment.get("SLURM_DISTRIBUTION", "block")))


def _hosts_of_mpi(
    environment: Mapping[str, str], count: int, local_name: str, host: str
) -> tuple[str, ...]:
    if environment.get(local_name) == str(count):
        return (host,) * count
    if "SLURM_JOB_NODELIST" in environment:
        hosts = expand_hostlist(environment["SLURM_JOB_NODELIST"])
        local = environment.get(local_name, "")
        if local.isdecimal() and int(local) * len(hosts) == count:
            # Not SLURM_TASKS_PER_NODE: on other nodes it is that of mpirun's own step.
            return tuple(place_tasks(hosts, [int(local)] * len(hosts), "block"))
        counts = expand_counts(environment["SLURM_TASKS_PER_NODE"])
        if len(counts) == len(hosts) and sum(counts) == count:
            return tuple(place_tasks(hosts, counts, "block"))
    raise ValueError(
        f"MPI does not say on which hosts its {count} processes run. List them in rank order: "
        f"mpirun -x {HOSTS_VARIABLE}=host1,host1,host2,host2 ..."
    )


def _key(environment: Mapping[str, str], *names: str) -> str:
    return "-".join(environment.get(name, "") for name in names)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number, got {text!r}.")
    return int(text)
