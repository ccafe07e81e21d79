"""The time of a step with the network in two stages, against one device at the same batch.

Runs of `tfunet train` take turns, one core for each device: one device; two stages, with each
schedule, on multiworker and on Horovod. The losses of all steps are compared before any time
counts. The ratio is the efficiency of a device: the speed-up over one device, by two. Beside it
stands the most that the schedule allows for equal stages: m / (m + 1) with m micro-batches, and
2m / (2m + 1) with two chunks a device. Each way exchanges through shared memory, and in the next
run through its backend.

    python benchmarks/pipeline_parallel.py [--quick] [--rounds 5]
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path

import measure
from runs import BACKENDS, Runs, check_losses, losses, seconds, timed

SCHEDULES = ("gpipe", "1f1b", "v")
ROUNDS = 5
STEPS = 10
MICRO_BATCHES = 8
EFFICIENCY = 0.75


def settings(*, quick):
    """Return the configuration of a run."""
    return timed(
        4 if quick else STEPS,
        model="unet",
        model_options={"filters": 8 if quick else 16, "levels": 3},
        data="cells",
        data_options={"num_cases": 20, "size": 64 if quick else 128},
        replica_batch=MICRO_BATCHES if quick else 2 * MICRO_BATCHES,
    )


def compare(runs, quick):
    """Return the result of each way, in turn."""
    values, results = settings(quick=quick), {}
    started = runs.start(values, backend="single")
    results["one"] = runs.result(started)
    expected = losses(started[1])
    for backend, schedule in product(BACKENDS, SCHEDULES):
        stages = {"stages": 2, "micro_batches": MICRO_BATCHES, "schedule": schedule}
        for way in (backend, f"{backend} alone"):
            started = runs.start(values, backend=backend, shared_memory=way == backend, **stages)
            results[way, schedule] = runs.result(started)
            check_losses(f"{way}, {schedule}", losses(started[1]), expected)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and once, for a look")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    quick = given.quick
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        rounds = [compare(runs, quick) for _ in range(1 if quick else given.rounds)]
    most = {
        schedule: 1 - 1 / (1 + MICRO_BATCHES * (2 if schedule == "v" else 1))
        for schedule in SCHEDULES
    }
    claims = [
        measure.verdict(
            f"efficiency of a device in two stages, {backend}, {schedule} "
            f"(at most {most[schedule]:.2f})",
            [seconds(turn["one"]) / seconds(turn[backend, schedule]) / 2 for turn in rounds],
            bound=EFFICIENCY,
            most=False,
            samples={
                "one": [seconds(turn["one"]) for turn in rounds],
                "two stages": [seconds(turn[backend, schedule]) for turn in rounds],
                "pipeline": [turn[backend, schedule]["pipeline"] for turn in rounds],
            },
            peers=["tensorflow"],
        )
        for backend, schedule in product(BACKENDS, SCHEDULES)
    ]
    claims += [
        measure.verdict(
            f"step through shared memory over that through {backend}, {schedule}",
            [
                seconds(turn[backend, schedule]) / seconds(turn[f"{backend} alone", schedule])
                for turn in rounds
            ],
            bound=1.0,
            most=True,
            samples={
                way: [seconds(turn[way, schedule]) for turn in rounds]
                for way in (backend, f"{backend} alone")
            },
            peers=["tensorflow"],
        )
        for backend, schedule in product(BACKENDS, SCHEDULES)
    ]
    measure.show(claims)


if __name__ == "__main__":
    main()
