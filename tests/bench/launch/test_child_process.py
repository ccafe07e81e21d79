"""One process of the supervisor, without the guard that is over all of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import tfunet
from tfunet.process import exec_on_cores

PARENT = """
import os, sys, time
from tfunet.bench.launch.child_process import start
process = start(0, ["sleep", "600"], os.sched_getaffinity(0), os.environ)
print(process.popen.pid, flush=True)
time.sleep(600)
"""


def test_process_dies_with_the_one_that_started_it():
    environment = {**os.environ, "PYTHONPATH": str(Path(tfunet.__file__).parents[1])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True
    )
    process = psutil.Process(int(parent.stdout.readline()))
    # It has become the command: before that, the kernel may not know of it yet.
    deadline = time.monotonic() + 60
    while process.cmdline() != ["sleep", "600"] and time.monotonic() < deadline:
        time.sleep(0.01)
    parent.kill()
    parent.communicate()
    psutil.wait_procs([process], timeout=60)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_process_whose_parent_died_at_once_does_not_start():
    # 1 is not this process: the parent that is named has gone before the kernel was told.
    core = str(min(os.sched_getaffinity(0)))
    arguments = ["-I", "-S", exec_on_cores.__file__, "1", core, "echo", "started"]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""
