"""What one GPU does: the largest volume with and without swapping, its cost, and the speed of the
loop.

Each job is a process of its own with a time limit, and is written to the output at once: an error
or a hang loses nothing else. What fits without swapping is tried beside each other on the GPU;
what is timed runs alone.

    python benchmarks/gpu.py [PART ...] [--out gpu.json] [--memory 16GiB] [--seconds 600] [--tiny]

The parts, in the order in which they are named: `fit` finds the largest cube that fits, and times
it and larger ones that are swapped; `loop` times the loop beside Keras's `fit`; `ways` times a cube
only swapped, and only recomputed. --tiny has the CPU play the GPU, to try the script.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 2**20
# IBM's case: a 3D U-Net of Isensee 2017, one sample; 144 cubed in 16 GB, with swapping 192 cubed.
MODEL = {"name": "isensee", "options": {"filters": 16, "depth": 5}, "channels": 4}
SIDES = {"keep": [160, 176, 192, 208], "planner": [224, 256, 288]}
TINY_MODEL = {
    "name": "isensee",
    "options": {"filters": 4, "depth": 3, "segmentation_levels": 2},
    "channels": 1,
}
TINY_SIDES = {"keep": [16, 32], "planner": [16, 32]}
ALLOWED = {
    "planner": ("swap", "recompute", "split"),
    "swap": ("swap",),
    "recompute": ("recompute",),
}
# Together they take the memory of an 80 GB GPU.
AT_ONCE, FULL_MIB = 4, 76 * 2**10
# A step is planned within this, its ops timed before.
PLANNING_SECONDS = 220
STEPS = 6
PARTS = ("fit", "loop", "ways")
LOOPS = {
    "2D": {
        "data": "cells",
        "data_options": {"num_cases": 44, "size": 512},
        "replica_batch": 8,
    },
    "3D": {
        "data": "tumours",
        "data_options": {"num_cases": 20, "size": 96},
        "replica_batch": 2,
    },
}
TINY_LOOPS = {
    name: {
        **LOOPS[name],
        "data_options": {"num_cases": 12, "size": size},
        "replica_batch": 2,
        "model_options": {"filters": 4, "levels": 1},
    }
    for name, size in (("2D", 32), ("3D", 16))
}
KINDS = [
    ("2D", {}),
    ("2D", {"precision": "mixed_bfloat16"}),
    ("3D", {}),
    ("2D", {"precision": "mixed_bfloat16", "xla": True}),
    ("3D", {"precision": "mixed_bfloat16"}),
    ("2D", {"precision": "mixed_float16"}),
]


# What runs in a process of its own.


def step(job):
    """Train a few steps on a cube in one way, and return what they took."""
    if job["tiny"]:
        os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
        os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(job["memory_mib"])
    else:
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"
    import contextlib

    import keras
    import numpy as np
    import tensorflow as tf

    from tfunet.machine.device import device_bytes, forget_peak, used_bytes
    from tfunet.models.make import make_model
    from tfunet.swap import LargeModelSupport
    from tfunet.swap.arena.device_memory import join_regions, resident_bytes
    from tfunet.swap.measure import profile

    if not job["tiny"]:
        (gpu,) = tf.config.list_physical_devices("GPU")
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=job["memory_mib"])
        tf.config.set_logical_device_configuration(gpu, [limit])
    join_regions("auto")
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(job.get("precision", "float32"))
    side, model = job["side"], job["model"]
    shape = (side, side, side, model["channels"])
    network = make_model(model["name"], image_shape=shape, num_classes=3, options=model["options"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(optimizer="adam", loss=loss, jit_compile=False)
    network.optimizer.build(network.trainable_variables)
    image = np.random.default_rng(0).normal(size=(1, *shape)).astype("float32")
    # On the host, as a pipeline gives it.
    with tf.device("CPU:0"):
        batch = tf.constant(image), tf.constant((image[..., 0] > 0.5).astype("int32"))
    support = None
    if job["way"] in ALLOWED:
        support = LargeModelSupport("auto", allowed=ALLOWED[job["way"]], verbose=1)
    found = {"fits": True, "device_mib": device_bytes() / MIB}
    with support.on(network) if support else contextlib.nullcontext():
        seconds, losses = [], []
        try:
            for _ in range(job["steps"]):
                since = time.perf_counter()
                losses.append(float(network.train_on_batch(*batch)))
                seconds.append(time.perf_counter() - since)
                if len(seconds) == 1:
                    forget_peak()  # The first step also tries how convolutions are fastest.
        except tf.errors.ResourceExhaustedError as error:
            found |= {"fits": False, "why": str(error)[:300]}
        used = used_bytes()
        if used:
            found["peak_mib"] = used[1] / MIB
        if found["fits"]:
            found |= {"losses": losses, "is_finite": bool(np.isfinite(losses).all())}
            found |= {"first_seconds": seconds[0], "seconds": seconds[1:]}
            found["step_seconds"] = statistics.median(seconds[2:])
            found["nanoseconds_a_voxel"] = found["step_seconds"] / side**3 * 1e9
        if support and support.plans:
            found["plan"] = _plan(support.plans[-1])
            predicted = support.plans[-1].peak_bytes + resident_bytes(network)
            found["predicted_peak_mib"] = predicted / MIB
            found["largest_gap"] = support.plans[-1].finds_room
    if support and found["fits"]:
        from tfunet.swap.storage.host import HostMemory, NumpyMemory

        start, out, back = profile._link(NumpyMemory if job["tiny"] else HostMemory)
        found["link"] = {"start_seconds": start, "out_gb_s": out / 1e9, "back_gb_s": back / 1e9}
    return found


def _plan(plan):
    return {
        "swap": plan.count("swap"),
        "recompute": plan.count("recompute"),
        "split": len(plan.split),
        "host_mib": plan.host_bytes / MIB,
        "peak_mib": plan.peak_bytes / MIB,
        "unlimited_peak_mib": plan.unlimited_peak_bytes / MIB,
        "finds_room": plan.finds_room,
        "step_seconds": plan.step_seconds,
        "unlimited_step_seconds": plan.unlimited_step_seconds,
    }


def loop(job):
    """Return the time of a step in tfunet's loop and in Keras's `fit`, in turn."""
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    import keras
    import step_overhead

    precision = job["settings"].get("precision", "float32")
    keras.config.set_dtype_policy(precision)
    step_overhead.SETTINGS[job["name"]] = job["settings"]
    ours, theirs = step_overhead.compare(job["name"], job["blocks"], job["cache"])
    pairs = [
        (statistics.median(one), statistics.median(other))
        for one, other in zip(ours.blocks[1:], theirs.blocks[1:], strict=True)
    ]
    batch = job["settings"]["replica_batch"]
    ratios = [one / other for one, other in pairs]
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return {
        "ours_seconds": medians[0],
        "fit_seconds": medians[1],
        "ours_images_s": batch / medians[0],
        "fit_images_s": batch / medians[1],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "losses": [ours.losses[:5], theirs.losses[:5]],
        "last_losses": [ours.losses[-1], theirs.losses[-1]],
    }


def data(job):
    """Make the images of a loop, which takes longer than to train on them."""
    import step_overhead

    settings = job["settings"]
    source = step_overhead.SOURCES[settings["data"]](**settings["data_options"])
    step_overhead.build_cache(source, Path(job["cache"]), patch=source.patch)
    return {"seconds": []}


# What starts the processes.


class Jobs:
    """Runs jobs within the time that is left, and writes what each found."""

    def __init__(self, path, seconds):
        self._path = path
        self._writing = threading.Lock()
        self._until = time.monotonic() + seconds
        self.found = []

    def run(self, kind, job, limit):
        """Return what a job found; None where it failed, or no time is left."""
        left = self._until - time.monotonic()
        limit = min(limit, left)
        since = time.monotonic()
        told = {"error": "no time was left"} if limit < 15 else _call(kind, job, limit)
        told["wall_seconds"] = round(time.monotonic() - since, 1)
        with self._writing:
            self.found.append({"kind": kind, "job": job, **told})
            self._path.write_text(json.dumps(self.found, indent=1))
        print(_line(kind, job, told), flush=True)
        return None if "error" in told else told

    def together(self, kind, jobs, limit, at_once):
        """Return what each of the jobs found, several at a time."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda job: self.run(kind, job, limit), jobs))


def _call(kind, job, limit):
    process = subprocess.Popen(
        [sys.executable, __file__, "--one", kind, json.dumps(job)],
        env={
            **os.environ,
            "PYTHONPATH": f"{HERE.parent}:{HERE}:{os.environ.get('PYTHONPATH', '')}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_ENABLE_ONEDNN_OPTS": "1",
            **({"CUDA_VISIBLE_DEVICES": ""} if job["tiny"] else {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    is_late = False
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        is_late = True
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if lines and (is_late or process.returncode == 0 or "seconds" in lines[-1]):
        said = [line for line in output.splitlines() if line.startswith("Large-model")]
        return {**json.loads(lines[-1]), "said": said, "exit_code": process.returncode}
    if is_late:
        return {"error": f"ended after {limit:.0f} s", "tail": (output + errors)[-1500:]}
    return {"error": f"exit code {process.returncode}", "tail": (output + errors)[-1500:]}


def _scaled(memory_bytes):
    """Return the sides to try: in proportion to the memory, and such as the network can halve."""
    factor = (memory_bytes / 2**34) ** (1 / 3)
    return {way: [round(side * factor / 16) * 16 for side in SIDES[way]] for way in SIDES}


def _line(kind, job, told):
    what = f"{job['way']} {job['side']}^3" if kind == "step" else f"{job['name']} {job['label']}"
    keys = ("error", "fits", "step_seconds", "nanoseconds_a_voxel", "peak_mib", "ratio")
    keys += ("predicted_peak_mib", "ours_images_s", "fit_images_s", "link")
    told_keys = {key: told[key] for key in (*keys, "wall_seconds") if key in told}
    return f"{kind} {what}: {json.dumps(told_keys)}"


def fit(jobs, base, sides):
    """Find the largest cube without swapping, and time a step of it and of larger, swapped ones."""
    tried = [{**base, "way": "keep", "side": side, "steps": 3} for side in sides["keep"]]
    at_once = max(1, min(AT_ONCE, FULL_MIB // base["memory_mib"]))
    found = jobs.together("step", tried, 90, at_once)
    pairs = zip(sides["keep"], found, strict=True)
    largest = max((side for side, result in pairs if result and result["fits"]), default=None)
    if largest is None:
        return
    jobs.run("step", {**base, "way": "keep", "side": largest, "steps": STEPS}, 90)
    for side in sides["planner"]:
        job = {**base, "way": "planner", "side": side, "steps": STEPS}
        one = jobs.run("step", job, PLANNING_SECONDS)
        if not (one and one["fits"]):
            break
        print(
            f"{largest}^3 without, {side}^3 with swapping: {(side / largest) ** 3:.2f} times the "
            "voxels (IBM: 144^3, 192^3, 2.37 times)",
            flush=True,
        )


def ways(jobs, base, sides):
    """Time a step that does not fit in each way alone."""
    for way in ("swap", "recompute"):
        job = {**base, "way": way, "side": sides["planner"][0], "steps": STEPS}
        jobs.run("step", job, PLANNING_SECONDS)


def loops(jobs, is_tiny, cache):
    """Time the loop against Keras's."""
    for name, options in KINDS:
        settings = {**(TINY_LOOPS if is_tiny else LOOPS)[name], **options}
        label = " ".join(map(str, options.values())) or "float32"
        blocks = 4 if is_tiny else 7
        job = {"name": name, "label": label, "settings": settings, "blocks": blocks}
        jobs.run("loop", {**job, "tiny": is_tiny, "cache": cache}, 75)


def make_data(jobs, is_tiny, cache):
    """Make the images of the loops, without the GPU."""
    for name, settings in (TINY_LOOPS if is_tiny else LOOPS).items():
        job = {"name": name, "label": "images", "settings": settings, "tiny": True}
        jobs.run("data", {**job, "cache": cache}, 150)


def main():
    if sys.argv[1:2] == ["--one"]:
        print(
            json.dumps(
                {"step": step, "loop": loop, "data": data}[sys.argv[2]](json.loads(sys.argv[3]))
            )
        )
        sys.stdout.flush()
        os._exit(0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="fit, loop, ways; all by default")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="file of all figures")
    parser.add_argument("--memory", default="16GiB", help="cap of the GPU's memory")
    parser.add_argument("--seconds", type=float, default=600, help="time for all together")
    parser.add_argument("--tiny", action="store_true", help="a CPU plays the GPU; no figures")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; choose of {', '.join(PARTS)}")
    sys.path[:0] = [str(HERE.parent)]
    from tfunet.config.amount import in_bytes
    from tfunet.machine.environment import environment

    parts = options.parts or PARTS
    sides = TINY_SIDES if options.tiny else _scaled(in_bytes("--memory", options.memory))
    memory_mib = 16 if options.tiny else in_bytes("--memory", options.memory) // MIB
    base = {
        "model": TINY_MODEL if options.tiny else MODEL,
        "memory_mib": memory_mib,
        "tiny": options.tiny,
    }
    jobs = Jobs(options.out, options.seconds)
    jobs.found.append({"kind": "machine", **environment()})
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(1) as beside:
        made = beside.submit(make_data, jobs, options.tiny, cache) if "loop" in parts else None
        for part in parts:
            if part == "fit":
                fit(jobs, base, sides)
            elif part == "ways":
                ways(jobs, base, sides)
            else:
                made.result()
                loops(jobs, options.tiny, cache)


if __name__ == "__main__":
    main()
