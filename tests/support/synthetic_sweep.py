"""Writes a sweep's folder with made-up numbers whose truth the tests know. Nothing is trained."""

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tfunet.bench.analysis.sweep_summary import Summary, summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.plan_text import plan_json
from tfunet.bench.study.study_file import Study, study_from_dict
from tfunet.bench.study.toml_writer import study_toml
from tfunet.bench.study.trial_plan import Trial, plan_trials
from tfunet.files.atomic import write_atomic
from tfunet.learning.dataset_scores import RegionScores, mean_of, region_scores
from tfunet.record import CASE_COLUMNS, RunFolder
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import Measured

MIB = 2**20
EFFICIENCY = {"single": 1.0, "mirrored": 0.88, "multiworker": 0.82, "horovod": 0.93}
ENVIRONMENT = {
    "host": "made-up",
    "system": "Linux 6.1.0 x86_64",
    "python": "3.11.2",
    "packages": {"tfunet": "0.1.0", "tensorflow": "2.16.2", "keras": "3.15.1", "horovod": "0.28.1"},
    "cpu": "An Imagined CPU @ 2.50GHz",
    "machine_cores": 4,
    "memory_bytes": 16 * 2**30,
    "gpus": [],
    "git": {"commit": "0123456789abcdef", "modified": False},
    "launcher": "local",
    "switches": {"TF_ENABLE_ONEDNN_OPTS": "1"},
    "slurm": {},
}
STUDY: dict[str, Any] = {
    "name": "synthetic",
    "repeats": 3,
    "base": {"replica_batch": 4, "cores_per_replica": 1, "model_options": {"filters": 8}},
    "grid": {
        "backend": ["single", "mirrored", "multiworker", "horovod"],
        "num_replicas": [1, 2, 4],
    },
    "skip": [
        {
            "when": {"backend": ["mirrored", "multiworker", "horovod"], "num_replicas": 1},
            "reason": "one replica is what single is for",
        }
    ],
}


def make_study(**changes: Any) -> Study:
    """Return the study of four backends at up to four replicas, or a changed one."""
    return study_from_dict({**STUDY, **changes})


def write_sweep(
    folder: Path,
    study: Study | None = None,
    *,
    noise: float = 0.02,
    regions: tuple[str, ...] = ("cell",),
    speed: Mapping[str, float] = EFFICIENCY,
    write: Callable[[Trial], bool] = lambda trial: True,
) -> list[Trial]:
    """Write plan and one finished record for each trial that `write` names; returns all trials.

    Images per second are 10 for each device, times `speed` of the backend for more than one,
    times what all trials of a repeat share, times (1 + noise * a normal number).
    """
    planned = plan_trials(study or make_study(), num_cores=64)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "study.toml", study_toml(planned.study))
    write_atomic(folder / "plan.json", json.dumps(plan_json(planned)))
    measurements = [
        {"when": when, "median_seconds": 0.01, "spread": 0.03, "cores": 4, "unix_seconds": 0.0}
        for when in ("before", "after")
    ]
    write_atomic(folder / "noise.json", json.dumps({"measurements": measurements}))
    for trial in filter(write, planned.trials):
        write_trial(folder, trial, noise=noise, regions=regions, speed=speed)
    return list(planned.trials)


def drawn(trial: Trial) -> random.Random:
    """Return random numbers of a trial's own.

    Not of the settings' hash, which ends its name: a new setting would be another experiment.
    """
    return random.Random(trial.id.rsplit("-", 1)[0])


# Made-up records may get lost in a power cut, and a sync for each of thousands takes minutes.
@patch("os.fsync", lambda descriptor: None)
def write_trial(
    folder: Path,
    trial: Trial,
    *,
    noise: float = 0.02,
    regions: tuple[str, ...] = ("cell",),
    speed: Mapping[str, float] = EFFICIENCY,
    shared: float = 0.1,
    **changes: Any,
) -> None:
    """Write one finished record; `changes` go into result.json.

    `shared` is the standard deviation of what all trials of a repeat share.
    """
    config = trial.config
    dice = drawn(trial)
    block = 1 + shared * random.Random(trial.repeat).gauss(0, 1)
    scale = speed.get(config.backend, 1.0) if config.num_devices > 1 else 1.0
    rate = 10.0 * config.num_devices * scale * block * (1 + noise * dice.gauss(0, 1))
    seconds = (config.global_batch or 1) / rate
    steps = config.steps or 60 // config.num_replicas
    run = RunFolder(folder / trial.id)
    run.create()
    run.write_config(config)
    run.write_env({**ENVIRONMENT, "cores": list(range(config.num_replicas))})
    with run.steps_table() as table:
        for step in range(1, steps + 1):
            row = {
                "step": step,
                "seconds": 4.0 if step == 1 else seconds * (1 + 0.05 * abs(dice.gauss(0, 1))),
                "loss": 0.2 + 1.1 * math.exp(-step / 12) + 0.04 * dice.gauss(0, 1),
            }
            table.append({key: row.get(key, 0) for key in table.columns})
    scores, of_dataset = _write_cases(run, regions, dice)
    _write_epochs(run, steps, seconds, {region: values[0] for region, values in scores.items()})
    count = 1 if config.backend in ("single", "mirrored") else config.num_replicas
    result = {
        "backend": config.backend,
        "num_replicas": config.num_replicas,
        "process_count": count,
        "replica_batch": config.replica_batch,
        "global_batch": config.global_batch,
        "parameters": 121_777,
        "steps": steps,
        "epochs": config.epochs,
        "start_seconds": 3.0 + 0.4 * count,
        "first_step_seconds": 4.0,
        "warm_up_steps": 0,
        "median_step_seconds": seconds,
        "images_per_second": rate,
        "training_seconds": 4.0 + seconds * steps,
        "evaluation_seconds": 2.5 / config.num_replicas,
        "saving_seconds": 0.3,
        "elapsed_seconds": 10.0 + seconds * steps,
        "peak_resident_bytes": [900 * 2**20 + dice.randrange(2**24) for _ in range(count)],
        "peak_device_bytes": [None] * count,
        "loss": 0.3,
        "val_loss": 0.35,
        "dice": {region: values[0] for region, values in scores.items()},
        "iou": {region: values[1] for region, values in scores.items()},
        **{
            f"dataset_{score}": {
                region: getattr(its, f"dataset_{score}") for region, its in of_dataset.items()
            }
            for score in ("dice", "iou")
        },
        "miou": mean_of(of_dataset, "dataset_iou") if regions else None,
        "weights_hash": "ab" * 4,
        "samples_hash": f"{trial.repeat}-{config.global_batch}",
        "checks": {"samples": True, "weights": True, "scores": True},
    }
    run.write_result({**result, **changes})


def write_failed(folder: Path, trial: Trial, reason: str) -> None:
    """Write the record of a run that ended with an error."""
    run = RunFolder(folder / trial.id)
    run.create()
    run.write_config(trial.config)
    run.write_failure(reason, 3, 0)


def write_seen(folder: Path, trial: Trial, patch: tuple[int, ...]) -> None:
    """Write what a run saw of its data, made-up tumours."""
    RunFolder(folder / trial.id).write_data({"name": "tumours", "patch": patch})


def _write_epochs(run: RunFolder, steps: int, seconds: float, dice: Mapping[str, float]) -> None:
    with run.epochs_table(dice) as table:
        for epoch in (1, 2, 3):
            row: dict[str, Any] = dict.fromkeys(table.columns, 0.0)
            row |= {f"dice_{region}": epoch / 3 * value for region, value in dice.items()}
            row |= {"epoch": epoch, "steps": steps * epoch // 3}
            table.append({**row, "training_seconds": seconds * steps / 3})


def _write_cases(
    run: RunFolder, regions: tuple[str, ...], dice: random.Random
) -> tuple[dict[str, tuple[float, float]], dict[str, RegionScores]]:
    rows = []
    scores = {}
    for index, region in enumerate(regions):
        values = []
        for case in range(12):
            truth = 1000
            hit = min(truth, max(0, int(truth * (0.88 - 0.06 * index + 0.05 * dice.gauss(0, 1)))))
            counts = (hit, int(80 * dice.random()), truth - hit)
            rows.append(
                dict(zip(CASE_COLUMNS, (3, f"case{case:02d}", region, *counts), strict=True))
            )
            top = counts[0]
            values.append((2 * top / (2 * top + counts[1] + counts[2]), top / sum(counts)))
        scores[region] = (
            sum(first for first, _ in values) / len(values),
            sum(second for _, second in values) / len(values),
        )
    run.write_cases(rows)
    return scores, region_scores(rows)


def write_swap_sweep(folder: Path, swaps: tuple[str, ...] = ("none", "24MiB")) -> list[Trial]:
    """Write a sweep with and without large-model support, which takes a fifth of the speed.

    Plans save 30 of 50 MiB, with one tensor swapped and one computed again; single counts its
    device memory and has measured the memory of a step, horovod neither.
    """
    cells = [("single", 1), ("horovod", 2)]
    cases = [
        {"backend": backend, "num_replicas": count, "swap": swap}
        for swap in swaps
        for backend, count in cells
    ]
    study = make_study(grid={}, case=cases, skip=[])
    trials = write_sweep(folder, study, write=lambda trial: False)
    for trial in trials:
        config = trial.config
        rate = 10.0 * config.num_replicas * (1 if config.swap is None else 0.8)
        used = 200 * MIB if config.swap is None else 160 * MIB
        write_trial(
            folder,
            trial,
            images_per_second=rate * (1 + 0.1 * trial.repeat),
            peak_resident_bytes=[900 * MIB + (0 if config.swap is None else 50 * MIB)],
            peak_device_bytes=[used - MIB, used] if config.backend == "single" else [None],
        )
        if config.swap is not None:
            # A process with two replicas has the second one's plan, and a smaller one before it.
            scope = "replica_1/" if config.num_replicas > 1 else ""
            plans = [made_up_plan(scope=scope, scale=1), made_up_plan(scope=scope, scale=2)]
            measured = Measured(why_not="made up")
            if config.backend == "single":
                measured = Measured(peak_bytes=21 * MIB, step_seconds=0.6)
            run = RunFolder(folder / trial.id)
            run.write_plans([asdict(plan) for plan in plans], asdict(measured))
    return trials


def made_up_plan(*, scope: str = "", scale: int = 2) -> Plan:
    """Return a plan that saves 15 MiB times `scale`."""
    large, small = f"{scope}unet/large:0", f"{scope}unet/small:0"
    return Plan(
        decisions={large: "swap", small: "recompute"} if scale == 2 else {large: "swap"},
        tensor_bytes={large: 20 * MIB, small: 10 * MIB},
        budget_bytes=20 * MIB,
        peak_bytes=10 * scale * MIB,
        unlimited_peak_bytes=25 * scale * MIB,
        host_bytes=20 * MIB,
        out_bytes=20 * MIB,
        in_bytes=25 * MIB,
        step_seconds=0.5,
        copy_seconds=0.05,
        exposed_seconds=0.02,
        unlimited_step_seconds=0.45,
        curve=((0.0, 0), (0.1, 10 * scale * MIB), (0.5, 0)),
        unlimited_curve=((0.0, 0), (0.1, 25 * scale * MIB), (0.45, 0)),
    )


def summary_of(folder: Path, **study: Any) -> tuple[Summary, list[Any]]:
    """Write the sweep of a study, and return its summary and its trials."""
    options = {key: study.pop(key) for key in ("noise", "speed") if key in study}
    trials = write_sweep(folder, make_study(**study), **options)
    return summarise(read_sweep(folder)), trials
