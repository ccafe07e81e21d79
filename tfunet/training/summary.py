"""What result.json holds."""

import resource
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.config.run import RunConfig
from tfunet.machine.device import device_bytes, used_bytes
from tfunet.timing.warm_up import steady_seconds
from tfunet.training.input_bound import share
from tfunet.training.progress import Progress


def peak_bytes(backend: Backend, topology: Topology) -> np.ndarray:
    """Return (processes, 2): peak resident and peak device memory, called by all together."""
    table = np.zeros((topology.process_count, 2))
    # Linux counts ru_maxrss in KiB.
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gpus = tf.config.list_logical_devices("GPU")
    device = sum(tf.config.experimental.get_memory_info(gpu.name)["peak"] for gpu in gpus)
    if not gpus and device_bytes() is not None and (used := used_bytes()) is not None:
        device = used[1]  # Of a CPU whose allocator is capped, to play the device.
    table[topology.process_index] = [resident, device]
    return backend.sum(table)


def energy_facts(energy: Mapping[str, float] | None) -> dict[str, float | None]:
    """Return what result.json tells of `RunEnergy.so_far`."""
    return {f"energy_{name}": (energy or {}).get(name) for name in ("joules", "packages", "gpus")}


def summarise(
    config: RunConfig,
    topology: Topology,
    *,
    parameters: int,
    steps_per_epoch: int,
    progress: Progress,
    regions: Sequence[str],
    left_out_cases: int,
    peaks: np.ndarray,
    bound_pairs: Sequence[tuple[float, ...]],
    parts: Mapping[str, Any],
    pipeline_bytes: int,
    elapsed_seconds: float,
) -> dict[str, Any]:
    """Return result.json. A check that failed would have ended the run before."""
    # Steps that other numbers of replicas made tell nothing of this one's speed.
    own = progress.replicas_from_step[-1][0]
    steady, warm_up = steady_seconds(progress.step_seconds, progress.traced_steps, first=own)
    first = [progress.step_seconds[step - 1] for step in progress.traced_steps]
    median = float(np.median(steady)) if steady else None
    checks = {"weights": True, "scores": True}
    if not config.synthetic:
        checks["samples"] = True
    return {
        "backend": config.backend,
        "num_replicas": topology.num_replicas,
        "replicas_from_step": progress.replicas_from_step,
        "process_count": topology.process_count,
        "replica_batch": config.replica_samples,
        "global_batch": config.global_samples,
        "parameters": parameters,
        "steps": progress.step,
        "epochs": -(-progress.step // steps_per_epoch),
        "xla": config.xla,
        "precision": config.precision,
        "start_seconds": progress.seconds["start"],
        "first_step_seconds": sum(first),
        "warm_up_steps": warm_up,
        "median_step_seconds": median,
        "images_per_second": config.global_samples / median if median else None,
        "synthetic_share": share(bound_pairs),
        "synthetic_pairs_seconds": bound_pairs,
        **parts,
        "training_seconds": sum(progress.step_seconds),
        "evaluation_seconds": progress.seconds["evaluation"],
        # None, of a run that was killed after its only checkpoint.
        "saving_seconds": progress.seconds.get("saving", 0.0),
        # (first step, Unix time) of each attempt, from which elapsed_seconds count.
        "began_unix_seconds": progress.began,
        "elapsed_seconds": elapsed_seconds,
        **energy_facts(progress.energy),
        "left_out_cases": left_out_cases,
        "peak_resident_bytes": [int(row[0]) for row in peaks],
        "peak_device_bytes": [int(row[1]) or None for row in peaks],
        "pipeline_bytes": pipeline_bytes,
        "loss": progress.logs["loss"],
        "val_loss": progress.logs["val_loss"],
        "dice": {region: progress.logs[f"val_dice_{region}"] for region in regions},
        "iou": {region: progress.logs[f"val_iou_{region}"] for region in regions},
        "weights_hash": progress.weights_hash,
        "samples_hash": progress.samples_hash,
        "checks": checks,
    }
