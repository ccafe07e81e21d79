"""Short trainings with large-model support, to compare with those without."""

import contextlib
import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from kinds import KINDS, batches
from paths import ROOT
from strategies import AllThatMayGo

from tfunet import exit_codes
from tfunet.inside.of_tensorflow import uses_onednn
from tfunet.swap import LargeModelSupport


def trained(kind, callbacks, policy="float32", *, steps=3):
    """Return the losses of some steps, and after them the variables of the model and those of the
    optimizer, which hold the gradients.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = KINDS[kind]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)
        model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
        if model.built:
            optimizer.build(model.trainable_variables)  # or the step would be traced twice
        image, mask = batches(model, kind, steps)
        losses = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
        )
        model.fit(image, mask, batch_size=2, shuffle=False, verbose=0, callbacks=[keep, *callbacks])
    finally:
        keras.config.set_dtype_policy("float32")
    return losses, [value.numpy() for value in (*model.variables, *optimizer.variables)]


@functools.cache
def plain(kind, policy="float32", *, steps=3):
    """Return what `trained` does without support, which is the same each time."""
    return trained(kind, [], policy, steps=steps)


def forced(strategy, **options):
    """Return a support that follows what a strategy plans; nothing is timed, and nothing searched.

    The strategy does not ask for the budget, and all fits in this one.
    """
    options = {"threshold_bytes": 256, "verbose": 0, **options}
    return LargeModelSupport("8GiB", margin=0.0, strategy=strategy, **options)


def assert_same(first, second):
    """Compare losses and variables to the bit.

    oneDNN rounds otherwise where it fuses ops, and which it fuses depends on what is swapped.
    """
    rounding = 1e-6 if uses_onednn() else 0
    for a, b in zip((first[0], *first[1]), (second[0], *second[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding * np.abs(b).max())


def assert_changes_no_bit(kind, policy="float32"):
    """Train a step of a kind of model with all given up that can be, and without support."""
    support = forced(AllThatMayGo("swap", "recompute"))
    assert_same(trained(kind, [support], policy, steps=1), plain(kind, policy, steps=1))
    assert support.plans[-1].decisions
    assert len(support.plans[-1].detours) > 3


def assert_changes_no_bit_on_disk(kind, policy, folder):
    """Do the same for two steps with all on disk that can be: the second writes over the first."""
    support = forced(AllThatMayGo("swap"), host=0, disk=folder)
    assert_same(trained(kind, [support], policy, steps=2), plain(kind, policy, steps=2))
    plan = support.plans[-1]
    assert sorted(plan.on_disk) == sorted(plan.decisions)
    assert plan.on_disk
    assert not list(folder.iterdir())


def passed_with_onednn(*which):
    """Run tests in a process of its own, on all cores, and return how many there were.

    oneDNN is chosen before TensorFlow begins. It sums in other orders where it fuses ops.
    """
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *which],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return int(re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)[1])


# A step of hundreds of slabs takes long to trace.
FEW_SLABS = 3


# In float64 an error is not hidden by rounding; the poolings of 3D have no such kernel.
FLOAT32 = {"unet 3D", "isensee"}


# Its large ops have rows of one voxel only.
WHOLE = {"1D"}


def namespace():
    """Return a command that runs another one where it may mount file systems for itself alone.

    A user who is not root may do so where the kernel grants user namespaces.
    """
    for options in ([], ["--user", "--map-root-user"]):
        command = ["unshare", "--mount", *options]
        if shutil.which("unshare") and subprocess.run([*command, "true"]).returncode == 0:
            return command
    pytest.skip("Neither root nor namespaces of users here: a full disk is tested by limits only.")


@contextlib.contextmanager
def no_file_beyond(num_bytes):
    """Make the kernel refuse to write to a file beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


RUN = {
    "data": "tumours",
    "data_options": {"num_cases": 6, "size": 32},
    "model_options": {"filters": 8, "levels": 2},
    "replica_batch": 1,
    "steps": 4,
    "cores_per_replica": 1,
}


def train(folder, cache, prefix=(), variables=None, **values):
    options = [word for key, value in values.items() for word in (f"--{key}", json.dumps(value))]
    options = [word.strip('"') for word in options]
    command = [*prefix, sys.executable, "-m", "tfunet", "train", "--out", str(folder), *options]
    paths = os.pathsep.join([str(ROOT), str(folder.parent)])
    ended = subprocess.run(
        command,
        env={**os.environ, "TFUNET_CACHE": str(cache), "PYTHONPATH": paths, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=280,
    )
    return ended.returncode, ended.stdout + ended.stderr


def weights(folder):
    import keras

    return keras.saving.load_model(folder / "model.keras", compile=False).get_weights()


def hash_of(folder):
    return json.loads((folder / "result.json").read_text())["weights_hash"]


def plain_hashes(make_folder, cache, base):
    """Return what tells the hash of the weights of a run without support, by its settings."""
    hashes = {}

    def of(**settings):
        key = json.dumps(settings)
        if key not in hashes:
            folder = make_folder("plain") / "run"
            code, output = train(folder, cache, **base | settings)
            assert code == exit_codes.OK, output
            hashes[key] = hash_of(folder)
        return hashes[key]

    return of
