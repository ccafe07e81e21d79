"""The time of a step with each sample over two devices, against one device and against the bound.

Runs of `tfunet train` take turns, one core for each device: one device; two devices that share each
sample, on multiworker and on Horovod; and, as the bound, two runs at once that each have half of
each sample to themselves and exchange nothing. Losses are compared before any time counts, also
with four processes. Each backend's processes exchange through shared memory, and in the next run
through the backend. What is exchanged, and how long one exchange takes, stands among the samples.

    python benchmarks/spatial.py [--quick] [--rounds 3] [--case NAME]
"""

import argparse
import csv
import math
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import measure
from runs import BACKENDS, Runs, check_losses, losses, peak, seconds, timed

VOLUMES = {"data": "tumours"}
UNET = {"model": "unet", "model_options": {"filters": 16, "levels": 3, "max_filters": 64}}
# The settings and the patch of each case. The bound has half of the rows.
CASES = {
    "unet3d 64": ({**UNET, **VOLUMES}, [64, 64, 64]),
    "unet3d 96": ({**UNET, **VOLUMES}, [96, 96, 96]),
    "isensee 64": (
        {"model": "isensee", "model_options": {"filters": 8, "depth": 4}, **VOLUMES},
        [64, 64, 64],
    ),
    "cosmoflow 64": (
        {"model": "cosmoflow", "data": "universes", "loss": "MeanSquaredError"},
        [64, 64, 64],
    ),
    "unet2d 512": ({**UNET, "data": "cells"}, [512, 512]),
}
# What the processes of each way exchange through.
WAYS = {
    name: {"backend": backend, "shared_memory": name == backend}
    for backend in BACKENDS
    for name in (backend, f"{backend} alone")
}
ROUNDS = 3
STEPS = 8
# Later steps amplify how the sums of parts are rounded.
COMPARED = 3
SCALING, MEMORY = 0.9, 0.55


def settings(case, patch):
    """Return the configuration of a run of a case whose samples have these voxels."""
    more, _ = CASES[case]
    sizes = {"data_options": {"num_cases": 5, "size": max(patch)}, "patch": list(patch)}
    return timed(STEPS, replica_batch=1, **sizes, **more)


def checked(runs, expected, started, backend):
    """Return the result of a run whose first losses are those of one device, as expected."""
    result = runs.result(started)
    pairs = list(zip(losses(started[1]), expected, strict=False))[:COMPARED]
    check_losses(backend, [ours / theirs for ours, theirs in pairs], [1.0] * len(pairs))
    return result


def compare(runs, case, num_rounds):
    """Return the results of each way, in rounds."""
    _, patch = CASES[case]
    cores = sorted(os.sched_getaffinity(0))[:2]
    whole, half = settings(case, patch), settings(case, [patch[0] // 2, *patch[1:]])
    in_two = [2, *[1] * (len(patch) - 1)]
    rounds = []
    for _ in range(num_rounds):
        started = runs.start(whole, backend="single", core=cores[0])
        results = {"one": runs.result(started), "losses": losses(started[1])}
        for way, keys in WAYS.items():
            started = runs.start(whole, split=in_two, **keys)
            results[way] = checked(runs, results["losses"], started, way)
        halves = [runs.start(half, backend="single", core=core) for core in cores]
        results["bound"] = max(map(runs.result, halves), key=seconds)
        rounds.append(results)
    return rounds


def exchanges(runs, case, expected):
    """Return what each backend exchanges in a step, how long one takes, and check four parts."""
    _, patch = CASES[case]
    facts = {}
    for way, keys in WAYS.items():
        started = runs.start(
            settings(case, patch),
            **keys,
            split=[2, *[1] * (len(patch) - 1)],
            trace=True,
        )
        result = checked(runs, expected, started, way)
        with (started[1] / "spans-0.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["name"] == "halo exchange"]
        taken = [float(row["seconds"]) for row in rows if 2 < int(row["step"]) < STEPS]
        facts[way] = {
            **{name: result[name] for name in ("exchange", "exchanges", "exchanged_bytes")},
            "median_exchange_seconds": statistics.median(taken),
        }
        if way not in BACKENDS:
            continue
        # tfunet itself gives each process a core of its own; there are not enough.
        if shutil.which("mpirun") is None:
            print("Four processes: left out, because they need mpirun.", file=sys.stderr)
            continue
        in_four = [2, 2, *[1] * (len(patch) - 2)]
        whole = {**settings(case, patch), "steps": COMPARED, "evaluate_every": COMPARED}
        del whole["cores_per_replica"]
        launcher = ["mpirun", "--oversubscribe", "-np", "4"]
        started = runs.start(whole, launcher=launcher, split=in_four, **keys)
        checked(runs, expected, started, f"{way}, {math.prod(in_four)} processes")
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, for a look")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    given = parser.parse_args()
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        for case in given.case or list(CASES)[: 1 if given.quick else None]:
            claims += of_case(runs, case, 1 if given.quick else given.rounds)
    measure.show(claims)


def of_case(runs, case, num_rounds):
    """Return the claims of a case."""
    _, patch = CASES[case]
    # What a process of each way takes with hardly a sample is its own, not the sample's.
    tiny = {**settings(case, [32] * len(patch)), "steps": 2, "evaluate_every": 2}
    bare = {"one": peak(runs.result(runs.start(tiny, backend="single")))}
    for backend in BACKENDS:
        started = runs.start(tiny, backend=backend, split=[2, *[1] * (len(patch) - 1)])
        bare[backend] = peak(runs.result(started))
    rounds = compare(runs, case, num_rounds)
    facts = exchanges(runs, case, rounds[0]["losses"])
    claims = [
        measure.verdict(
            f"{case}: step of the bound / step over two devices, {way}",
            [seconds(turn["bound"]) / seconds(turn[way]) for turn in rounds],
            bound=SCALING,
            most=False,
            samples={
                **{one: [seconds(turn[one]) for turn in rounds] for one in ("one", "bound", way)},
                "exchange": facts[way],
            },
            peers=["tensorflow"],
        )
        for way in WAYS
    ]
    claims += [
        measure.verdict(
            f"{case}: memory of a process over that of one device, {backend}",
            [
                (peak(turn[backend]) - bare[backend]) / (peak(turn["one"]) - bare["one"])
                for turn in rounds
            ],
            bound=MEMORY,
            most=True,
            samples={way: [peak(turn[way]) for turn in rounds] for way in ("one", backend)},
            peers=["tensorflow"],
        )
        for backend in BACKENDS
    ]
    return claims


if __name__ == "__main__":
    main()
