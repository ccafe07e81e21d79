"""Batch normalisation whose statistics a training is too short for."""

import keras
import numpy as np
import pytest

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.learning.slow_statistics import slow_statistics
from tfunet.loop import run
from tfunet.single_device import SingleDevice


def network(momentum):
    image = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(2, 3, padding="same")(image)
    return keras.Model(image, keras.layers.BatchNormalization(momentum=momentum)(x))


@pytest.mark.parametrize(
    ("momentum", "steps", "share"), [(0.999, 273, "76%"), (0.999, 2400, ""), (0.99, 4, "")]
)
def test_statistics_that_stay_what_they_begin_with_are_told(momentum, steps, share):
    told = slow_statistics(network(momentum), steps)
    assert (f"still hold {share}" in told) if share else told == ""


def test_statistics_of_data_are_none():
    model = network(0.999)
    model.layers[-1].moving_mean.assign(np.ones(2))
    assert slow_statistics(model, 1) == ""


def test_a_run_tells_it_before_its_first_step(tmp_path, capsys):
    (tmp_path / "slow.py").write_text(
        "import keras\n"
        "def build(*, image_shape, num_classes):\n"
        "    image = keras.Input(image_shape)\n"
        "    x = keras.layers.BatchNormalization(momentum=0.999)(image)\n"
        "    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(x))\n"
    )
    config = from_dict(
        {
            "data": "cells",
            "data_options": {"num_cases": 4, "size": 32},
            "patch": [32, 32],
            "model": f"{tmp_path / 'slow.py'}:build",
            "global_batch": 2,
            "steps": 1,
            "cache_dir": str(tmp_path / "cache"),
        }
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    told = next(at for at, line in enumerate(lines) if "still hold 100% of what" in line)
    assert told < next(at for at, line in enumerate(lines) if line.startswith("epoch 1"))
