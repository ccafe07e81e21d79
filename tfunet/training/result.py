"""What a run writes last: its model, the plans of large-model support, and result.json."""

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tfunet.swap.report.measured import Measured
from tfunet.timing.warm_up import steady_seconds
from tfunet.training import saving
from tfunet.training.afterwards import Measurements
from tfunet.training.attempt import Attempt
from tfunet.training.epochs import Trainer
from tfunet.training.input_bound import share
from tfunet.training.network import Network


def write_result(
    trainer: Trainer, measured: Measurements, proved: dict[str, Any] | None
) -> dict[str, Any]:
    """Write the model, the plans and, last, the result, and return that."""
    attempt = trainer.attempt
    result = {**summarise(trainer, measured), "proved": proved}
    if (predicted := attempt.folder.read_predicted()) is not None:
        result["predicted"] = predicted
    attempt.begin("saving")
    # The chief gets the weights of other stages, for which its device may have no room.
    with nullcontext() if attempt.support is None else attempt.support.making():
        trainer.network.held.complete()
    if attempt.topology.is_chief:
        since = time.perf_counter()
        saving.save(trainer.network.model, attempt.folder, trainer.network.file)
        _write_plans(attempt, measured.step, result["median_step_seconds"])
        trainer.progress.spend("saving", since)
        trainer.logbook.close()
        trainer.logbook.say_end()
        attempt.folder.write_result(result)
    attempt.stop()
    trainer.logbook.end_tracking()
    return result


def _finite(value: float | None) -> float | None:
    """Return a metric, or None where it is not defined."""
    return value if value is not None and math.isfinite(value) else None


def _traffic(network: Network) -> dict[str, Any]:
    """Return what a device that shares samples sends in a step, and what exchanges go through."""
    groups, stages = network.groups, network.stages
    found = {}
    if groups is not None:
        sent = groups.traffic
        found = {"exchanges": sent.exchanges, "exchanged_bytes": sent.num_bytes}
    exchanging = groups or stages
    return found if exchanging is None else {**found, "exchange": exchanging.exchange.way}


def _write_plans(attempt: Attempt, measured: Measured, seconds: float | None) -> None:
    """Write swap.json; `seconds` are those of an optimizer step."""
    support = attempt.support
    if support is None:
        return
    # A plan is for one of the passes that are accumulated.
    seconds = None if seconds is None else seconds / attempt.config.accumulation
    attempt.folder.write_plans(
        [asdict(plan) for plan in support.plans],
        asdict(replace(measured, step_seconds=seconds)),
        evaluation_plans=[asdict(plan) for plan in support.evaluation_plans],
    )


def _dataset_scores(regions: Iterable[str], logs: Mapping[str, float]) -> dict[str, Any]:
    """Return the scores of all validation cases together, by region, and their mean over regions.

    None for a region that is in no mask and in no prediction.
    """
    regions = tuple(regions)
    if not regions:
        return {}
    by_region = {
        f"dataset_{score}": {name: logs.get(f"val_dataset_{score}_{name}") for name in regions}
        for score in ("dice", "iou")
    }
    return {**by_region, "miou": logs.get("val_dataset_iou")}


def summarise(trainer: Trainer, measured: Measurements) -> dict[str, Any]:
    """Return result.json. A check that failed would have ended the run before."""
    config, topology = trainer.attempt.config, trainer.attempt.topology
    data, progress, stages = trainer.data, trainer.progress, trainer.network.stages
    # Steps with another number of replicas say nothing about this one's speed.
    first_step = progress.replicas_from_step[-1][0]
    steady, warm_up = steady_seconds(progress.step_seconds, progress.traced_steps, first=first_step)
    traced = [progress.step_seconds[step - 1] for step in progress.traced_steps]
    median = float(np.median(steady)) if steady else None
    pairs = [turn[:2] for turn in measured.turns]
    energy = progress.energy or {}
    checks = dict.fromkeys(("weights", "scores", *(() if config.synthetic else ("samples",))), True)
    errors = {name: progress.logs[f"val_mae_{name}"] for name in data.task.source.targets}
    return {
        "backend": config.backend,
        "num_replicas": config.num_replicas,
        "split": list(config.split),
        **_traffic(trainer.network),
        "replicas_from_step": progress.replicas_from_step,
        "process_count": topology.process_count,
        "replica_batch": config.replica_samples,
        "global_batch": config.global_samples,
        "parameters": trainer.network.preflight.parameters,
        "steps": progress.step,
        "epochs": -(-progress.step // data.steps_per_epoch),
        "xla": config.xla,
        "precision": config.precision,
        "start_seconds": progress.seconds["start"],
        "first_step_seconds": sum(traced),
        "warm_up_steps": warm_up,
        "median_step_seconds": median,
        "images_per_second": config.global_samples / median if median else None,
        "synthetic_share": share(pairs),
        "synthetic_pairs_seconds": pairs,
        **measured.parts,
        **({} if stages is None else {"pipeline": stages.log.record()}),
        **({} if data.tiles is None else {"tiling": data.tiles.record()}),
        "training_seconds": sum(progress.step_seconds),
        "evaluation_seconds": progress.seconds["evaluation"],
        # Missing in a run that was killed after its only checkpoint.
        "saving_seconds": progress.seconds.get("saving", 0.0),
        # (first step, Unix time) of each attempt, from which elapsed_seconds count.
        "began_unix_seconds": progress.began,
        "elapsed_seconds": measured.elapsed_seconds,
        **{f"energy_{name}": energy.get(name) for name in ("joules", "packages", "gpus")},
        "left_out_cases": data.num_left_out + len(data.replaced()),
        "peak_resident_bytes": [int(row[0]) for row in measured.peaks],
        "peak_device_bytes": [int(row[1]) or None for row in measured.peaks],
        "pipeline_bytes": trainer.steps.pipeline.buffered_bytes,
        "loss": progress.logs["loss"],
        "val_loss": progress.logs["val_loss"],
        "dice": {name: progress.logs[f"val_dice_{name}"] for name in data.task.source.regions},
        "iou": {name: progress.logs[f"val_iou_{name}"] for name in data.task.source.regions},
        **_dataset_scores(data.task.source.regions, progress.logs),
        **({"mae": errors} if errors else {}),
        "metrics": {name: _finite(progress.logs.get(name)) for name in trainer.metric_names},
        **({"scores": modes} if (modes := trainer.validation.score_modes()) else {}),
        "weights_hash": progress.weights_hash,
        "samples_hash": progress.samples_hash,
        "checks": checks,
    }
