"""What each process of a run is given: cores, threads, a port, and a place."""

import json
import os
import re
import socket
from pathlib import Path

import pytest
from supervised import (
    run,
)

from tfunet.backend import num_processes
from tfunet.bench.launch import processes_to_start
from tfunet.bench.launch.processes_to_start import child_environment, free_ports, plan_processes
from tfunet.config.run import RunConfig


@pytest.mark.parametrize(
    ("inherited", "onednn"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")]
)
def test_processes_use_onednn_unless_the_user_turned_it_off(inherited, onednn):
    (plan,) = plan_processes(RunConfig(data="cells"), [0])
    assert child_environment(plan, inherited)["TF_ENABLE_ONEDNN_OPTS"] == onednn


REPORT = """
names = ["TFUNET_CORES", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
         "TF_CPP_MIN_LOG_LEVEL", "PYTHONUNBUFFERED"]
with open(f"report-{index}", "w") as file:
    json.dump({"place": place, "cores": sorted(os.sched_getaffinity(0)),
               "variables": [os.environ.get(name) for name in names]}, file)
"""


def test_each_process_has_its_own_cores_and_threads_to_match(mark, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // 2
    assert run(REPORT).exit_code == 0
    reports = [json.loads(Path(f"report-{index}").read_text()) for index in range(2)]
    for index, report in enumerate(reports):
        mine = cores[index * share : (index + 1) * share]
        assert report["cores"] == mine
        assert report["variables"][0] == ",".join(map(str, mine))
        assert report["variables"][1:] == [str(share)] * 3 + ["2", "1"]
        assert report["place"]["process_index"] == index
        assert report["place"]["process_count"] == 2
        assert report["place"]["num_replicas"] == 2
    assert reports[0]["place"]["addresses"] == reports[1]["place"]["addresses"]
    assert len(set(reports[0]["place"]["addresses"])) == 2


def test_log_level_of_the_user_is_kept(mark, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    assert run(REPORT, num_replicas=1).exit_code == 0
    assert json.loads(Path("report-0").read_text())["variables"][4] == "0"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"backend": "single"}, 1),
        ({"backend": "mirrored", "num_replicas": 2}, 1),
        ({"backend": "multiworker", "num_replicas": 2}, 2),
        ({"backend": "horovod", "num_replicas": 4}, 4),
        ({"backend": "horovod", "num_replicas": 4, "processes": 2}, 2),
        ({"backend": "mine:Backend", "num_replicas": 3}, 3),
    ],
)
def test_number_of_processes(options, count):
    assert num_processes(RunConfig(**options)) == count


def test_replicas_of_one_process_share_its_cores():
    config = RunConfig(backend="horovod", num_replicas=4, processes=2)
    assert [number.cores for number in plan_processes(config, range(9))] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
    ]
    config = RunConfig(backend="mirrored", num_replicas=2)
    assert [plan.cores for plan in plan_processes(config, [3, 5])] == [(3, 5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_replicas": 3},
            "num_replicas=3 needs a CPU core for each replica, but 2 can be used here. Give "
            "num_replicas=2 or fewer.",
        ),
        (
            {"num_replicas": 2, "cores_per_replica": 2},
            "num_replicas=2 with cores_per_replica=2 needs 4 CPU cores, but 2 can be used here. "
            "Give cores_per_replica=1 or fewer, or fewer replicas.",
        ),
        (
            {"backend": "mirrored", "num_replicas": 2, "processes": 2},
            "The backend 'mirrored' runs in one process, got processes=2. Leave out processes",
        ),
        (
            {"num_replicas": 1, "processes": 2},
            "num_replicas=1 cannot be shared equally by process_count=2.",
        ),
        ({"backend": "horovd"}, "Unknown backend 'horovd'. Did you mean 'horovod'?"),
        # However many are asked for.
        ({"num_replicas": 10**30}, "needs a CPU core for each replica, but 2"),
        ({"stages": 10**30}, f"needs a CPU core for each of {10**30} devices, but 2"),
        (
            {"num_replicas": 1, "processes": 10**30},
            f"num_replicas=1 cannot be shared equally by process_count={10**30}.",
        ),
    ],
)
def test_run_that_this_machine_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_processes(RunConfig(**{"backend": "horovod", **options}), [0, 1])


def test_refused_run_writes_nothing(mark):
    with pytest.raises(ValueError, match="needs a CPU core for each replica"):
        run("pass", num_replicas=len(os.sched_getaffinity(0)) + 1)
    assert not Path("run").exists()


def test_ports_are_free_before_and_after(mark):
    outcome = run(
        """
host, port = place["addresses"][index].split(":")
server = socket.create_server((host, int(port)))
open(f"ready-{index}", "w").write(port)
while index == 0 and not os.path.exists("ready-1"):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    )
    assert outcome.exit_code == 3
    for index in range(2):
        port = int(Path(f"ready-{index}").read_text())
        with socket.socket() as again:
            again.bind(("127.0.0.1", port))


def test_ports_differ_and_are_none_that_the_system_gives_meanwhile():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not set(ports) & set(range(first, last + 1))
    assert free_ports(50) != ports  # A run that starts at the same time has others.


def test_a_port_in_use_is_not_given(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        monkeypatch.setattr(processes_to_start, "FIRST_PORT", used)
        monkeypatch.setattr(processes_to_start, "LAST_PORT", used)
        monkeypatch.setattr(processes_to_start, "EPHEMERAL_PORTS", Path("/nowhere"))
        (port,) = free_ports(1)
    assert port != used
