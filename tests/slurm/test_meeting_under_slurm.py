"""Ranks, hosts and addresses agree where srun starts the processes on nodes n2 and n10."""

import json
import shutil
import sys

import pytest
from paths import ROOT

from tfunet.process.addresses import address_of

pytestmark = pytest.mark.slurm
MEET = """
import json, os, sys, time
from pathlib import Path
from tfunet.process.launcher_variables import find_place
from tfunet.process.meeting import Meeting

place = find_place(os.environ)
gone = Path(os.environ.get("GONE", "none"))
while "GONE" in os.environ and place.index == 1 and not gone.exists():
    time.sleep(0.1)
try:
    meeting = Meeting(place, "code", [], b"known to all processes of a run")
except ConnectionError as error:
    gone.touch()
    sys.exit(f"refused: {error}")
shown = {"index": place.index, "host": place.host, "hosts": place.hosts}
line = json.dumps({**shown, "addresses": meeting.addresses}) + "\\n"
os.write(1, line.encode())  # At once: mpirun puts what comes in parts between others' lines.
"""


@pytest.fixture
def meet(cluster, tmp_path, monkeypatch):
    """What each process of an srun says."""
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    monkeypatch.setitem(cluster.environment, "PYTHONPATH", str(ROOT))

    def run(*options, **variables):
        for name, value in variables.items():
            monkeypatch.setitem(cluster.environment, name, value)
        return cluster.run("srun", "--quiet", *options, sys.executable, str(script)).splitlines()

    run.script = script
    return run


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        (("-N2", "-n2"), ["n2", "n10"]),
        (("-N2", "-n4", "--ntasks-per-node=2", "--distribution=block"), ["n2", "n2", "n10", "n10"]),
        (
            ("-N2", "-n4", "--ntasks-per-node=2", "--distribution=cyclic"),
            ["n2", "n10", "n2", "n10"],
        ),
        (("-N2", "-n3", "--distribution=block"), ["n2", "n2", "n10"]),
        (("-w", "n10", "-n2"), ["n10", "n10"]),
        (("-N2", "-n3", "--distribution=plane=1"), ["n2", "n10", "n2"]),
    ],
)
def test_all_processes_agree_on_who_is_where(cluster, meet, options, hosts):
    said = sorted((json.loads(line) for line in meet(*options)), key=lambda one: one["index"])
    # Where each is, by itself; where each believes the others are; where they can be reached.
    assert [process["host"] for process in said] == hosts
    assert all(process["hosts"] == hosts for process in said)
    assert all(process["addresses"] == said[0]["addresses"] for process in said)
    reached = [address.rpartition(":")[0] for address in said[0]["addresses"]]
    assert reached == [cluster.addresses[name] for name in hosts]
    assert len(set(said[0]["addresses"])) == len(hosts)


def test_the_components_of_a_heterogeneous_step_are_one_run(meet):
    script = (sys.executable, str(meet.script))
    lines = meet("-w", "n2", "-n2", *script, ":", "-w", "n10", "-n1")
    said = sorted((json.loads(line) for line in lines), key=lambda one: one["index"])
    assert [process["host"] for process in said] == ["n2", "n2", "n10"]
    assert all(process["hosts"] == ["n2", "n2", "n10"] for process in said)


def test_a_step_whose_hosts_slurm_does_not_say_is_refused(meet, tmp_path):
    (tmp_path / "hosts").write_text("n10\nn2\nn10\n")
    options = ("-n3", "--distribution=arbitrary")
    lines = meet(*options, SLURM_HOSTFILE=str(tmp_path / "hosts"))
    assert sum("step with --distribution=arbitrary" in line for line in lines) == 3
    assert not [line for line in lines if line.startswith("{")]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun: apt-get install openmpi-bin")
def test_mpirun_in_a_job_agrees_with_its_nodes(cluster, tmp_path, monkeypatch):
    (tmp_path / "meet.py").write_text(MEET)
    for name, value in {
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }.items():
        monkeypatch.setitem(cluster.environment, name, value)
    options = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", f"--output={tmp_path}/out.txt"]
    wrap = f"mpirun {sys.executable} {tmp_path}/meet.py"
    cluster.run("sbatch", "--wait", *options, "--wrap", wrap)
    said = [json.loads(line) for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert {(process["index"], process["host"]) for process in said} == {(0, "n2"), (1, "n10")}
    assert [process["hosts"] for process in said] == [["n2", "n10"]] * 2


def test_the_process_that_does_not_come_is_named_with_its_node(meet, tmp_path):
    # It comes once the chief has gone.
    lines = meet("-N2", "-n2", GONE=str(tmp_path / "gone"), TFUNET_MEETING_SECONDS="1")
    assert "refused: process 1 of 2 on n10 did not come within 1 s." in lines
    assert any("process 0 of 2 on n2" in line and "did not answer" in line for line in lines)


def test_slurm_is_asked_for_nodes_whose_names_lead_nowhere(cluster, monkeypatch):
    # Here, outside the nodes, nothing else knows them.
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    assert [address_of(name) for name in ("n2", "n10")] == list(cluster.addresses.values())
