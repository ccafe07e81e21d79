"""Processes other than the chief save models in a place of their own, and load them from there."""

import keras
import numpy as np
import pytest

from tfunet.fit.hooks import Elsewhere
from tfunet.inside import of_fit

NAMES = ("save_model", "load_model", "save_weights", "load_weights")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch):
    for place in (of_fit.saving(), keras.saving, keras.models):
        for name in NAMES:
            if hasattr(place, name):  # Undone after the test.
                monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(keras.Model, "export", keras.Model.export)
    Elsewhere().install()


def model(weight):
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    made.set_weights([np.full((1, 1), weight)])
    return made


def weight(made):
    return float(made.get_weights()[0][0, 0])


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_what_was_saved_is_loaded_and_stands_nowhere(suffix, tmp_path):
    path = tmp_path / f"model.{suffix}"
    model(1.0).save(path)
    keras.saving.save_model(model(2.0), filepath=str(path))
    assert list(tmp_path.iterdir()) == []
    assert weight(keras.models.load_model(path)) == 2
    assert weight(keras.saving.load_model(filepath=str(path))) == 2


def test_weights_are_kept_apart(tmp_path):
    path = tmp_path / "own.weights.h5"
    model(3.0).save_weights(path)
    other = model(0.0)
    other.load_weights(str(path))
    assert weight(other) == 3
    assert list(tmp_path.iterdir()) == []


def test_one_file_by_two_names_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model(4.0).save("model.keras")
    assert weight(keras.models.load_model(tmp_path / "model.keras")) == 4
    assert weight(keras.models.load_model("./model.keras")) == 4


def test_what_another_run_has_saved_is_loaded_from_its_place(tmp_path):
    (tmp_path / "other.keras").write_bytes(saved_bytes(5.0, tmp_path))
    assert weight(keras.models.load_model(tmp_path / "other.keras")) == 5


def saved_bytes(value, folder):
    from keras.src.saving import saving_lib

    saving_lib.save_model(model(value), folder / "apart.keras")
    return (folder / "apart.keras").read_bytes()


def test_nothing_is_exported(tmp_path):
    model(1.0).export(tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []
