"""Small programs under the supervisor, in the place of the worker."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tfunet.bench.launch.launch_run import launch
from tfunet.bench.launch.supervisor import RunOutcome
from tfunet.config.run import RunConfig

MARK = "TFUNET_TEST_MARK"
# Far more than it takes on a loaded machine, far less than the 600 s that BUSY would go on.
MOST_SECONDS = 120
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
place = json.loads(os.environ["TFUNET_LAUNCH"])
index = place["process_index"]
"""
# Each has a child of its own, and says when both run.
BUSY = """
subprocess.Popen(["sleep", "600"])
open(f"ready-{index}", "w").close()
while True:
    time.sleep(600)
"""
# Notes what it is told, and goes on.
STUBBORN = (
    "told = lambda *_: open(f'told-{index}', 'w').close()\n"
    "for number in (15, 2, 1): signal.signal(number, told)\n" + BUSY
)
SUPERVISOR = """
import sys
from pathlib import Path
from tfunet.bench.launch.launch_run import launch
from tfunet.config import RunConfig
command = [sys.executable, "-c", sys.argv[1]]
config = RunConfig(backend="horovod", num_replicas=2)
outcome = launch(config, Path("run"), command=command, grace_seconds=float(sys.argv[2]))
sys.exit(outcome.exit_code)
"""


def marked(mark: str) -> list[psutil.Process]:
    collected = []
    for process in psutil.process_iter():
        try:
            mine = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                collected.append(process)
        except psutil.Error:
            continue
    return collected


def until(condition):
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def run(program: str, num_replicas: int = 2, folder: str = "run", **options: object) -> RunOutcome:
    config = RunConfig(backend="horovod", num_replicas=num_replicas)
    command = [sys.executable, "-c", PRELUDE + program]
    return launch(config, Path(folder), command=command, **options)


def supervisor(program: str, grace_seconds: float = 2.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, PRELUDE + program, str(grace_seconds)],
        stderr=subprocess.PIPE,
        text=True,
    )


def all_ready() -> bool:
    return Path("ready-0").exists() and Path("ready-1").exists()


def ready(program, **options):
    """Start a run with a supervisor of its own, and return when all its processes are there."""
    process = supervisor(program, **options)
    until(all_ready)
    return process


def ended(process, number):
    """Signal a supervisor, wait for its end, and return what it said."""
    process.send_signal(number)
    return process.communicate(timeout=MOST_SECONDS)[1]
