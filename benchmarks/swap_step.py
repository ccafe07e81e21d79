"""Trains a few steps, in an arena capped by its environment, and prints what they took.

TF_CPU_ALLOCATOR_USE_BFC=true TF_CPU_BFC_MEM_LIMIT_IN_MB=400 python benchmarks/swap_step.py \
    '{"model": "unet3d", "size": 48, "way": "planner"}'
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `tfunet train` does

import keras
import numpy as np
import tensorflow as tf

from tfunet.models.make import make_model
from tfunet.swap import LargeModelSupport

MODELS = {
    "unet3d": ("unet", 3, {"filters": 16, "levels": 3, "normalization": "none"}),
    "unet3d_instance": ("unet", 3, {"filters": 16, "levels": 3, "normalization": "instance"}),
    "isensee": ("isensee", 3, {"filters": 8, "depth": 4}),
    "unet2d": ("unet", 2, {"filters": 16, "levels": 4, "normalization": "none"}),
}
# What a step of it may be replaced by.
ALLOWED = {"swap": ("swap",), "recompute": ("recompute",), "planner": ("swap", "recompute")}


class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds, self.losses = [], []
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.seconds.append(now - self.since)
        self.losses.append(float(logs["loss"]))
        self.since = now


def take_arena_at_once(num_bytes):
    """Make one region of the arena, as TensorFlow does with a GPU's memory.

    Otherwise it grows by doubling, and no tensor can lie across two of its regions.
    """
    for share in (1.0, 0.999, 0.99, 0.98, 0.95, 0.9):
        try:
            tf.zeros([int(num_bytes * share)], tf.uint8)
            return
        except tf.errors.ResourceExhaustedError:
            continue


def main(settings):
    threads = settings.get("threads", len(os.sched_getaffinity(0)))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    take_arena_at_once(int(os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"]) * 2**20)
    tf.config.experimental.reset_memory_stats("CPU:0")
    keras.utils.set_random_seed(0)
    name, rank, options = MODELS[settings["model"]]
    size, batch = settings["size"], settings.get("batch", 1)
    model = make_model(name, image_shape=(*[size] * rank, 1), num_classes=3, options=options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=False)
    image = np.random.default_rng(0).normal(size=(batch, *[size] * rank, 1)).astype("float32")
    mask = (image[..., 0] > 0.5).astype("int32")
    data = tf.data.Dataset.from_tensors((image, mask)).repeat()
    clock = Clock()
    support = None
    callbacks: list[keras.callbacks.Callback] = [clock]
    if settings["way"] in ALLOWED:
        support = LargeModelSupport(
            settings.get("budget", "auto"), allowed=ALLOWED[settings["way"]], verbose=0
        )
        callbacks.append(support)
    found = {**settings, "fits": True}
    try:
        model.fit(data, steps_per_epoch=settings.get("steps", 3), verbose=0, callbacks=callbacks)
    except tf.errors.ResourceExhaustedError:
        found["fits"] = False
    found["peak_mib"] = tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20
    # The first step traces.
    found["seconds"], found["losses"] = clock.seconds[1:], clock.losses
    if support is not None and support.plans:
        plan = support.plans[-1]
        found["plan"] = {
            "swap": plan.count("swap"),
            "recompute": plan.count("recompute"),
            "budget_mib": plan.budget_bytes / 2**20,
            "peak_mib": plan.peak_bytes / 2**20,
            "unlimited_mib": plan.unlimited_peak_bytes / 2**20,
            "floor_mib": plan.floor_bytes / 2**20,
            "extra_seconds": plan.extra_seconds,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
