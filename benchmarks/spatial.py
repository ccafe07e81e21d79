"""The time of a step with each sample over two devices, against one device and against the bound.

Runs of `tfunet train` take turns, one core for each device: one device; two devices that share each
sample, on multiworker and on Horovod; and, as the bound, two runs at once that each have half of
each sample to themselves and exchange nothing. Losses are compared before any time counts.

    python benchmarks/spatial.py [--quick]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import measure

SIZES = {"unet3d 64": 64, "unet3d 96": 96}
BACKENDS = ("multiworker", "horovod")
ROUNDS = 3
STEPS = 8
# A part adds up its own rows, which rounds otherwise than one sum.
TOLERANCE = 1e-5
SCALING, MEMORY = 0.9, 0.55


def settings(size, rows):
    """Return the configuration of a run whose samples have `rows` x `size` x `size` voxels."""
    return {
        "model": "unet",
        "model_options": {"filters": 16, "levels": 3, "max_filters": 64},
        "data": "tumours",
        "data_options": {"num_cases": 5, "size": size},
        "patch": [rows, size, size],
        "replica_batch": 1,
        "optimizer": "sgd",
        "steps": STEPS,
        "evaluate_every": STEPS,
        "synthetic": True,
        "augmentation": {},
        "cores_per_replica": 1,
    }


class Runs:
    """Starts runs of `tfunet train`, and reads their results."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def start(self, values, core=None, **more):
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
        command = [sys.executable, "-m", "tfunet", "train", "--config", str(config)]
        if core is not None:
            command = ["taskset", "--cpu-list", str(core), *command]
        environment = {**os.environ, "TFUNET_CACHE": str(self.folder / "cache")}
        process = subprocess.Popen(
            [*command, "--out", str(path)], env=environment, stdout=subprocess.DEVNULL
        )
        return process, path

    def result(self, started):
        process, path = started
        if process.wait(timeout=900):
            raise SystemExit(f"The run in {path} ended with {process.returncode}.")
        return json.loads((path / "result.json").read_text())


def compare(runs, size, num_rounds):
    """Return the results of each way, in rounds."""
    rounds = []
    cores = sorted(os.sched_getaffinity(0))[:2]
    for _ in range(num_rounds):
        whole, half = settings(size, size), settings(size, size // 2)
        results = {"one": runs.result(runs.start(whole, backend="single", core=cores[0]))}
        for backend in BACKENDS:
            started = runs.start(whole, backend=backend, split=[2, 1, 1])
            results[backend] = runs.result(started)
            apart = abs(results[backend]["loss"] - results["one"]["loss"])
            if apart > TOLERANCE:
                raise SystemExit(f"{backend}: the loss differs by {apart}; nothing is timed.")
        halves = [runs.start(half, backend="single", core=core) for core in cores]
        results["bound"] = max(map(runs.result, halves), key=seconds)
        rounds.append(results)
    return rounds


def seconds(result):
    return result["median_step_seconds"]


def peak(result):
    return max(result["peak_resident_bytes"])


def main():
    quick = measure.quick_option(__doc__)
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        # What a process of each way takes with hardly a network is its own, not the sample's.
        tiny = {**settings(16, 16), "model_options": {"filters": 1, "levels": 1}}
        bare = {"one": peak(runs.result(runs.start(tiny, backend="single")))}
        for backend in BACKENDS:
            started = runs.start(tiny, backend=backend, split=[2, 1, 1])
            bare[backend] = peak(runs.result(started))
        for name, size in list(SIZES.items())[: 1 if quick else None]:
            rounds = compare(runs, size, 1 if quick else ROUNDS)
            for backend in BACKENDS:
                claims += [
                    measure.verdict(
                        f"{name}: step of the bound / step over two devices, {backend}",
                        [seconds(one["bound"]) / seconds(one[backend]) for one in rounds],
                        bound=SCALING,
                        most=False,
                        samples={
                            way: [seconds(one[way]) for one in rounds]
                            for way in ("one", "bound", backend)
                        },
                        peers=["tensorflow"],
                    ),
                    measure.verdict(
                        f"{name}: memory of a process over that of one device, {backend}",
                        [
                            (peak(one[backend]) - bare[backend]) / (peak(one["one"]) - bare["one"])
                            for one in rounds
                        ],
                        bound=MEMORY,
                        most=True,
                        samples={
                            way: [peak(one[way]) for one in rounds] for way in ("one", backend)
                        },
                        peers=["tensorflow"],
                    ),
                ]
    measure.show(claims)


if __name__ == "__main__":
    main()
