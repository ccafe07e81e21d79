"""A run that was killed between its last checkpoint and its result only lacks the result."""

import json
from pathlib import Path

import keras
import pytest

from tfunet.backend import Launch
from tfunet.config import RunConfig
from tfunet.single import SingleDevice
from tfunet.train import run


class Stop(keras.callbacks.Callback):
    """Ends the training with the first epoch, as EarlyStopping may."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


@pytest.mark.parametrize(
    ("callbacks", "steps"), [([], 4), ([Stop()], 2)], ids=["all steps made", "ended by a callback"]
)
def test_run_killed_before_its_result_makes_no_further_step(callbacks, steps, tmp_path):
    config = RunConfig(
        model=f"{Path(__file__).parent / 'own_step.py'}:build",
        data_options={"num_cases": 5, "size": 32},
        replica_batch=2,
        epochs=2,
        cache_dir=str(tmp_path / "cache"),
    )
    whole = run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=callbacks)
    (tmp_path / "run/result.json").unlink()
    again = run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=callbacks)
    assert again["steps"] == whole["steps"] == steps
    for name in ("weights_hash", "dice", "loss", "val_loss", "first_step_seconds"):
        assert again[name] == whole[name]
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == steps
