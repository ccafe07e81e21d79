"""The index, count and hosts of a run's processes, by the variables of their launcher.

A launcher is srun, mpirun, torchrun, Kubernetes or a person. What starts several processes in a way
that is not known here, or says too little, is refused: otherwise each process would train the whole
run alone.

Pure: the environment is an argument. `tfunet.process.meeting` connects the processes. No
TensorFlow.
"""

import hashlib
import itertools
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfunet.process.slurm_hosts import (
    expand_counts,
    expand_hostlist,
    hosts_of_step,
    place_tasks,
)
from tfunet.process.tf_config import read_tf_config

HOSTS_VARIABLE = "TFUNET_HOSTS"
PROCESS_VARIABLE = "TFUNET_PROCESS"
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


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The variables that a launcher sets in each process.

    Args:
        name: As in messages.
        index: Index of the process.
        count: Number of processes; empty if the launcher does not say.
        local: Number of processes on this host: the first of these that is set.
        nodes: Number of hosts.
        chief: Host of process 0.
        key: What tells two runs apart.
        is_mpirun: It runs inside the steps of SLURM, or starts its processes by srun, so its count
            overrides SLURM's.
    """

    name: str
    index: str
    count: str = ""
    local: tuple[str, ...] = ()
    nodes: str = ""
    chief: str = ""
    key: tuple[str, ...] = ()
    is_mpirun: bool = False


# Not SLURM's step id: mpirun's processes have one on other nodes, and none on its own.
MPIRUN_KEY = ("SLURM_JOB_ID", "PMIX_NAMESPACE", "PMI_JOBID")
LAUNCHERS = (
    Launcher(
        name="Open MPI",
        index="OMPI_COMM_WORLD_RANK",
        count="OMPI_COMM_WORLD_SIZE",
        local=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        key=MPIRUN_KEY,
        is_mpirun=True,
    ),
    Launcher(
        name="MVAPICH",
        index="MV2_COMM_WORLD_RANK",
        count="MV2_COMM_WORLD_SIZE",
        local=("MV2_COMM_WORLD_LOCAL_SIZE",),
        key=MPIRUN_KEY,
        is_mpirun=True,
    ),
    Launcher(
        name="jsrun",
        index="JSM_NAMESPACE_RANK",
        count="JSM_NAMESPACE_SIZE",
        local=("JSM_NAMESPACE_LOCAL_SIZE",),
        key=("LSB_JOBID",),
    ),
    Launcher(
        name="Flux",
        index="FLUX_TASK_RANK",
        count="FLUX_JOB_SIZE",
        nodes="FLUX_JOB_NNODES",
        key=("FLUX_JOB_ID",),
    ),
    Launcher(
        name="PALS",
        index="PALS_RANKID",
        count="PMI_SIZE",
        local=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        key=("PBS_JOBID", "PALS_APID"),
    ),
    Launcher(
        name="MPICH",  # And Intel MPI: both have the launcher hydra.
        index="PMI_RANK",
        count="PMI_SIZE",
        local=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        key=MPIRUN_KEY,
        is_mpirun=True,
    ),
    Launcher(name="PMIx", index="PMIX_RANK"),
    Launcher(
        name="horovodrun",
        index="HOROVOD_RANK",
        count="HOROVOD_SIZE",
        local=("HOROVOD_LOCAL_SIZE",),
        key=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ),
    Launcher(
        name="torchrun",  # And others that set the same variables, as Kubernetes' PyTorchJob.
        index="RANK",
        count="WORLD_SIZE",
        local=("LOCAL_WORLD_SIZE",),
        chief="MASTER_ADDR",
        key=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    ),
)
SAY_HOSTS = (
    f"Give all processes {HOSTS_VARIABLE}=host1,host1,host2,host2 in the order of their indices "
    f"(mpirun -x {HOSTS_VARIABLE}=...)"
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one launcher says about this process.

    Args:
        launcher: Its name.
        variables: Names of the variables that say it.
        count: None if it is not known.
        hosts: Empty if they are not known; then `why` says what to do.
    """

    launcher: str
    variables: str
    index: int
    count: int | None
    hosts: tuple[str, ...] = ()
    key: str = ""
    why: str = ""
    is_mpirun: bool = False


def find_place(environment: Mapping[str, str], this_host: str | None = None) -> Place | None:
    """Return this process's place; None if the environment names no other processes.

    TFUNET_HOSTS overrides the launcher's hosts, and with TFUNET_PROCESS the launcher. MPI's count
    overrides SLURM's, because mpirun runs inside SLURM's jobs and SLURM starts it. Raises
    ValueError for a contradictory or incomplete environment.
    """
    host = this_host or socket.gethostname()
    given = _hosts(environment)
    claims = [*_claims(environment, host)]
    if given and (PROCESS_VARIABLE in environment or not claims):
        index = _number(environment, PROCESS_VARIABLE)
        return Place(index=index, count=len(given), host=host, hosts=given, key=",".join(given))
    claim = _choose(claims, len(given))
    if claim is None:
        return None
    count = len(given) if claim.count is None else claim.count
    hosts = given or claim.hosts
    if not hosts:
        raise ValueError(claim.why)
    if claim.launcher == "SLURM":
        host = environment.get("SLURMD_NODENAME", host)
    return Place(index=claim.index, count=count, host=host, hosts=hosts, key=claim.key)


def check_alone(environment: Mapping[str, str], what: str) -> None:
    """Raise ValueError if a launcher started several processes, which would all do `what`."""
    place = find_place(environment)
    if place is not None and place.count > 1:
        raise ValueError(
            f"This is process {place.index} of {place.count} that a launcher started, and each of "
            f"them would {what}. Start it once: it starts the processes of its runs itself."
        )


def ports_of(key: str, index: int) -> list[int]:
    """Return the ports that a process of a run tries in turn; other processes have others."""
    first = sum((place + 1) * byte for place, byte in enumerate(key.encode())) * 131
    width = LAST_PORT - FIRST_PORT + 1
    return [FIRST_PORT + (first + index * NUM_PORTS + n) % width for n in range(NUM_PORTS)]


def _choose(claims: Sequence[Claim], num_hosts: int) -> Claim | None:
    """Return the claim that is right; ValueError if two claims differ, or none says how many."""
    several = [claim for claim in claims if claim.count is not None and claim.count > 1]
    if any(claim.is_mpirun for claim in several):
        several = [claim for claim in several if claim.launcher != "SLURM"]
    for first, other in itertools.pairwise(several):
        if (first.index, first.count) != (other.index, other.count):
            raise ValueError(
                f"{first.launcher} says that this is process {first.index} of {first.count} "
                f"({first.variables}), and {other.launcher} that it is process {other.index} of "
                f"{other.count} ({other.variables}). Unset the variables of one of them."
            )
    if several:
        return next((claim for claim in several if claim.hosts), several[0])
    alone = next((claim for claim in claims if claim.count == 1), None)
    for claim in claims:
        if claim.count is None and not (alone is not None and claim.index == 0):
            if num_hosts:
                return claim
            raise ValueError(
                f"{claim.variables} says that {claim.launcher} started this process with others, "
                f"but not how many. {SAY_HOSTS}, or unset it to train with this process alone."
            )
    return alone


def _claims(environment: Mapping[str, str], host: str) -> Iterator[Claim]:
    """Yield what each launcher says whose variables are set."""
    slurm = _claim_of_slurm(environment)
    for launcher in LAUNCHERS:
        claim = _claim_of(launcher, environment, host)
        # srun --mpi=pmi2 sets MPICH's rank and count too, but SLURM knows more of the step.
        is_of_slurm = launcher.name == "MPICH" and slurm and "MPI_LOCALNRANKS" not in environment
        if claim is not None and not is_of_slurm:
            yield claim
    if slurm is not None:
        yield slurm
    claim = _claim_of_tensorflow(environment)
    if claim is not None:
        yield claim


def _claim_of(launcher: Launcher, environment: Mapping[str, str], host: str) -> Claim | None:
    has_count = bool(launcher.count) and launcher.count in environment
    # RANK may mean something else to somebody; with WORLD_SIZE it is a launcher's.
    is_word = launcher.name == "torchrun" and not environment.get(launcher.index, "").isdecimal()
    if launcher.index not in environment or (is_word and not has_count):
        if has_count and launcher.name != "PALS" and environment[launcher.count] not in ("", "1"):
            raise ValueError(
                f"{launcher.count}={environment[launcher.count]} says that several processes were "
                f"started, but {launcher.index} (the index of this one) is "
                f"{environment.get(launcher.index) or 'missing'!r}. Set it, or unset "
                f"{launcher.count} to train with this process alone."
            )
        return None
    index = _number(environment, launcher.index)
    variables = f"{launcher.index}={index}"
    if not has_count:
        if launcher.name == "torchrun" and index == 0:
            return None
        return Claim(launcher=launcher.name, variables=variables, index=index, count=None)
    count = _number(environment, launcher.count)
    hosts = _hosts_of(launcher, environment, count, index, host)
    why = (
        f"{launcher.name} does not say on which hosts its {count} processes run "
        f"({variables}, {launcher.count}={count}). {SAY_HOSTS}."
    )
    name = () if launcher.is_mpirun else (launcher.name,)
    return Claim(
        launcher=launcher.name,
        variables=f"{variables}, {launcher.count}={count}",
        index=index,
        count=count,
        hosts=hosts,
        key="-".join((*name, *(environment.get(part, "") for part in launcher.key))),
        why=why,
        is_mpirun=launcher.is_mpirun,
    )


def _hosts_of(
    launcher: Launcher, environment: Mapping[str, str], count: int, index: int, host: str
) -> tuple[str, ...]:
    """Return the host of every process, or nothing if the launcher does not say."""
    local = next((environment[name] for name in launcher.local if name in environment), "")
    if str(count) == local or count == 1 or environment.get(launcher.nodes) == "1":
        return (host,) * count
    if launcher.is_mpirun and "SLURM_JOB_NODELIST" in environment:
        return _hosts_of_job(environment, count, local)
    if chief := environment.get(launcher.chief, ""):
        # Only the host of process 0 must be known: the others go there.
        hosts = [chief, *["an unknown host"] * (count - 1)]
        hosts[index] = host if index else chief
        return tuple(hosts)
    return ()


def _hosts_of_job(environment: Mapping[str, str], count: int, local: str) -> tuple[str, ...]:
    """Return the hosts of mpirun's processes in a job of SLURM."""
    hosts = expand_hostlist(environment["SLURM_JOB_NODELIST"])
    if local.isdecimal() and int(local) * len(hosts) == count:
        # Not SLURM_TASKS_PER_NODE: on other nodes it is that of mpirun's own step.
        return tuple(place_tasks(hosts, [int(local)] * len(hosts), "block"))
    counts = expand_counts(environment.get("SLURM_TASKS_PER_NODE", "0"))
    if len(counts) == len(hosts) and sum(counts) == count:
        return tuple(place_tasks(hosts, counts, "block"))
    return ()


def _claim_of_slurm(environment: Mapping[str, str]) -> Claim | None:
    if "SLURM_PROCID" not in environment:
        return None
    if "SLURM_STEP_NODELIST" not in environment:
        index = _number(environment, "SLURM_PROCID")
        # A batch script, before srun, has the index 0.
        variables = f"SLURM_PROCID={index}"
        return (
            Claim(launcher="SLURM", variables=variables, index=index, count=None) if index else None
        )
    index = _number(environment, "SLURM_PROCID")
    count = _number(environment, "SLURM_STEP_NUM_TASKS")
    hosts, why = hosts_of_step(environment)
    return Claim(
        launcher="SLURM",
        variables=f"SLURM_PROCID={index}, SLURM_STEP_NUM_TASKS={count}",
        index=index,
        count=count,
        hosts=hosts,
        key=_key(environment, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        why=f"{why} Or: {SAY_HOSTS}.",
    )


def _claim_of_tensorflow(environment: Mapping[str, str]) -> Claim | None:
    cluster = read_tf_config(environment.get("TF_CONFIG", ""))
    if cluster is None:
        return None
    return Claim(
        launcher="TF_CONFIG",
        variables="TF_CONFIG",
        index=cluster.index,
        count=len(cluster.addresses),
        hosts=cluster.hosts,
        key=hashlib.sha256(json.dumps(cluster.addresses).encode()).hexdigest(),
    )


def _hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(expand_hostlist(environment.get(HOSTS_VARIABLE, "").replace(" ", "")))


def _key(environment: Mapping[str, str], *names: str) -> str:
    return "-".join(environment.get(name, "") for name in names)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number, got {text!r}.")
    return int(text)
