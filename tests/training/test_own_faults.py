"""A callback or an optimizer of a user's own that raises is told by its own line."""

import keras
import pytest

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice
from tfunet.training.own_faults import own_faults

MINE = """
import keras


class Shouting(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise RuntimeError(f"no score {sorted(logs)}")


class Lazy(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        return variable.assign(gradient.missing)
"""
SETTINGS = {
    "data": "cells",
    "data_options": {"num_cases": 6, "size": 32},
    "model_options": {"filters": 2, "levels": 1},
    "replica_batch": 2,
    "steps": 1,
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "Shouting",
            r"The callback 'Shouting' raised RuntimeError: no score \['loss'\], in mine.py, "
            r"line 7: raise RuntimeError\(",
        ),
        (
            "Lazy",
            r"The optimizer 'Lazy' raised AttributeError: .*'missing', in mine.py, line 12: "
            r"return variable.assign\(gradient.missing\)$",
        ),
    ],
)
def test_a_run_names_the_line_that_raised(tmp_path, name, words):
    (tmp_path / "mine.py").write_text(MINE)
    ref = f"{tmp_path}/mine.py:{name}"
    own = {"optimizer": ref} if name == "Lazy" else {"callbacks": ({"name": ref},)}
    config = RunConfig(**SETTINGS, **own, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=words):
        run(config, SingleDevice(Launch()), tmp_path / "run")


def test_an_error_that_keras_raises_stays_what_it_is():
    class Inheriting(keras.optimizers.SGD):
        """Raises nothing itself."""

    with pytest.raises(ValueError, match="clipnorm") as raised, own_faults():
        Inheriting(0.1, clipnorm=-1.0, clipvalue=1.0)
    assert "The optimizer" not in str(raised.value)
    with pytest.raises(ZeroDivisionError), own_faults():
        print(1 / 0)
