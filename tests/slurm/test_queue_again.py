"""A trial that has itself queued again leaves the others of its array alone."""

import sys
import time

import pytest
from paths import ROOT

pytestmark = pytest.mark.slurm
AGAIN = """
import os, time
from pathlib import Path
from tfunet.bench.launch.slurm_queue import own_job, queue_again

here = Path(os.environ["SLURM_ARRAY_TASK_ID"])
here.touch()
while not Path("0").exists() or not Path("1").exists():
    time.sleep(0.1)
# For one task it is the number of the whole array.
if os.environ["SLURM_JOB_ID"] == os.environ["SLURM_ARRAY_JOB_ID"]:
    queue_again(own_job(os.environ))
time.sleep(600)
"""


def test_one_task_of_an_array_is_queued_again(cluster, tmp_path):
    (tmp_path / "again.py").write_text(AGAIN)
    environment = f"PYTHONPATH={ROOT}"
    submit = ["sbatch", "--parsable", "--array=0-1", "--requeue", f"--chdir={tmp_path}"]
    wrap = f"{environment} exec {sys.executable} {tmp_path}/again.py"
    array = cluster.run(*submit, "--output=%a.txt", "--wrap", wrap).strip()
    try:
        until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        until(lambda: "PENDING" in squeue(cluster, array))
        assert squeue(cluster, array) == ["PENDING", "RUNNING"]
    finally:
        cluster.run("scancel", array)


def until(condition):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def squeue(cluster, array):
    return sorted(cluster.run("squeue", "-h", "--array", "-o", "%T", "-j", array).split())
