"""A process knows its place from what srun, mpirun or a person put into its environment."""

import pytest

from tfunet.process.launcher_variables import (
    expand_counts,
    expand_hostlist,
    find_place,
    place_tasks,
    ports_of,
)

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
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "2735013889",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "kvs_1"}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[2,10]", ["n2", "n10"]),  # SLURM's order, which is not that of text.
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("gpu[1-2],login", ["gpu1", "gpu2", "login"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("", []),
    ],
)
def test_host_list_is_expanded_in_its_own_order(text, hosts):
    assert expand_hostlist(text) == hosts


def test_counts_of_each_node():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ValueError, match="got '2x3'"):
        expand_counts("2x3")


@pytest.mark.parametrize(
    ("distribution", "hosts"),
    [("block", "aabbc"), ("cyclic", "abcab"), ("cyclic:block", "abcab"), ("block:cyclic", "aabbc")],
)
def test_tasks_lie_where_srun_puts_them(distribution, hosts):
    assert place_tasks("abc", [2, 2, 1], distribution) == list(hosts)


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
