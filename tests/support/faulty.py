"""A small training with large-model support, as a process of its own; it prints JSON lines.

`python faulty.py FOLDER [--hold] [--full]`: swaps to FOLDER; with --hold it waits in the middle of
its third step; with --full it first fills the disk that FOLDER is on.
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

from tfunet.swap import LargeModelSupport
from tfunet.swap.storage.disk import DiskFile

HELD_STEP = 3
FREE_BYTES = 2**19


def compiled():
    keras.utils.set_random_seed(1)
    image = keras.Input((32, 32, 1))
    x = image
    for activation in ("relu", "tanh", "relu", "tanh"):
        x = keras.layers.Conv2D(128, 3, padding="same", activation=activation)(x)
    model = keras.Model(image, keras.layers.Conv2D(2, 1)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, jit_compile=False)
    return model


def batches(num=8):
    image = np.random.default_rng(0).normal(size=(num, 32, 32, 1)).astype("float32")
    return image, (image[..., 0] > 0).astype("int32")


def trained(callbacks):
    model = compiled()
    image, mask = batches()
    losses = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    error = None
    weights = model.get_weights()
    try:
        model.fit(image, mask, batch_size=2, shuffle=False, verbose=0, callbacks=[*callbacks, keep])
    except OSError as failure:
        error = str(failure)
    return {
        "losses": losses,
        "error": error,
        "restored": "train_step" not in vars(model),
        "unchanged": all((a == b).all() for a, b in zip(weights, model.get_weights(), strict=True)),
    }


def main(folder, hold, full):
    copies = []

    def note(name, begin, end):
        copies.append(name)
        if (
            hold
            and name == "swap in"
            and copies.count(name) > (HELD_STEP - 1) * len(support.plans[-1].decisions)
        ):
            print(json.dumps({"holds": os.getpid()}), flush=True)
            time.sleep(600)

    try:
        support = LargeModelSupport(
            0,
            host=0,
            disk=folder,
            weights="none",
            allowed=["swap"],
            threshold_bytes=2**18,
            note=note,
        )
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))
        return
    support.verbose = 0
    other = None
    if full:
        # Like another process of the run that has its share already.
        other = DiskFile(folder)
        state = os.statvfs(folder)
        other.reserve({"all": state.f_bavail * state.f_frsize - FREE_BYTES})
    results = trained([support])
    if other is not None:
        other.close()
    results["again"] = trained([support])["losses"] if full else None
    results["plain"] = trained([])["losses"]
    results["direct"] = _is_direct(folder)
    results["copies"] = len(copies)
    results["left"] = [path.name for path in Path(folder).iterdir()]
    print(json.dumps(results))


def _is_direct(folder):
    file = DiskFile(folder)
    file.reserve({"byte": 1})
    return file.is_direct


if __name__ == "__main__":
    main(sys.argv[1], "--hold" in sys.argv, "--full" in sys.argv)
