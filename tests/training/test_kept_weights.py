"""What a run says of its network is said of the weights that it keeps."""

import json
import os
import subprocess
import sys

import keras
import pytest
from kept_model import check_record
from rounding import Rounding

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.files.table import read_rows
from tfunet.loop import run
from tfunet.single_device import SingleDevice

SETTINGS = {
    "data": "cells",
    "data_options": {"num_cases": 10, "size": 32},
    "model_options": {"filters": 4, "levels": 1, "dropout": 0.1},
    "global_batch": 4,
    "epochs": 3,
    "learning_rate": 0.05,
}
EMA = {"optimizer_options": {"use_ema": True, "ema_momentum": 0.5}}
BEST = {
    "name": "EarlyStopping",
    "monitor": "val_loss",
    "mode": "max",
    "restore_best_weights": True,
    "patience": 9,
}

FILES = ("model.keras", "best.keras")
LOADING = """
import sys
import keras

for path in sys.argv[1:]:
    assert not keras.saving.load_model(path).compiled
assert "tfunet" not in sys.modules
"""
MINE = """
import keras


def build(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 3, padding="same")(image))
"""


@pytest.mark.parametrize(
    ("settings", "own", "is_scored_again"),
    [
        ({"callbacks": [BEST]}, Rounding(), True),
        ({**EMA, "precision": "mixed_float16"}, Rounding(), True),  # In a LossScaleOptimizer.
        # The averages are scored in each epoch already.
        ({**EMA, "callbacks": [{"name": "SwapEMAWeights"}]}, Rounding(), False),
        ({}, Rounding("on_test_begin"), False),
        ({}, Rounding("on_epoch_end"), True),
        # Its last epoch has no evaluation.
        ({"evaluate_every": 2, "epochs": 4}, Rounding(stops_at=2), True),
    ],
)
def test_record_is_of_the_model_that_is_kept(settings, own, is_scored_again, tmp_path, capsys):
    config = from_dict({**SETTINGS, **settings, "cache_dir": str(tmp_path / "cache")})
    result = run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=[own])
    dice = check_record(tmp_path / "run")
    said = capsys.readouterr().out
    assert ("Scored again: " in said) == is_scored_again
    assert f"Mean Dice over 2 validation cases: cell {dice:.3f}." in said
    last = read_rows(tmp_path / "run/epochs.csv")[-1]
    assert last["val_loss"] == str(own.epochs[-1].get("val_loss", ""))
    if is_scored_again:
        assert str(result["val_loss"]) != last["val_loss"]
    assert int(read_rows(tmp_path / "run/cases.csv")[0]["epoch"]) == len(own.epochs)


def test_run_killed_before_its_result_scores_the_same_weights(tmp_path):
    """It has them from its checkpoint, which is older than the end of training."""
    supported = {
        "swap": "1GiB",
        "epochs": 1,
        "metrics": ["hd95"],
        "cache_dir": str(tmp_path / "cache"),
    }
    config = from_dict({**SETTINGS, **EMA, **supported})
    first = run(config, SingleDevice(Launch()), tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    again = run(config, SingleDevice(Launch()), tmp_path / "run")
    for name in ("weights_hash", "dice", "loss", "val_loss"):
        assert again[name] == first[name]
    check_record(tmp_path / "run")
    # Large-model support lasts until all is scored.
    assert len(json.loads((tmp_path / "run/swap.json").read_text())["evaluation_plans"]) == 1


def test_test_callbacks_are_called_around_each_evaluation_as_keras_does(tmp_path):
    calls = []

    class Noting(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            calls.append(("begin", logs or {}))

        def on_test_end(self, logs=None):
            calls.append(("end", logs))

        def on_epoch_end(self, epoch, logs=None):
            calls.append(("epoch", dict(logs)))

    settings = {**SETTINGS, "evaluate_every": 2, "cache_dir": str(tmp_path / "cache")}
    board = {"name": "TensorBoard", "log_dir": "{folder}/board", "update_freq": 1}
    config = from_dict({**settings, "callbacks": [board]})
    run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=[Noting()])
    assert [kind for kind, _ in calls] == [
        "epoch",
        "begin",
        "end",
        "epoch",
        "begin",
        "end",
        "epoch",
    ]
    (_, without), _, (_, tested), (_, epoch), *_ = calls
    assert not any(name.startswith("val_") for name in without)
    assert {f"val_{name}": value for name, value in tested.items()}.items() <= epoch.items()
    assert {"loss", "dice", "dice_cell"} <= set(tested)


@pytest.mark.multiprocess
def test_kept_networks_load_in_keras_alone(tmp_path):
    """A network of tfunet and one of the user's own, and what a callback keeps of them."""
    (tmp_path / "mine.py").write_text(MINE)
    best = {"name": "ModelCheckpoint", "filepath": "{folder}/best.keras"}
    shared = {**SETTINGS, "epochs": 1, "callbacks": [best], "cache_dir": str(tmp_path / "cache")}
    for number, own in enumerate([{}, {"model": f"{tmp_path}/mine.py:build", "model_options": {}}]):
        run(from_dict({**shared, **own}), SingleDevice(Launch()), tmp_path / str(number))
    files = [str(tmp_path / str(number) / name) for number in (0, 1) for name in FILES]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", LOADING, *files]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=100)
