"""The SLURM that the other tests here run in is a real one, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm
CLUSTER = Path(__file__).with_name("cluster.py")


def test_slurm_counts_the_nodes_where_text_would_not(cluster):
    shown = cluster.run(
        "srun", "--quiet", "-N2", "-n2", "bash", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"
    )
    assert sorted(shown.splitlines()) == ["0 n2", "1 n10"]
    assert sorted(["n2", "n10"]) == ["n10", "n2"]


def test_each_node_has_an_address_of_its_own(cluster):
    shown = cluster.run("srun", "--quiet", "-N2", "-n2", "hostname", "-I")
    assert set(shown.split()) == set(cluster.addresses.values())


def test_a_killed_cluster_is_taken_away_by_the_next(cluster):
    # Its own process group, as a session that is killed has.
    command = [
        sys.executable,
        str(CLUSTER),
        "sh",
        "-c",
        "srun -N2 sleep 61 & sleep 2; echo up; wait",
    ]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "up\n"
    os.killpg(other.pid, signal.SIGKILL)
    other.wait()
    name = f"tfunet-slurm-{other.pid}"
    assert name in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    assert subprocess.run([sys.executable, str(CLUSTER), "true"], timeout=280).returncode == 0
    assert name not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    told = f"SLURM_CONF=/tmp/{name}/slurm.conf".encode()
    deadline = time.monotonic() + 60
    while left := processes_told(told):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def processes_told(what):
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if what in path.read_bytes():
                found.append(path.parent.name)
    return found
