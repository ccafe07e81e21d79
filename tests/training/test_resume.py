"""A run that was killed at an awkward moment goes on as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest
from paths import ROOT, SUPPORT

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.files.atomic import PARTIAL
from tfunet.files.table import read_rows
from tfunet.loop import run
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training import checkpoint

SETTINGS = {
    "model": f"{SUPPORT / 'own_step.py'}:build",
    "data_options": {"num_cases": 5, "size": 32},
    "replica_batch": 2,
    "epochs": 2,
    "deterministic": True,
}
CSV_LOGGER = ({"name": "CSVLogger", "filename": "{folder}/keras.csv"},)
# The power fails when the second checkpoint, after the last step, is half on the disk.
POWER_CUT = """
import json, os, sys
import numpy as np
from tfunet.backend import Launch
from tfunet.config import RunConfig
from tfunet.single_device import SingleDevice
from tfunet.loop import run

write, archives = np.lib.format.write_array, []

def cut(file, array, **options):
    write(file, array, **options)
    if file._zipfile not in archives:
        archives.append(file._zipfile)
    elif len(archives) == 2:
        os.killpg(0, 9)

np.lib.format.write_array = cut
run(RunConfig(**json.loads(sys.argv[1])), SingleDevice(Launch()), sys.argv[2])
"""


class Stop(keras.callbacks.Callback):
    """Ends the training with the first epoch, as EarlyStopping may."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def config(tmp_path):
    return RunConfig(**SETTINGS, cache_dir=str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("callbacks", "steps"), [([], 4), ([Stop()], 2)], ids=["all steps made", "ended by a callback"]
)
def test_run_killed_before_its_result_makes_no_further_step(callbacks, steps, tmp_path):
    first = run(config(tmp_path), SingleDevice(Launch()), tmp_path / "run", callbacks=callbacks)
    (tmp_path / "run/result.json").unlink()
    again = run(config(tmp_path), SingleDevice(Launch()), tmp_path / "run", callbacks=callbacks)
    assert again["steps"] == first["steps"] == steps
    for name in ("weights_hash", "dice", "loss", "val_loss", "first_step_seconds"):
        assert again[name] == first[name]
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == steps


def test_more_epochs_of_a_finished_run_are_those_of_a_longer_one(tmp_path):
    shorter = replace(config(tmp_path), callbacks=CSV_LOGGER)
    longer = replace(shorter, epochs=3)
    whole = run(longer, SingleDevice(Launch()), tmp_path / "whole")
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.begin(shorter)
    first = run(shorter, SingleDevice(Launch()), folder.path)
    for same in (shorter, replace(shorter, epochs=1)):
        with pytest.raises(ValueError, match="To train it further, give more epochs"):
            folder.begin(same)
    with pytest.raises(ValueError, match=r"other settings: .*learning_rate=0\.5"):
        folder.begin(replace(longer, learning_rate=0.5))
    with pytest.raises(ValueError, match="To train it further, give more epochs"):
        folder.begin(replace(longer, steps=9))
    assert folder.is_done()
    folder.begin(longer)
    assert not folder.is_done()
    assert json.loads((folder.path / "result-2-epochs.json").read_text())["dice"] == first["dice"]
    more = run(longer, SingleDevice(Launch()), folder.path)
    assert more["weights_hash"] == whole["weights_hash"] != first["weights_hash"]
    assert more["epochs"] == 3
    for name in ("steps.csv", "epochs.csv", "keras.csv"):
        one, other = (read_rows(path / name) for path in (folder.path, tmp_path / "whole"))
        assert [row["loss"] for row in one] == [row["loss"] for row in other]


@pytest.mark.multiprocess
def test_after_a_power_cut_in_a_checkpoint_the_older_one_is_used(tmp_path, capsys, same_arithmetic):
    settings = json.dumps({**SETTINGS, "cache_dir": str(tmp_path / "cache")})
    command = [sys.executable, "-c", POWER_CUT, settings, str(tmp_path / "cut")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **same_arithmetic}
    ended = subprocess.run(command, env=environment, start_new_session=True, timeout=500)
    assert ended.returncode == -signal.SIGKILL
    halves = list((tmp_path / "cut").glob(f"{PARTIAL}*"))
    assert [path.name.endswith(checkpoint.NAME) for path in halves] == [True]
    with RunFolder(tmp_path / "cut").locked():  # As all do that start a run.
        again = run(config(tmp_path), SingleDevice(Launch()), tmp_path / "cut")
    assert not any(path.exists() for path in halves)
    assert "Going on from step 2 of 4." in capsys.readouterr().out
    whole = run(config(tmp_path), SingleDevice(Launch()), tmp_path / "whole")
    assert again["weights_hash"] == whole["weights_hash"]
    saved = [np.load(tmp_path / name / checkpoint.NAME) for name in ("cut", "whole")]
    variables = [name for name in saved[0].files if name.startswith("variable_")]
    assert variables
    for name in variables:
        assert saved[0][name].tobytes() == saved[1][name].tobytes()
