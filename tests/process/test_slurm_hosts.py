"""The tasks of a step of SLURM lie where srun put them, or tfunet says that it cannot tell."""

import pytest

from tfunet.process.slurm_hosts import expand_counts, expand_hostlist, hosts_of_step, place_tasks


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
    [
        ("block", "aaabbbc"),
        ("cyclic", "abcabab"),
        ("cyclic:block", "abcabab"),
        ("block:cyclic", "aaabbbc"),
        ("plane", "aabbcab"),
    ],
)
def test_tasks_lie_where_srun_puts_them(distribution, hosts):
    assert place_tasks("abc", [3, 3, 1], distribution, 2) == list(hosts)


def step(nodes, tasks, gtids, node, **others):
    return {
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_GTIDS": gtids,
        "SLURMD_NODENAME": node,
        **{f"SLURM_{name}": value for name, value in others.items()},
    }


# As recorded in steps of SLURM 22.05 on two nodes.
PLANE = {"DISTRIBUTION": "plane", "DIST_PLANESIZE": "2"}
COMPONENTS = {"DISTRIBUTION": "cyclic", "HET_SIZE": "2"}
ARBITRARY = {"DISTRIBUTION": "arbitrary"}


@pytest.mark.parametrize(
    ("environment", "hosts"),
    [
        (step("n[2,10]", "4,2", "0,1,4,5", "n2", **PLANE), "n2 n2 n10 n10 n2 n2"),
        (step("n[2,10]", "4,2", "2,3", "n10", **PLANE), "n2 n2 n10 n10 n2 n2"),
        (step("n[2,10]", "1(x2)", "1", "n10", **COMPONENTS), "n2 n10"),
        # Two tasks, then one: in blocks, although SLURM_DISTRIBUTION says cyclic.
        (step("n[2,10]", "2,1", "0,1", "n2", **COMPONENTS), "n2 n2 n10"),
        (step("n[2,10]", "2,1", "2", "n10", **COMPONENTS), "n2 n2 n10"),
        # On one node all distributions are the same.
        (step("n2", "2", "0,1", "n2", **ARBITRARY), "n2 n2"),
    ],
)
def test_hosts_of_a_step(environment, hosts):
    assert hosts_of_step(environment) == (tuple(hosts.split()), "")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (step("n[2,10]", "1,2", "0,2", "n10", **ARBITRARY), "--distribution=arbitrary"),
        (step("n[2,10]", "1,2", "0,2", "n10", DISTRIBUTION="block"), "--distribution=block"),
        (step("n[2,10]", "2,1", "1,2", "n10", **COMPONENTS), "a heterogeneous job"),
        (step("n[2,10]", "2(x2)", "0,1", "n2", DISTRIBUTION="plane"), "--distribution=plane"),
    ],
)
def test_a_step_whose_hosts_are_not_known_is_refused_by_name(environment, words):
    hosts, why = hosts_of_step(environment)
    assert hosts == ()
    assert words in why
    assert "srun --distribution=block" in why
