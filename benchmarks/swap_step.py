"""Trains one model in several ways side by side, and prints what was predicted and measured.

    python benchmarks/swap_step.py '{"model": "unet3d", "size": 48, "runs": [
        {"way": "keep"}, {"way": "planner", "share": 0.5}]}'

Each run is a model of its own with the same weights, and a way: "keep" (no support), "reference"
(the same with gradients added up in the order of the graph, as with support: for its losses),
"nudged" (that, with each weight moved to the next number of its kind, up or down: what last bits
do to the losses),
"planner" (support in all its ways), "whole" (without splitting), "swap" or "recompute" (with one
way), or a peer: "remat_" and a mode of keras.RematScope, or "grappler_" and a mode of TensorFlow's
own memory optimizer. Support may use "budget_mib", or a "share" of what is needed with everything
kept, at this size or at its "base_size"; or it has no limit. The ways take two steps in turn, in an
order that is drawn anew for each round; the second is timed, as steps follow each other in
training.

The way "tflms" plans by the rule of IBM's TFLMS v2 (tflms.py).

Memory is what ops asked TensorFlow's allocator for, from its profiler. With "capped" the arena is
the budget (TF_CPU_BFC_MEM_LIMIT_IN_MB=N), "fits" says whether the steps went through, and
"finds_room" whether that was foretold.
"""

import contextlib
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `tfunet train` does
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The one allocator of a CPU that tells the profiler what it hands out, as large as the machine.
os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(2**16))

import keras
import numpy as np
import swap_peers as peers
import tensorflow as tf
from tflms import Tflms

from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.machine.device import used_bytes
from tfunet.models.make import make_model
from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.device_memory import join_regions, resident_bytes
from tfunet.timing.xplane import read_allocations

MIB = 2**20
NO_LIMIT_MIB = 2**20
MODELS = {
    "unet3d": ("unet", 3, {"filters": 16, "levels": 3, "normalization": "none"}),
    "unet3d_instance": ("unet", 3, {"filters": 16, "levels": 3, "normalization": "instance"}),
    "isensee": ("isensee", 3, {"filters": 8, "depth": 4}),
    "unet2d": ("unet", 2, {"filters": 16, "levels": 4, "normalization": "none"}),
}
# What a tensor may be replaced by.
ALLOWED = {
    "swap": ("swap",),
    "recompute": ("recompute",),
    "whole": ("swap", "recompute"),
    "planner": ("swap", "recompute", "split"),
}


def make(settings, way, size):
    """Return the compiled model, and one batch on the device.

    `size` is a side of the image, or all of them.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings["precision"])
    name, rank, options = MODELS[settings["model"]]
    sides = [size] * rank if isinstance(size, int) else size
    shape = (*sides, 1)
    model = peers.made(
        way, lambda: make_model(name, image_shape=shape, num_classes=3, options=options)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    image = np.random.default_rng(0).normal(size=(settings["batch"], *shape)).astype("float32")
    return model, (tf.constant(image), tf.constant((image[..., 0] > 0.5).astype("int32")))


def need(settings, size):
    """Return the MiB that a step needs with everything kept, weights included, as predicted."""
    budget_mib = NO_LIMIT_MIB
    # The second time the budget is near, and the scratch of the ops is measured.
    for _ in range(2):
        model, batch = make(settings, "planner", size)
        support = LargeModelSupport(int(budget_mib * MIB), verbose=0)
        with support.on(model):
            model.train_on_batch(*batch)
        budget_mib = (support.plans[-1].unlimited_peak_bytes + resident_bytes(model)) / MIB
    return budget_mib


def nudge(model):
    """Move each weight to the next number of its kind, up or down as drawn."""
    drawn = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = variable.numpy()
        towards = np.where(drawn.random(value.shape) < 0.5, -np.inf, np.inf)
        variable.assign(np.nextafter(value, towards.astype(value.dtype)))


def requested_peak(run):
    """Return the most bytes that ops had asked for at once while `run` ran, beyond its start."""
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=3, python_tracer_level=0, device_tracer_level=0
        )
        with tf.profiler.experimental.Profile(folder, options):
            run()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        return _peak(read_allocations(path))


def _peak(allocations):
    live, total, peak = {}, 0, 0
    for allocation in allocations:
        if allocation.begins:
            live[allocation.address] = allocation.num_bytes
            total += allocation.num_bytes
            peak = max(peak, total)
        else:
            total -= live.pop(allocation.address, 0)
    return peak


def described(plan):
    """Return what a plan foretells."""
    return {
        "swap": plan.count("swap"),
        "recompute": plan.count("recompute"),
        "split": len(plan.split),
        "budget_mib": plan.budget_bytes / MIB,
        "peak_mib": plan.peak_bytes / MIB,
        "floor_mib": plan.floor_bytes / MIB,
        "finds_room": plan.finds_room,
        "step_seconds": plan.step_seconds,
        "unlimited_step_seconds": plan.unlimited_step_seconds,
    }


class Run:
    """One model, trained in one way."""

    def __init__(self, settings, run, needs):
        self.way = run["way"]
        self.model, self.batch = make(settings, self.way, settings["size"])
        self.losses, self.seconds = [], []
        self.train = self.model.train_on_batch
        if self.way in ("reference", "nudged"):
            self.train = in_order_of_graph(self.train)
        if self.way == "nudged":
            nudge(self.model)
        self.support = None
        if self.way in (*ALLOWED, "tflms"):
            budget_mib = run.get("budget_mib", NO_LIMIT_MIB)
            if "share" in run:
                budget_mib = run["share"] * needs[run.get("base_size", settings["size"])]
            ways = ALLOWED.get(self.way)
            self.support = LargeModelSupport(
                "auto" if settings["capped"] else int(budget_mib * MIB),
                margin=settings["margin"],
                verbose=0,
                **({"allowed": ways} if ways else {"strategy": Tflms()}),
            )

    def context(self):
        """Return what the steps run under."""
        return self.support.on(self.model) if self.support else contextlib.nullcontext()

    def step(self):
        with peers.active(self.way):
            self.losses.append(float(self.train(*self.batch)))

    def timed_step(self):
        since = time.perf_counter()
        self.step()
        self.seconds.append(time.perf_counter() - since)

    def found(self):
        """Return what is known after the steps; the first of them traced."""
        weights = b"".join(variable.numpy().tobytes() for variable in self.model.variables)
        plans = self.support.plans if self.support else []
        return {
            "way": self.way,
            "losses": self.losses,
            "first_seconds": self.seconds[0],
            "seconds": self.seconds[1:],
            "step_seconds": statistics.median(self.seconds[1:]),
            "weights": hashlib.sha256(weights).hexdigest()[:16],
            "resident_mib": resident_bytes(self.model) / MIB,
            **({"plan": described(plans[-1])} if plans else {}),
        }


def main(settings):
    defaults = {
        "precision": "float32",
        "batch": 1,
        "threads": 1,
        "rounds": 5,
        "capped": False,
    }
    settings = {**defaults, **settings}
    # Without a cap it is the plan for just this budget that is looked at.
    settings.setdefault("margin", None if settings["capped"] else 0.0)
    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if settings["capped"]:
        join_regions()  # as `tfunet train` does
    sizes = {run.get("base_size", settings["size"]) for run in settings["runs"] if "share" in run}
    needs = {size: need(settings, size) for size in sorted(sizes)}
    drawn = random.Random(0)
    runs = {run.get("name", run["way"]): run for run in settings["runs"]}
    result = {"fits": True, "runs": {}}
    with contextlib.ExitStack() as stack:
        made = {name: Run(settings, run, needs) for name, run in runs.items()}
        for run in made.values():
            stack.enter_context(run.context())
        try:
            for run in made.values():
                run.timed_step()
            for _ in range(settings["rounds"]):
                for run in drawn.sample(list(made.values()), len(made)):
                    run.step()
                    run.timed_step()
            if not settings["capped"]:
                for name, run in made.items():
                    result["runs"][name] = run.found()
                    result["runs"][name]["peak_mib"] = requested_peak(run.step) / MIB
            else:
                result["runs"] = {name: run.found() for name, run in made.items()}
        except tf.errors.ResourceExhaustedError:
            result["fits"] = False
        plans = [built.support.plans[-1] for built in made.values() if built.support]
        result["finds_room"] = [plan.finds_room for plan in plans]
    used = used_bytes()
    if used:
        result["arena_peak_mib"] = used[1] / MIB
    print(json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
