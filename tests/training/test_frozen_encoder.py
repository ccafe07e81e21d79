"""An encoder keeps its weights and statistics in its first epochs, and learns after them."""

import dataclasses
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from paths import ROOT, SUPPORT

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.exit_codes import StoppedError
from tfunet.files.table import read_rows
from tfunet.loop import run
from tfunet.single_device import SingleDevice
from tfunet.training import checkpoint

SETTINGS = {
    "model": f"{SUPPORT / 'with_encoder.py'}:build",
    "data_options": {"num_cases": 10, "size": 32},
    "global_batch": 4,
    "epochs": 2,
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9, "weight_decay": 0.01},
    "learning_rate": 0.05,
    "encoder_frozen_epochs": 1,
    "deterministic": True,
}
MIRRORED = """
import json, sys
from tf_native.mirrored import MirroredBackend
from tfunet.backend import Launch
from tfunet.config import RunConfig
from tfunet.loop import run

config = RunConfig(**json.loads(sys.argv[1]))
run(config, MirroredBackend(Launch(num_replicas=2)), sys.argv[2])
"""


class Encoder(keras.callbacks.Callback):
    """Keeps the encoder's variables at the beginning and after each epoch."""

    def __init__(self):
        super().__init__()
        self.values = []

    def _keep(self):
        encoder = self.model.get_layer("encoder")
        self.values.append([variable.numpy() for variable in encoder.weights])

    def on_train_begin(self, logs=None):
        self._keep()

    def on_epoch_end(self, epoch, logs=None):
        self._keep()


def config(tmp_path, **changes):
    return RunConfig(**{**SETTINGS, **changes}, cache_dir=str(tmp_path / "cache"))


def weights(folder):
    with np.load(folder / checkpoint.NAME) as file:
        names = sorted(name for name in file.files if name.startswith("variable_"))
        return [file[name] for name in names]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder, seen = tmp_path_factory.mktemp("frozen"), Encoder()
    run(config(folder), SingleDevice(Launch()), folder / "run", callbacks=[seen])
    return folder / "run", seen


def test_frozen_weights_and_statistics_do_not_move(whole):
    folder, seen = whole
    assert len(seen.values[0]) == 5  # A kernel; scale, offset, mean and variance.
    for before, frozen, learned in zip(*seen.values, strict=True):
        np.testing.assert_array_equal(before, frozen)
        assert np.abs(learned - frozen).max() > 0
    steps = read_rows(folder / "steps.csv")
    assert [row["traced"] for row in steps] == ["1", "0", "1", "0"]
    # Whoever loads the model has an encoder that learns.
    assert keras.models.load_model(folder / "model.keras").get_layer("encoder").trainable


@pytest.mark.parametrize("stop", [1, 3], ids=["while it is frozen", "after it"])
def test_a_run_that_goes_on_ends_with_the_same_weights(stop, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        run(config(tmp_path), SingleDevice(Launch()), folder, stops_after=lambda step: step == stop)
    run(config(tmp_path), SingleDevice(Launch()), folder)
    for ours, theirs in zip(weights(folder), weights(whole[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_without_an_encoder_is_refused(tmp_path):
    plain = config(tmp_path, model="unet", model_options={"filters": 2, "levels": 1})
    with pytest.raises(ValueError, match="needs a layer named 'encoder', and the model 'unet'"):
        run(plain, SingleDevice(Launch()), tmp_path / "run")
    with pytest.raises(ValueError, match="encoder_frozen_epochs must be at least 0, got -1"):
        dataclasses.replace(plain, encoder_frozen_epochs=-1)
    with pytest.raises(ValueError, match="stages=2 cannot be combined with encoder_frozen_epochs"):
        dataclasses.replace(plain, stages=2)


@pytest.mark.multiprocess
def test_two_replicas_end_with_the_weights_of_one(tmp_path, same_arithmetic):
    """Also of losses at lower resolutions."""
    settings = {**SETTINGS, "model_options": {"supervised": True}}
    of_two = {**settings, "num_replicas": 2, "cache_dir": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-c", MIRRORED, json.dumps(of_two), str(tmp_path / "two")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **same_arithmetic},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    one = config(tmp_path, model_options={"supervised": True})
    run(one, SingleDevice(Launch()), tmp_path / "one")
    for ours, theirs in zip(weights(tmp_path / "two"), weights(tmp_path / "one"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)
    losses = [
        [float(row["loss"]) for row in read_rows(tmp_path / name / "steps.csv")]
        for name in ("one", "two")
    ]
    np.testing.assert_allclose(*losses, atol=1e-6)
