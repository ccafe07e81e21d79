"""Runs of `tfunet train` for the benchmarks that time a step, each in processes of its own."""

import csv
import json
import os
import subprocess
import sys

# The backends that share a sample, or a network, over processes.
BACKENDS = ("multiworker", "horovod")
# A part adds up its own rows, which rounds otherwise than one sum.
TOLERANCE = 1e-5


def timed(steps, **more):
    """Return the configuration of a run whose steps are timed, on samples that stay in memory."""
    return {
        "optimizer": "sgd",
        "steps": steps,
        "evaluate_every": steps,
        "synthetic": True,
        "augmentation": {},
        "cores_per_replica": 1,
        **more,
    }


class Runs:
    """Starts runs of `tfunet train`, and reads their results."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def start(self, values, core=None, launcher=(), **more):
        self.count += 1
        path = self.folder / f"run{self.count}"
        config = self.folder / f"run{self.count}.toml"
        # Scalars and lists of JSON are those of TOML; tables become keys with dots.
        lines = []
        for key, value in {**values, **more}.items():
            table = value.items() if isinstance(value, dict) else ()
            lines += [f"{key}.{name} = {json.dumps(inner)}" for name, inner in table]
            if not isinstance(value, dict):
                lines.append(f"{key} = {json.dumps(value)}")
        config.write_text("\n".join([*lines, ""]))
        command = [*launcher, sys.executable, "-m", "tfunet", "train", "--config", str(config)]
        if core is not None:
            command = ["taskset", "--cpu-list", str(core), *command]
        environment = {
            **os.environ,
            "TFUNET_CACHE": str(self.folder / "cache"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        process = subprocess.Popen(
            [*command, "--out", str(path)], env=environment, stdout=subprocess.DEVNULL
        )
        return process, path

    def result(self, started):
        process, path = started
        if process.wait(timeout=900):
            raise SystemExit(f"The run in {path} ended with {process.returncode}.")
        return json.loads((path / "result.json").read_text())


def losses(path):
    """Return the loss of each step of a run."""
    with (path / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def check_losses(way, ours, theirs):
    """End the benchmark where the losses of a way are not those that it has to have."""
    apart = max(abs(one - two) for one, two in zip(ours, theirs, strict=True))
    if apart > TOLERANCE:
        raise SystemExit(f"{way}: a loss differs by {apart:.1e}; nothing is timed.")


def seconds(result):
    return result["median_step_seconds"]


def peak(result):
    return max(result["peak_resident_bytes"])
