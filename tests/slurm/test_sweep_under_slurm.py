"""A sweep under a real SLURM: submitted, killed, cancelled, preempted, resumed; scores as local."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfunet import exit_codes

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(2400)]
ROOT = Path(__file__).parents[2]
HOLD = Path(__file__).with_name("hold.py")
STUDY = """
name = "cells"

[base]
data = "cells"
data_options = {{num_cases = 10, size = 32}}
model_options = {{filters = 4, levels = 2}}
cores_per_replica = 1
global_batch = 2
steps = 10
callbacks = [{{name = "{hold}:HoldAt", step = 5, file = "{folder}/hold"}}]

[[case]]
backend = "single"

[[case]]
backend = "multiworker"
num_replicas = 2

[[case]]
backend = "horovod"
num_replicas = 2

[slurm]
partition = "low"
time = "60"
signal_seconds = 60
"""


class Sweep:
    """The study in a folder of its own, and the commands of a user in that cluster."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.logs = folder / "logs/cells"
        (folder / "cells.toml").write_text(STUDY.format(hold=HOLD, folder=folder))
        cluster.environment.update(PYTHONPATH=str(ROOT), TFUNET_CACHE=str(folder / "cache"))

    def tfunet(self, *arguments, code=exit_codes.OK):
        done = subprocess.run(
            [sys.executable, "-m", "tfunet", *map(str, arguments)],
            env=self.cluster.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def trials(self, logs=None):
        """Each backend's row of `sweep status`."""
        table = json.loads(self.tfunet("sweep", "status", logs or self.logs, "--json"))
        return {one["trial"].partition("-")[0]: one for one in table["trials"]}

    def job(self, backend):
        """The array's number and place of a trial that is queued or runs."""
        words = self.trials()[backend]["reason"].replace(":", "").split()
        return next(one for one in words if "_" in one)

    def wait_until_held(self, count):
        """Return once so many processes wait at their fifth step."""
        deadline = time.monotonic() + 300
        while len(list(self.folder.glob("held-*"))) < count:
            assert time.monotonic() < deadline, self.tfunet("sweep", "status", self.logs)
            time.sleep(0.2)

    def log(self, backend):
        """What the chief printed, in all attempts of one job."""
        return (self.logs / self.trials()[backend]["trial"] / "log-0.txt").read_text()

    def result(self, backend, logs=None):
        trial = (logs or self.logs) / self.trials(logs)[backend]["trial"]
        return json.loads((trial / "result.json").read_text())


def until(condition):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def release(hold, signalled):
    """Let the held processes go on, once signals have reached so many chiefs since the start."""
    until(lambda: len(list(hold.parent.glob("told-*-0"))) == signalled)
    hold.unlink()


@pytest.mark.slow
def test_a_sweep_survives_what_happens_on_a_cluster(cluster, tmp_path):
    sweep = Sweep(cluster, tmp_path)
    hold = tmp_path / "hold"
    hold.touch()
    shown = sweep.tfunet("sweep", "run", "cells.toml", "--slurm")
    assert "3 of 3 trials to submit" in shown
    assert "2 x 2n2t1c" in shown  # One array for both, on two nodes; another for the single one.

    # Nothing is submitted twice, and a sweep of this machine keeps off.
    assert "0 of 3 trials to submit" in sweep.tfunet("sweep", "run", "cells.toml", "--slurm")
    sweep.tfunet("sweep", "run", "cells.toml", code=exit_codes.BAD_INPUT)

    sweep.wait_until_held(5)
    assert {one["state"] for one in sweep.trials().values()} == {"running"}

    # slurmctld ends: the files still tell, and the jobs go on.
    cluster.stop_controller()
    assert "from the files alone" in sweep.tfunet("sweep", "status", sweep.logs)
    cluster.start_controller()
    until(lambda: {one["state"] for one in sweep.trials().values()} == {"running"})

    # One is killed, one cancelled, and one has to make room for a job of higher priority.
    # The step: a job that is sent SIGKILL is cancelled as a whole.
    cluster.run("scancel", "--signal=KILL", f"{sweep.job('horovod')}.0")
    until(lambda: sweep.trials()["horovod"]["state"] == "failed")
    assert "Killed" in sweep.trials()["horovod"]["reason"]
    sweep.tfunet("sweep", "cancel", sweep.logs, sweep.trials()["single"]["trial"])
    preempted = sweep.job("multiworker")
    urgent = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    cluster.run(*urgent, "--wrap", "sleep 1")
    until(lambda: "COMPLETING" in cluster.run("squeue", "-h", "-o", "%T", "-j", preempted))
    release(hold, 2)
    sweep.tfunet("sweep", "wait", sweep.logs, code=exit_codes.PROCESS_DIED)
    states = {name: one["state"] for name, one in sweep.trials().items()}
    assert states == {"single": "interrupted", "horovod": "failed", "multiworker": "done"}
    assert "Going on from step 6 of 10." in sweep.log("multiworker")

    # What was cancelled and what was killed run again, and nothing else; one comes to its limit.
    hold.touch()
    assert "1 of 3 trials to submit" in sweep.tfunet("sweep", "retry", sweep.logs)
    assert "1 of 3 trials to submit" in sweep.tfunet("sweep", "resume", sweep.logs)
    sweep.wait_until_held(5 + 3)
    cluster.run("scancel", "--signal=USR1", sweep.job("horovod"))
    release(hold, 3)
    sweep.tfunet("sweep", "wait", sweep.logs)
    assert "Going on from step 6 of 10." in sweep.log("horovod")
    report = (sweep.logs / "report/report.md").read_text()
    assert "no numbers" not in report
    assert len(list((sweep.logs / "earlier").iterdir())) == 2

    local = tmp_path / "local"
    sweep.tfunet("sweep", "run", "cells.toml", "--out", local)
    for backend in ("single", "multiworker", "horovod"):
        here, there = sweep.result(backend, local), sweep.result(backend)
        for name in ("weights_hash", "samples_hash", "dice", "iou", "loss", "val_loss"):
            assert here[name] == there[name], (backend, name)
        trial = sweep.logs / sweep.trials()[backend]["trial"]
        with (trial / "steps.csv").open() as file:
            assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 11))
