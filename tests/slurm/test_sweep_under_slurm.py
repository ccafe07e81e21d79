"""A sweep under a real SLURM: submitted, killed, cancelled, preempted, resumed; scores as local."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfunet import exit_codes
from tfunet.bench.launch.sweep_status import status
from tfunet.cli import main

pytestmark = [pytest.mark.slurm, pytest.mark.multiprocess, pytest.mark.timeout(2400)]
HOLD = Path(__file__).with_name("hold.py")
STUDY = """
name = "cells"

[base]
data = "cells"
data_options = {{num_cases = 10, size = 32}}
model = "{hold}:build"
cores_per_replica = 1
global_batch = 2
steps = 10
callbacks = [{{name = "{hold}:HoldAt", step = 5, folder = "{folder}"}}]

[[case]]
backend = "single"

[[case]]
backend = "multiworker"
num_replicas = 2

[[case]]
backend = "horovod"
num_replicas = 2

{over_mpi}[slurm]
partition = "low"
time = "60"
signal_seconds = 60
{srun}
"""
# Where there is an MPI, `make env` builds Horovod with it.
OVER_MPI = """[[case]]
backend = "horovod"
num_replicas = 2
backend_options = {controller = "mpi"}

"""
HAS_MPI = shutil.which("mpicxx") is not None
NUM_TRIALS, NUM_PROCESSES = (4, 7) if HAS_MPI else (3, 5)


class Sweep:
    """The study in the folder in which a user types the commands."""

    def __init__(self, cluster, folder, capsys):
        self.cluster, self.folder, self.capsys = cluster, folder, capsys
        self.logs = folder / "logs/cells"
        over_mpi, srun = (OVER_MPI, 'srun = ["--mpi=pmix"]') if HAS_MPI else ("", "")
        self.study = STUDY.format(hold=HOLD, folder=folder, over_mpi=over_mpi, srun=srun)
        (folder / "cells.toml").write_text(self.study)

    def tfunet(self, *arguments, code=exit_codes.OK):
        """Return what a command prints; here rather than in a process, which takes a second."""
        self.capsys.readouterr()
        ended = main(list(map(str, arguments)))
        shown = self.capsys.readouterr()
        assert ended == code, shown.out + shown.err
        return shown.out

    def trials(self, logs=None):
        """The rows of `sweep status` by backend; that of Horovod over MPI is "mpi"."""
        rows = status(logs or self.logs)["trials"]
        names = [row["trial"].split("-") for row in rows]
        return {
            "mpi" if "mpi" in name else name[0]: row for name, row in zip(names, rows, strict=True)
        }

    def states(self):
        return {backend: trial["state"] for backend, trial in self.trials().items()}

    def job(self, backend):
        """The array's number and place of a trial that is queued or runs."""
        words = self.trials()[backend]["reason"].replace(":", "").split()
        return next(word for word in words if "_" in word)

    def wait_until_held(self, count):
        """Return once so many processes wait at their fifth step."""
        self.until(lambda: len(list(self.folder.glob("held-*"))) >= count)

    def release(self, job, signalled=True):
        """Let the processes of a job go on, once a signal has reached its chief."""
        self.until(lambda: (self.folder / f"told-{job}-0").exists() or not signalled)
        (self.folder / f"go-{job}").touch()

    def until(self, condition):
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, self.trials()
            time.sleep(0.2)

    def log(self, backend):
        """What the chief printed, in all attempts of one job."""
        return (self.logs / self.trials()[backend]["trial"] / "log-0.txt").read_text()

    def result(self, backend, logs=None):
        trial = (logs or self.logs) / self.trials(logs)[backend]["trial"]
        return json.loads((trial / "result.json").read_text())


@contextlib.contextmanager
def running_beside(*arguments):
    """Run a command meanwhile; its block ends when it has ended well."""
    command = subprocess.Popen(
        [sys.executable, "-m", "tfunet", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield
        output, _ = command.communicate(timeout=900)
        assert command.returncode == exit_codes.OK, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()


@pytest.mark.slow
def test_a_sweep_survives_what_happens_on_a_cluster(cluster, on_cluster, capsys):
    sweep = Sweep(cluster, on_cluster, capsys)
    shown = sweep.tfunet("sweep", "run", "cells.toml", "--slurm")
    assert f"{NUM_TRIALS} of {NUM_TRIALS} trials to submit" in shown
    # One array for all that run on two nodes; another for the single one.
    assert f"{NUM_TRIALS - 1} x 2n2t1c" in shown

    # Nothing is submitted twice, and a sweep of this machine keeps off.
    assert f"0 of {NUM_TRIALS} trials to submit" in sweep.tfunet(
        "sweep", "run", "cells.toml", "--slurm"
    )
    sweep.tfunet("sweep", "run", "cells.toml", code=exit_codes.BAD_INPUT)

    # The same here, while SLURM makes us wait. On two replicas all backends end with the same bits.
    local = on_cluster / "local"
    study = sweep.study.replace(OVER_MPI, "")
    (on_cluster / "local.toml").write_text(
        re.sub(r'\[\[case\]\]\nbackend = "multi.*?\n\n', "", study, flags=re.DOTALL)
    )
    with running_beside("sweep", "run", "local.toml", "--out", local):
        survive(sweep)
    for backend in sweep.trials():
        same = "single" if backend == "single" else "horovod"
        here, there = sweep.result(same, local), sweep.result(backend)
        for name in ("weights_hash", "samples_hash", "dice", "iou", "loss", "val_loss"):
            assert here[name] == there[name], (backend, name)
        trial = sweep.logs / sweep.trials()[backend]["trial"]
        with (trial / "steps.csv").open() as file:
            assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 11))


def survive(sweep):
    """Do to the sweep's trials what happens to them on a cluster, until all are done."""
    cluster = sweep.cluster
    sweep.wait_until_held(NUM_PROCESSES)
    assert set(sweep.states().values()) == {"running"}

    # slurmctld ends: the files still tell, and the jobs go on.
    cluster.stop_controller()
    assert "from the files alone" in sweep.tfunet("sweep", "status", sweep.logs)
    cluster.start_controller()
    sweep.until(lambda: set(sweep.states().values()) == {"running"})

    # One has nothing happen to it.
    if HAS_MPI:
        sweep.release(sweep.job("mpi"), signalled=False)
        sweep.until(lambda: sweep.states()["mpi"] == "done")

    # One is killed, one cancelled, and one has to make room for a job of higher priority.
    # The step: a job that is sent SIGKILL is cancelled as a whole.
    cluster.run("scancel", "--signal=KILL", f"{sweep.job('horovod')}.0")
    sweep.until(lambda: sweep.states()["horovod"] == "failed")
    assert "Killed" in sweep.trials()["horovod"]["reason"]
    cancelled, preempted = sweep.job("single"), sweep.job("multiworker")
    sweep.tfunet("sweep", "cancel", sweep.logs, sweep.trials()["single"]["trial"])
    sweep.release(cancelled)
    sweep.until(lambda: sweep.states()["single"] == "interrupted")
    urgent = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    cluster.run(*urgent, "--wrap", "sleep 1")
    sweep.until(lambda: "COMPLETING" in cluster.run("squeue", "-h", "-o", "%T", "-j", preempted))
    sweep.release(preempted)
    sweep.until(lambda: "Stopped by a signal" in sweep.log("multiworker"))

    # What was killed and what was cancelled run again, and nothing else; one comes to its limit.
    assert f"1 of {NUM_TRIALS} trials to submit" in sweep.tfunet("sweep", "retry", sweep.logs)
    assert f"1 of {NUM_TRIALS} trials to submit" in sweep.tfunet("sweep", "resume", sweep.logs)
    sweep.wait_until_held(NUM_PROCESSES + 3)
    limited = sweep.job("horovod")
    sweep.release(sweep.job("single"), signalled=False)
    cluster.run("scancel", "--signal=USR1", limited)
    sweep.release(limited)
    sweep.tfunet("sweep", "wait", sweep.logs)
    for backend in ("multiworker", "horovod"):
        assert "Going on from step 6 of 10." in sweep.log(backend)
    report = (sweep.logs / "report/report.md").read_text()
    assert "no numbers" not in report
    assert len(list((sweep.logs / "earlier").iterdir())) == 2
