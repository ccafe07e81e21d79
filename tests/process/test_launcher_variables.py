"""A process knows its place from what srun, mpirun or a person put into its environment."""

import json

import pytest

from tfunet.process.launcher_variables import find_place, ports_of

# As recorded in steps of SLURM 22.05, of mpirun (Open MPI 4.1) and of MPICH's hydra.
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURMD_NODENAME": "n10",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
ONE_NODE = {"SLURM_STEP_NODELIST": "n10", "SLURM_STEP_TASKS_PER_NODE": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "2735013889",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "kvs_1"}


@pytest.mark.parametrize(
    ("environment", "index", "hosts"),
    [
        (SLURM, 1, "n2 n10"),
        ({**SLURM, "TFUNET_HOSTS": "10.0.0.2,10.0.0.10"}, 1, "10.0.0.2 10.0.0.10"),
        (MPICH, 1, "here here"),
        ({**OPEN_MPI, "TFUNET_HOSTS": "a,a,b,b"}, 2, "a a b b"),
        # mpirun in a job: its own count, the job's nodes.
        (
            {**OPEN_MPI, "SLURM_JOB_NODELIST": "n[2,10]", "SLURM_TASKS_PER_NODE": "2(x2)"},
            2,
            "n2 n2 n10 n10",
        ),
        # On its other nodes SLURM_TASKS_PER_NODE is that of the step by which mpirun got there.
        (
            {**OPEN_MPI, "SLURM_JOB_NODELIST": "n[2,10]", "SLURM_TASKS_PER_NODE": "1"},
            2,
            "n2 n2 n10 n10",
        ),
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "4.0"}, 1, "n2 n10"),  # pmi2
        ({"TFUNET_HOSTS": "a,b[1-2]", "TFUNET_PROCESS": "2"}, 2, "a b1 b2"),
    ],
)
def test_place_is_what_the_launcher_says(environment, index, hosts):
    place = find_place(environment, "here")
    assert place is not None
    assert (place.index, " ".join(place.hosts)) == (index, hosts)
    assert place.count == len(place.hosts)


WORKERS = {"worker": ["a:2222", "b:2222"]}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1"}
HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "1", "PMI_RANK": "1"}
PALS = {"PALS_RANKID": "1", "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_LOCAL_SIZE": "1"}
JSRUN = {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "PMIX_RANK": "1"}
COMPONENTS = {**SLURM, "SLURM_HET_SIZE": "2", "SLURM_GTIDS": "1"}


def tf_config(index=1, role="worker", cluster=WORKERS):
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}),
    }


@pytest.mark.parametrize(
    ("environment", "index", "hosts"),
    [
        (tf_config(), 1, "a b"),
        # The chief comes before the workers.
        (tf_config(0, "chief", {"chief": ["c:1"], **WORKERS}), 0, "c a b"),
        (tf_config(1, "worker", {"chief": ["c:1"], **WORKERS}), 2, "c a b"),
        (tf_config(cluster={"worker": ["[fd00::1]:2222", "localhost"]}), 1, "fd00::1 localhost"),
        (TORCHRUN, 1, "10.0.0.1 here"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, 1, "here here"),
        ({**TORCHRUN, "RANK": "0"}, 0, "10.0.0.1 an_unknown_host"),
        (HOROVODRUN, 1, "here here"),
        (FLUX, 1, "here here"),
        ({**PALS, "PMI_LOCAL_SIZE": "2"}, 1, "here here"),
        ({**PALS, "TFUNET_HOSTS": "a,b"}, 1, "a b"),
        ({**JSRUN, "JSM_NAMESPACE_LOCAL_SIZE": "2"}, 1, "here here"),
        ({"PMIX_RANK": "1", "TFUNET_HOSTS": "a,b"}, 1, "a b"),
        (COMPONENTS, 1, "n2 n10"),
        # Inside a step of one task, as an interactive shell is, another launcher counts.
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", **HOROVODRUN}, 1, "here here"),
        ({**SLURM, **tf_config(), "WORLD_SIZE": "1", "RANK": "0"}, 1, "n2 n10"),  # They agree.
        # By hand, whatever started it.
        ({**TORCHRUN, "TFUNET_HOSTS": "a,b,c", "TFUNET_PROCESS": "2"}, 2, "a b c"),
    ],
)
def test_other_launchers_are_joined(environment, index, hosts):
    place = find_place(environment, "here")
    assert place is not None
    shown = " ".join(host.replace(" ", "_") for host in place.hosts)
    assert (place.index, shown) == (index, hosts)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**HOROVODRUN, "HOROVOD_LOCAL_SIZE": "1"}, "horovodrun does not say on which hosts"),
        ({**FLUX, "FLUX_JOB_NNODES": "2"}, "Flux does not say on which hosts.*TFUNET_HOSTS"),
        (PALS, "PALS does not say on which hosts its 2 processes run"),
        (JSRUN, "jsrun does not say on which hosts"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPICH does not say on which hosts"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun does not say on which hosts"),
        # Some say only which process this is, some only how many there are.
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0 says that PMIx started .* but not how many"),
        ({"PALS_RANKID": "1"}, "PALS_RANKID=1 says that PALS started"),
        ({"RANK": "1"}, "RANK=1 says that torchrun started"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "SLURM_PROCID=1 says that SLURM started"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 says that several .* RANK .* 'missing'"),
        ({"HOROVOD_SIZE": "2"}, "HOROVOD_SIZE=2 says .* HOROVOD_RANK"),
        ({**SLURM, "SLURM_DISTRIBUTION": "arbitrary"}, "--distribution=arbitrary"),
        ({**SLURM, "SLURM_DISTRIBUTION": "plane"}, "--distribution=plane"),
        ({**COMPONENTS, "SLURM_STEP_TASKS_PER_NODE": "1,2"}, "a heterogeneous job"),
        # srun starts torchrun on each node, and torchrun two processes.
        ({**SLURM, **TORCHRUN, "WORLD_SIZE": "4"}, "torchrun says .* 1 of 4 .* SLURM .* 1 of 2"),
        ({**HOROVODRUN, **tf_config(0)}, "horovodrun says that this is process 1 of 2"),
        ({"TF_CONFIG": "worker 0"}, "TF_CONFIG must look like"),
        ({"TF_CONFIG": '{"cluster": {"worker": "a:1"}}'}, "TF_CONFIG must look like"),
        (tf_config(0, "worker", {**WORKERS, "ps": ["p:1"]}), "tasks of type 'ps'"),
        (tf_config(0, "evaluator"), "tasks of type 'evaluator'"),
        (tf_config(2), "must be in 0..1"),
    ],
)
def test_a_launcher_that_cannot_be_joined_is_refused_by_name(environment, words):
    with pytest.raises(ValueError, match=words):
        find_place(environment, "here")


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "corporal"},
        {"RANK": "0"},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": '{"cluster": {}}'},
        tf_config(0, "worker", {"worker": ["a:1"]}),
        {"PMIX_RANK": "0", **SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_a_process_alone_trains_alone(environment):
    place = find_place({**environment, **ONE_NODE}, "here")
    assert place is None or place.count == 1


def test_without_a_launcher_there_is_no_place():
    assert find_place({"HOME": "/root"}) is None
    # In a batch script, before srun.
    assert find_place({"SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[2,10]"}) is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (OPEN_MPI, "MPI does not say on which hosts its 4 processes run.*mpirun -x TFUNET_HOSTS"),
        ({**OPEN_MPI, "TFUNET_HOSTS": "a,b"}, "Each process needs a host"),
        ({"TFUNET_HOSTS": "a,b"}, "TFUNET_PROCESS must be a whole number, got ''"),
        ({"TFUNET_HOSTS": "a,b", "TFUNET_PROCESS": "2"}, "must be in 0..1"),
    ],
)
def test_what_does_not_fit_together_is_refused(environment, words):
    with pytest.raises(ValueError, match=words):
        find_place(environment, "here")


def test_attempts_of_a_job_do_not_meet():
    first, again = find_place(SLURM), find_place({**SLURM, "SLURM_RESTART_COUNT": "1"})
    assert first.key != again.key
    assert first.key == find_place({**SLURM, "SLURM_PROCID": "0"}).key


def test_processes_try_ports_of_their_own_below_those_of_the_kernel():
    ports = [port for index in range(8) for port in ports_of("7-0-", index)]
    assert len(set(ports)) == len(ports)
    assert min(ports) > 1024
    assert max(ports) < 32768
    assert not set(ports_of("7-0-", 0)) & set(ports_of("8-0-", 0))
