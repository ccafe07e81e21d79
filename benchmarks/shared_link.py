"""Two models at once that share one link for what they swap, against each of them alone.

    python benchmarks/shared_link.py [--quick] [--disk FOLDER]

Each model has a process and a core of its own; the link is the memory bus, or the disk in FOLDER
(a temporary one by default). Ways: "kept" swaps nothing, "host" swaps to host memory, "disk" to
the disk. In each round every way, in an order that is drawn anew, takes steps in the first process
alone, in the second alone, and in both at once: the step at once over the step alone, the mean of
both processes, is what company costs. The ratio is that of a way over that of "kept" in the same
round: what the link adds to what cores, caches and other work on the machine cost either way.
IBM's two GPUs on one PCIe bus took 1.38 times as long.

Both processes follow the same plans. Before the clock starts, and at the end, every way must have
the losses of "kept".
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

WAYS = ("kept", "host", "disk")
SIZE = 48
OPTIONS = {"filters": 16, "levels": 3, "normalization": "none"}
# With everything kept, a step needs about 145 MiB: half of the large tensors go.
BUDGET = "90MiB"
STEPS = 4
IBM_RATIO = 1.38
LOSS_APART = 1e-5


def serve(core, folder):
    """Take steps as standard input asks for them, a line of "WAY NUMBER" each; runs in a child."""
    os.sched_setaffinity(0, {core})
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `tfunet train` does
    import keras
    import numpy as np
    import tensorflow as tf

    from tfunet.models.make import make_model
    from tfunet.swap import LargeModelSupport
    from tfunet.swap.plan.plan import Plan

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    image = np.random.default_rng(0).normal(size=(1, *[SIZE] * 3, 1)).astype("float32")
    batch = tf.constant(image), tf.constant((image[..., 0] > 0.5).astype("int32"))
    limits = {"host": {}, "disk": {"host": 0, "disk": folder}}
    models = {}
    with contextlib.ExitStack() as stack:
        for way in WAYS:
            keras.utils.set_random_seed(0)
            shape = (*[SIZE] * 3, 1)
            model = make_model("unet", image_shape=shape, num_classes=3, options=OPTIONS)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer="adam", loss=loss, jit_compile=False)
            models[way] = model
            if way in limits:
                file = Path(folder, f"{way}.json")
                plan = Plan.from_json(file.read_text()) if file.is_file() else None
                support = LargeModelSupport(
                    BUDGET, allowed=["swap"], plan=plan, verbose=0, **limits[way]
                )
                stack.enter_context(support.on(model))
                model.train_on_batch(*batch)
                if plan is None:
                    file.write_text(support.plans[-1].to_json())
            else:
                model.train_on_batch(*batch)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            way, number = line.split()
            seconds, losses = [], []
            for _ in range(int(number)):
                since = time.perf_counter()
                losses.append(float(models[way].train_on_batch(*batch)))
                seconds.append(time.perf_counter() - since)
            print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


class Model:
    """One of the two processes."""

    def __init__(self, core, folder):
        self.losses = {way: [] for way in WAYS}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(core), "--disk", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, way, number):
        """Have it take steps."""
        self.process.stdin.write(f"{way} {number}\n")
        self.process.stdin.flush()

    def taken(self, way):
        """Wait for them, and return their median time."""
        answer = self._answer()
        self.losses[way] += answer["losses"]
        return statistics.median(answer["seconds"])

    def check(self):
        """End the benchmark where a way computes something else than the one that swaps nothing."""
        for way in WAYS[1:]:
            pairs = zip(self.losses["kept"], self.losses[way], strict=True)
            apart = max(abs(first - second) for first, second in pairs)
            if apart > LOSS_APART:
                raise SystemExit(f"Losses of {way} are {apart} away from those without support.")

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"A process ended with {self.process.wait()}.")
        return json.loads(line)


def one_round(models, drawn, steps):
    """Return, by way, the step at once over the step alone, and both times of each process."""
    results = {}
    for way in drawn.sample(WAYS, len(WAYS)):
        alone = []
        for model in models:
            model.ask(way, steps)
            alone.append(model.taken(way))
        for model in models:
            model.ask(way, steps)
        together = [model.taken(way) for model in models]
        ratio = statistics.fmean(b / a for a, b in zip(alone, together, strict=True))
        results[way] = {"ratio": ratio, "alone": alone, "at_once": together}
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    parser.add_argument("--disk", help="a folder on the disk that is shared")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.disk)
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("Two models with a core each need two cores.")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    drawn, rounds = random.Random(0), []
    with tempfile.TemporaryDirectory(dir=options.disk) as folder:
        # The first one makes the plans, the second one follows them.
        models = [Model(core, folder) for core in cores]
        plans = {way: json.loads(Path(folder, f"{way}.json").read_text()) for way in WAYS[1:]}
        try:
            one_round(models, drawn, 2)
            for model in models:
                model.check()
            for _ in range(1 if options.quick else 7):
                rounds.append(one_round(models, drawn, STEPS))
                print({way: round(rounds[-1][way]["ratio"], 3) for way in WAYS}, flush=True)
            for model in models:
                model.check()
        finally:
            for model in models:
                model.process.stdin.close()
                model.process.wait()
    for way, plan in plans.items():
        moved = sum(plan["tensor_bytes"][tensor] for tensor in plan["decisions"]) / 2**20
        print(f"{way}: {len(plan['decisions'])} tensors, {moved:.0f} MiB a step each way")
    measure.show([claim(way, rounds) for way in WAYS[1:]])


def claim(way, rounds):
    """Return what sharing the link costs in a way, against IBM's figure."""
    names = ("ratio", "alone", "at_once")
    samples = {
        f"{which} {name}": [row[which][name] for row in rounds]
        for which in ("kept", way)
        for name in names
    }
    return measure.verdict(
        f"two models at once / alone, swapping to {way} / keeping all",
        [row[way]["ratio"] / row["kept"]["ratio"] for row in rounds],
        bound=IBM_RATIO,
        most=True,
        samples=samples,
        peers=["tensorflow", "keras"],
    )


if __name__ == "__main__":
    main()
