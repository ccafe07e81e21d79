"""The time of a step in tfunet's loop against `model.fit`: same model, batches and process.

Both loops run at the same time in two threads that hand each other a baton after every block of
steps, so that each block of one lies beside a block of the other. The same Keras callback takes
the times of both. The losses of the first steps are compared before any time counts.

    python benchmarks/step_overhead.py [--quick]
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `tfunet train` does

import statistics
import tempfile
import threading
import time
from pathlib import Path

import keras
import measure
import numpy as np

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.data.cache import build_cache
from tfunet.data.generated.phantoms import cells, tumours
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.split import split_cases
from tfunet.data.task import Task
from tfunet.learning import optimizers
from tfunet.loop import run
from tfunet.models.make import make_model
from tfunet.single_device import SingleDevice
from tfunet.training.loss import make_loss

SETTINGS = {
    "2D": {
        "data": "cells",
        "data_options": {"num_cases": 60, "size": 96},
        "model_options": {"filters": 8, "levels": 3},
        "replica_batch": 4,
    },
    "3D": {
        "data": "tumours",
        "data_options": {"num_cases": 30, "size": 32},
        "model_options": {"filters": 8, "levels": 2},
        "replica_batch": 2,
    },
}
SOURCES = {"cells": cells, "tumours": tumours}
BOUND = 1.02
# Keras's losses are in float32; the loops trace different graphs around the same step.
TOLERANCE = 1e-6
COMPARED_STEPS = 20


class Clock(keras.callbacks.Callback):
    """Takes the time of every step, and passes the baton after each block."""

    def __init__(self, turn, baton, own):
        super().__init__()
        self.turn, self.baton, self.own = turn, baton, own
        self.ready = threading.Event()
        self.blocks = []
        self.losses = []

    def on_train_begin(self, logs=None):
        self.ready.set()

    def on_epoch_begin(self, epoch, logs=None):
        with self.baton:
            self.baton.wait_for(lambda: self.turn[0] == self.own)
        self.blocks.append([])
        self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.blocks[-1].append(now - self.since)
        self.since = now
        self.losses.append(float(logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        with self.baton:
            self.turn[0] = 1 - self.own
            self.baton.notify_all()


def compare(name, num_blocks, cache=None):
    """Return the clocks of our loop and of fit, after as many blocks of steps of each.

    `cache` is a folder that may have the data already.
    """
    turn, baton = [0], threading.Condition()
    ours, theirs = Clock(turn, baton, 0), Clock(turn, baton, 1)
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            **SETTINGS[name],
            epochs=num_blocks,
            evaluate_every=num_blocks,
            cache_dir=cache or f"{folder}/cache",
        )
        # fit makes its model first and then waits: random numbers are the whole process's.
        fit = threading.Thread(target=fit_model, args=(config, theirs), daemon=True)
        fit.start()
        theirs.ready.wait()
        run(config, SingleDevice(Launch()), f"{folder}/run", callbacks=[ours])
        fit.join()
    return ours, theirs


def fit_model(config, clock):
    """Train with model.fit on the batches that our loop gets."""
    source = SOURCES[config.data](**config.data_options)
    train = split_cases(source, share=config.validation_share, seed=config.split_seed).train
    steps_per_epoch = len(train) // config.replica_samples
    pipeline = TrainingPipeline(
        cases=build_cache(source, Path(config.cache_dir), patch=source.patch),
        train=train,
        last_step=config.epochs * steps_per_epoch,
        replica_batch=config.replica_samples,
        seed=config.seed,
    )
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)  # Each thread has its own.
    model = make_model(
        config.model,
        image_shape=(*source.patch, source.channels),
        num_classes=source.num_classes,
        options=config.model_options,
    )
    model.compile(
        optimizer=optimizers.make(config, 1, steps_per_epoch),
        loss=make_loss(Task(config=config, source=source, patch=source.patch), ()),
        jit_compile=config.xla,
    )
    model.fit(
        pipeline(range(1)).map(lambda batch: (batch["image"][0], batch["mask"][0])),
        epochs=config.epochs,
        steps_per_epoch=steps_per_epoch,
        verbose=0,
        callbacks=[clock],
    )


def main():
    num_blocks = 6 if measure.quick_option(__doc__) else 30
    claims = []
    for name in SETTINGS:
        ours, theirs = compare(name, num_blocks)
        worst = np.abs(np.subtract(ours.losses, theirs.losses))[:COMPARED_STEPS].max()
        print(f"{name}: the losses of {COMPARED_STEPS} steps differ by {worst:.1e} at most")
        if worst > TOLERANCE:
            raise SystemExit(f"{name}: our loop and fit do not compute the same; nothing is timed.")
        # The first block traces.
        pairs = [
            (statistics.median(our_block), statistics.median(their_block))
            for our_block, their_block in zip(ours.blocks[1:], theirs.blocks[1:], strict=True)
        ]
        claims.append(
            measure.verdict(
                f"step of our loop / step of fit, {name}",
                [our_seconds / their_seconds for our_seconds, their_seconds in pairs],
                bound=BOUND,
                most=True,
                samples={
                    "ours_seconds": [a for a, _ in pairs],
                    "fit_seconds": [b for _, b in pairs],
                },
                peers=["keras", "tensorflow"],
            )
        )
    measure.show(claims)


if __name__ == "__main__":
    main()
