"""What two stages bring, against torch.distributed.pipelining.

One U-Net, the same batch and micro-batches; a core for each device. Runs take turns: one device,
and two stages with each schedule, in torch over gloo and in tfunet with each of its backends.
Compared are efficiencies: half of the time of one device over that of two stages, of the same
program. Each schedule of tfunet is compared with the same one of torch; `v`, which torch has only
with weights' gradients delayed, with the faster of torch's. torch does not balance stages: its
blocks are timed, and cut where the longer stage is shortest. Losses in two stages must be those on
one device, before any time counts.

    python benchmarks/pipeline_peers.py [--quick]

It needs tfunet and torch in one environment, as in requirements-pipeline.txt.
"""

import os
import tempfile
from itertools import product
from pathlib import Path

import measure
from peers import on_torch
from pipeline_parallel import SCHEDULES
from pipeline_sizes import BATCH, FILTERS, LEVELS, MICRO_BATCHES, SIZE, WARM_UP
from runs import BACKENDS, Runs, check_losses, losses, seconds, timed

ROUNDS, STEPS = 5, 8
THEIRS = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}


def settings():
    return timed(
        STEPS + WARM_UP,
        model="unet",
        model_options={"filters": FILTERS, "levels": LEVELS},
        data="cells",
        data_options={"num_cases": 20, "size": SIZE},
        replica_batch=BATCH,
        loss="crossentropy",
    )


def torch_run(processes, cores, schedule="none", cut=0):
    """Return what the last process prints."""
    after = [schedule, cut, STEPS + WARM_UP]
    return on_torch("torch_pipeline_worker.py", [], processes, after, cores)[-1]


def best_cut(taken):
    """Return the number of blocks of the first of two stages, whose longer one is shortest."""
    return min(range(1, len(taken)), key=lambda cut: max(sum(taken[:cut]), sum(taken[cut:])))


def compare(runs, cores):
    """Return the seconds of a step of each way."""
    row = {}
    one = torch_run(1, cores)
    row["torch 1"] = one["seconds"]
    for schedule, theirs in THEIRS.items():
        two = torch_run(2, cores, theirs, best_cut(one["blocks"]))
        check_losses(f"torch {schedule}", two["losses"], one["losses"])
        row[f"torch {schedule}"] = two["seconds"]
    row["torch v"] = min(row[f"torch {schedule}"] for schedule in THEIRS)
    started = runs.start(settings(), backend="single", core=cores[0])
    row["tfunet 1"] = seconds(runs.result(started))
    expected = losses(started[1])
    for backend, schedule in product(BACKENDS, SCHEDULES):
        stages = {"stages": 2, "micro_batches": MICRO_BATCHES, "schedule": schedule}
        started = runs.start(settings(), backend=backend, **stages)
        row[f"{backend} {schedule}"] = seconds(runs.result(started))
        check_losses(f"{backend} {schedule}", losses(started[1]), expected)
    return row


def main():
    quick = measure.quick_option(__doc__)
    cores = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        rounds = [compare(runs, cores) for _ in range(1 if quick else ROUNDS)]
    claims = [
        measure.verdict(
            f"efficiency of a device in two stages, {backend}, {schedule}, that of torch as 1",
            [
                (row["tfunet 1"] / row[f"{backend} {schedule}"])
                / (row["torch 1"] / row[f"torch {schedule}"])
                for row in rounds
            ],
            bound=1.0,
            most=False,
            samples={"seconds": rounds},
            peers=["tensorflow", "torch"],
        )
        for backend, schedule in product(BACKENDS, SCHEDULES)
    ]
    measure.show(claims)


if __name__ == "__main__":
    main()
