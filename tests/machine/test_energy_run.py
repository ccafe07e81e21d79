"""A run tells the joules of its whole training loop, also where it was stopped on the way."""

import json

import keras
import pytest
from powercap_folder import RANGE, Powercap

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.exit_codes import StoppedError
from tfunet.loop import run
from tfunet.single_device import SingleDevice


@pytest.fixture
def powercap(tmp_path):
    return Powercap(tmp_path / "sys")


class Spends(keras.callbacks.Callback):
    """Uses 1 J a step, 10 J an epoch, and 100 J before and after the training."""

    def __init__(self, powercap):
        super().__init__()
        self.powercap = powercap

    def spend(self, joules):
        now = int(self.powercap.file("intel-rapl:0").read_text())
        self.powercap.set("intel-rapl:0", (now + joules * 1_000_000) % RANGE)

    def on_train_begin(self, logs=None):
        self.spend(100)

    def on_train_batch_end(self, batch, logs=None):
        self.spend(1)

    def on_epoch_end(self, epoch, logs=None):
        self.spend(10)

    def on_train_end(self, logs=None):
        self.spend(100)


def test_a_run_that_goes_on_tells_the_joules_of_its_whole_loop(powercap, tmp_path, monkeypatch):
    monkeypatch.setenv("TFUNET_POWERCAP", str(powercap.root))
    powercap.set("intel-rapl:0", RANGE - 102_000_000)
    config = RunConfig(
        data_options={"num_cases": 5, "size": 32},
        model_options={"filters": 2, "levels": 1},
        replica_batch=2,
        epochs=2,
        cache_dir=str(tmp_path / "cache"),
    )

    def train(**options):
        callbacks = [Spends(powercap)]
        return run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=callbacks, **options)

    with pytest.raises(StoppedError):
        train(stops_after=lambda step: step == 3)
    result = train()
    assert result["steps"] == 4
    assert result["energy_joules"] == pytest.approx(4 * 1 + 2 * 10)
    assert (result["energy_packages"], result["energy_gpus"]) == (2, 0)
    written = json.loads((tmp_path / "run/result.json").read_text())
    assert written["energy_joules"] == result["energy_joules"]
