"""Cores for replicas and the threads that go with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfunet
from tfunet.machine import cores as machine_cores
from tfunet.machine.cores import (
    core_variables,
    cpu_quota,
    num_threads,
    read_cores,
    share_cores,
    usable_cores,
)
from tfunet.machine.doctor import cores_check
from tfunet.machine.environment import environment


@pytest.mark.parametrize(
    ("cores", "num_replicas", "process_count", "cores_per_replica", "shares"),
    [
        ([0, 1], 1, 1, None, [(0, 1)]),
        ([0, 1], 2, 2, None, [(0,), (1,)]),
        ([0, 1], 2, 1, None, [(0, 1)]),
        ([0, 1], 1, 1, 1, [(0,)]),
        # What a job may use is not counted from 0.
        ([4, 6, 9, 11], 2, 2, None, [(4, 6), (9, 11)]),
        # Seven cores: the same for each replica, one stays idle.
        (range(7), 3, 3, None, [(0, 1), (2, 3), (4, 5)]),
        (range(8), 4, 2, 1, [(0, 1), (2, 3)]),
        (range(8), 4, 2, None, [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
)
def test_replicas_get_equal_and_separate_cores(
    cores, num_replicas, process_count, cores_per_replica, shares
):
    assert share_cores(cores, num_replicas, process_count, cores_per_replica) == shares


@pytest.mark.parametrize(
    ("num_replicas", "cores_per_replica", "message"),
    [
        (3, None, "num_replicas=3 needs a CPU core for each replica, but 2 can be used"),
        (1, 3, r"needs 3 CPU cores, but 2 can be used here\. Give cores_per_replica=2 or fewer"),
    ],
)
def test_too_few_cores_are_said(num_replicas, cores_per_replica, message):
    with pytest.raises(ValueError, match=message):
        share_cores([0, 1], num_replicas, 1, cores_per_replica)


def test_every_stage_gets_cores():
    assert share_cores(range(4), 1, 2, None, stages=2) == [(0, 1), (2, 3)]
    with pytest.raises(ValueError, match="stages=3 needs a CPU core for each of 3 devices, but 2"):
        share_cores([0, 1], 1, 3, None, stages=3)
    with pytest.raises(ValueError, match=r"split=\[2, 1\] and stages=2 needs .* 4 devices, but 2"):
        share_cores([0, 1], 1, 4, None, (2, 1), 2)


def test_devices_take_turns_on_few_cores_where_they_may():
    assert share_cores([4, 6], 1, 4, 1, (2, 1), 2, may_share=True) == [(4,), (6,), (4,), (6,)]
    assert share_cores([4, 6, 8], 2, 2, None, (), 2, may_share=True) == [(4, 6), (4, 8)]
    assert share_cores(range(4), 2, 2, None, may_share=True) == [(0, 1), (2, 3)]


V1 = "31 23 0:28 {root} {mount} rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
V2 = "31 23 0:28 {root} {mount} rw,relatime - cgroup2 cgroup rw"


@pytest.mark.parametrize(
    ("groups", "mount", "root", "files", "quota"),
    [
        ("1:cpu:/t3", V1, "/", {"t3": "100000 100000"}, 1),
        ("4:cpu,cpuacct:/a/b", V1, "/", {"a": "50000 100000", "a/b": "-1 100000"}, 0.5),
        ("0::/a/b", V2, "/", {"a": "max 100000", "a/b": "150000 100000"}, 1.5),
        # The least of those around it counts.
        ("0::/a/b", V2, "/", {"a": "100000 100000", "a/b": "300000 100000"}, 1),
        ("0::/a", V2, "/", {"a": "max 100000"}, None),
        # Docker without a namespace of its own: the path is the host's, and the root is its folder.
        ("1:cpu:/docker/x", V1, "/docker/x", {"": "200000 100000"}, 2),
        ("0::/", V2, "/", {"": "200000 100000"}, 2),
        # A group outside of what the container sees.
        ("0::/../y", V2, "/x", {"": "200000 100000"}, 2),
        # Another controller's folder says nothing about CPUs.
        ("1:memory:/a", V1, "/", {"a": "100000 100000"}, None),
    ],
)
def test_cpu_quota_limits_the_cores(monkeypatch, tmp_path, groups, mount, root, files, quota):
    process, folder = tmp_path / "proc", tmp_path / "cgroup"
    process.mkdir()
    (process / "cgroup").write_text(f"9:name=systemd:/\n{groups}\n")
    (process / "mountinfo").write_text(f"{mount.format(root=root, mount=folder)}\n")
    for name, text in files.items():
        group = folder / name
        group.mkdir(parents=True, exist_ok=True)
        if mount is V2:
            (group / "cpu.max").write_text(f"{text}\n")
        else:
            for key, value in zip(("quota", "period"), text.split(), strict=True):
                (group / f"cpu.cfs_{key}_us").write_text(f"{value}\n")
    monkeypatch.setattr(machine_cores, "PROCESS", process)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 5, 3})
    assert cpu_quota() == quota
    expected = [3, 5, 7] if quota is None else [3, 5, 7][: max(1, int(quota))]
    assert usable_cores() == expected
    assert num_threads({}) == len(expected)
    said = cores_check().detail
    assert said.startswith(f"{len(expected)} of ")
    assert said.endswith("may be used" if quota is None else f"has a CPU quota of {quota:g}")
    assert environment({}).get("cpu_quota") == quota


def test_no_cgroups_are_no_quota(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_cores, "PROCESS", tmp_path)
    assert cpu_quota() is None


def test_variables_of_a_process():
    assert core_variables((2, 3)) == {
        "TFUNET_CORES": "2,3",
        "TF_NUM_INTRAOP_THREADS": "2",
        "TF_NUM_INTEROP_THREADS": "2",
        "OMP_NUM_THREADS": "2",
    }
    assert read_cores(core_variables((2, 3))) == [2, 3]


def test_wrong_cores_are_said():
    with pytest.raises(ValueError, match=r"TFUNET_CORES must be core numbers .* got 'a,b'"):
        read_cores({"TFUNET_CORES": "a,b"})


@pytest.mark.parametrize("named", [True, False])
def test_process_started_by_hand_is_pinned_and_limited(named):
    cores = sorted(os.sched_getaffinity(0))
    expected = cores[-1:] if named else cores
    program = (
        "import os; from tfunet.machine.cores import pin_and_limit; pin_and_limit();"
        "print(sorted(os.sched_getaffinity(0)), os.environ['TF_NUM_INTRAOP_THREADS'],"
        "os.environ['OMP_NUM_THREADS'])"
    )
    environment = {"PYTHONPATH": str(Path(tfunet.__file__).parents[1]), "OMP_NUM_THREADS": "7"}
    if named:
        environment["TFUNET_CORES"] = str(cores[-1])
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    # A limit that the user set stays.
    assert done.stdout == f"{expected} {len(expected)} 7\n"
