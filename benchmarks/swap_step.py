"""Trains a few steps under large-model support, and prints what was predicted and measured.

    python benchmarks/swap_step.py '{"model": "unet3d", "size": 48, "budget_mib": 100}'

Without "budget_mib", and with "way" = "keep", nothing is swapped; "remat" is keras.RematScope in
its mode "full". Memory is what ops asked TensorFlow's allocator for, from its profiler; with
TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB=N the allocator has no more than that.
"""

import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `tfunet train` does
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from tfunet.models.make import make_model
from tfunet.swap import LargeModelSupport
from tfunet.swap.callback import resident_bytes

MIB = 2**20
MODELS = {
    "unet3d": ("unet", 3, {"filters": 16, "levels": 3, "normalization": "none"}),
    "unet3d_instance": ("unet", 3, {"filters": 16, "levels": 3, "normalization": "instance"}),
    "isensee": ("isensee", 3, {"filters": 8, "depth": 4}),
    "unet2d": ("unet", 2, {"filters": 16, "levels": 4, "normalization": "none"}),
}
# What a tensor may be replaced by.
ALLOWED = {"swap": ("swap",), "recompute": ("recompute",), "planner": ("swap", "recompute")}


def make(settings):
    """Return the compiled model and one batch."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings.get("precision", "float32"))
    name, rank, options = MODELS[settings["model"]]
    size, batch = settings["size"], settings.get("batch", 1)
    scope = keras.RematScope("full") if settings["way"] == "remat" else contextlib.nullcontext()
    with scope:
        model = make_model(name, image_shape=(*[size] * rank, 1), num_classes=3, options=options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=False)
    image = np.random.default_rng(0).normal(size=(batch, *[size] * rank, 1)).astype("float32")
    mask = (image[..., 0] > 0.5).astype("int32")
    return model, tf.constant(image), tf.constant(mask)


def requested_peak(run):
    """Return the most bytes that ops had asked for at once while `run` ran, beyond its start."""
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=3, python_tracer_level=0, device_tracer_level=0
        )
        with tf.profiler.experimental.Profile(folder, options):
            run()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        return _peak(path.read_bytes())


def _peak(content):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(content)
    events = []
    for plane in space.planes:
        stats = {key: one.name for key, one in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    when = line.timestamp_ns * 1000 + event.offset_ps
                    values = {stats[one.metadata_id]: _value(one) for one in event.stats}
                    events.append((when, name == "MemoryAllocation", values))
    live, total, peak = {}, 0, 0
    for _, begins, values in sorted(events, key=lambda one: one[0]):
        if begins:
            live[values["addr"]] = int(values.get("requested_bytes", 0))
            total += live[values["addr"]]
            peak = max(peak, total)
        else:
            total -= live.pop(values["addr"], 0)
    return peak


def _value(stat):
    return stat.int64_value or stat.uint64_value or 0


def main(settings):
    settings = {"way": "planner", "threads": 1, "steps": 6, **settings}
    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model, image, mask = make(settings)
    found = {**settings, "fits": True, "losses": [], "seconds": []}
    support = None
    if settings["way"] in ALLOWED:
        support = LargeModelSupport(
            int(settings["budget_mib"] * MIB),
            allowed=ALLOWED[settings["way"]],
            margin=0.0,
            verbose=0,
        )
    with support.on(model) if support else contextlib.nullcontext():
        try:
            for _ in range(settings["steps"] + 1):
                since = time.perf_counter()
                found["losses"].append(float(model.train_on_batch(image, mask)))
                found["seconds"].append(time.perf_counter() - since)
            if settings.get("profile", True):
                peak = requested_peak(lambda: model.train_on_batch(image, mask))
                found["peak_mib"] = peak / MIB
        except tf.errors.ResourceExhaustedError:
            found["fits"] = False
    # The first step traces.
    found["first_seconds"], *found["seconds"] = found["seconds"] or [None]
    if found["seconds"]:
        found["step_seconds"] = statistics.median(found["seconds"])
    found["resident_mib"] = resident_bytes(model) / MIB
    weights = b"".join(one.numpy().tobytes() for one in model.variables)
    found["weights"] = hashlib.sha256(weights).hexdigest()[:16]
    if support is not None and support.plans:
        plan = support.plans[-1]
        found["plan"] = {
            "swap": plan.count("swap"),
            "recompute": plan.count("recompute"),
            "budget_mib": plan.budget_bytes / MIB,
            "peak_mib": plan.peak_bytes / MIB,
            "unlimited_mib": plan.unlimited_peak_bytes / MIB,
            "floor_mib": plan.floor_bytes / MIB,
            "step_seconds": plan.step_seconds,
            "unlimited_step_seconds": plan.unlimited_step_seconds,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
