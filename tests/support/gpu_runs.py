"""Starts runs on a GPU, as a user would, and tells what they measured.

TFUNET_REHEARSE=1 has a CPU play the GPU, to try the checks themselves.
"""

import csv
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from paths import ROOT
from small_run import SMALL_RUN

IS_REHEARSED = bool(os.environ.get("TFUNET_REHEARSE"))
# The first GPU, unless another was named; tests/conftest.py hides all.
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES") or "0"
SECONDS = 500
CAP = "cpu_memory" if IS_REHEARSED else "gpu_memory"
BASE = SMALL_RUN
VOLUMES = {
    "data": "tumours",
    "data_options": {"num_cases": 12, "size": 24},
    "global_batch": 2,
}


def take_cores():
    """Take this process's share of the cores, for all that it starts.

    Runs that begin beside each other would all take the first ones.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    index = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    cores = sorted(os.sched_getaffinity(0))
    share = max(len(cores) // count, min(2, len(cores)))
    first = index * share % len(cores)
    os.sched_setaffinity(0, (cores + cores)[first : first + share])


class Run:
    """A command that has ended, and the folder of its run."""

    def __init__(self, folder, done):
        self.folder, self.exit_code, self.output = folder, done[0], done[1]

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    @property
    def failure(self):
        return json.loads((self.folder / "failure.json").read_text())["reason"]

    @property
    def weights(self):
        with np.load(self.folder / "checkpoint.npz") as file:
            names = sorted(name for name in file.files if name.startswith("variable_"))
            return [file[name] for name in names]

    def column(self, table, name):
        with (self.folder / table).open(newline="") as file:
            return [row[name] for row in csv.DictReader(file)]

    @property
    def losses(self):
        return np.array([float(loss) for loss in self.column("steps.csv", "loss")])


def environment(on="gpu", **more):
    """Return the variables of a process on the GPU, or on the CPU."""
    return {
        **os.environ,
        # Products of float32 with all their bits, as on a CPU, where the default of a GPU rounds
        # factors to 10 bits (TF32).
        "NVIDIA_TF32_OVERRIDE": "0",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}",
        **more,
        "CUDA_VISIBLE_DEVICES": VISIBLE if on == "gpu" and not IS_REHEARSED else "",
    }


def call(arguments, **variables):
    """Run a Python program to its end; return its exit code and all that it printed."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{arguments} hangs:\n{output}") from None
    return process.returncode, output


def tfunet(*arguments, **variables):
    """Run a command of tfunet; return what it printed."""
    code, output = call(["-m", "tfunet", *arguments], **variables)
    assert code == 0, output
    return output


def attempt(folder, *, on="gpu", variables=None, **settings):
    """Run `tfunet train` to its end, however it ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = folder.parent / f"{folder.name}.toml"
    write(config, {**BASE, **settings})
    more = {"TFUNET_CACHE": str(folder.parent / "cache"), **(variables or {})}
    done = call(["-m", "tfunet", "train", config, "--out", folder], on=on, **more)
    return Run(folder, done)


def write(file, settings):
    """Write a configuration."""
    file.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in settings.items()))


def train(folder, *, on="gpu", **settings):
    """Run `tfunet train`, which must succeed, on the device that was meant."""
    run = attempt(folder, on=on, **settings)
    assert run.exit_code == 0, run.output
    if not IS_REHEARSED:
        assert bool(run.result["peak_device_bytes"][0]) == (on == "gpu"), "another device"
    return run


def shared(folder, name, **settings):
    """Return a run that several tests, in several processes, read: the first one trains it."""
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / name / "result.json").exists():
            return Run(folder / name, (0, ""))
        return train(folder / name, **settings)


def apart(one, other):
    """Return the largest difference between the weights of two runs, and between their losses."""
    pairs = zip(one.weights, other.weights, strict=True)
    weights = max(float(np.abs(a.astype("f8") - b).max()) for a, b in pairs)
    return weights, float(np.abs(one.losses - other.losses).max())


def report(what, **numbers):
    """Print what was measured, and add it to the file that TFUNET_GPU_REPORT names."""
    line = json.dumps({"what": what, **numbers})
    print(line)
    if path := os.environ.get("TFUNET_GPU_REPORT"):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


def _end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
