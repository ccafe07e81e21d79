"""A model that begins with the weights of another one, layer by layer."""

import re

import keras
import numpy as np
import pytest
from keras import layers

from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.data.early_checks import check_early, check_model
from tfunet.loop import run
from tfunet.models import unet
from tfunet.models.initial_weights import load_initial_weights
from tfunet.single_device import SingleDevice


def network(num_classes=2, filters=4):
    return unet.build(
        image_shape=(16, 16, 1),
        num_classes=num_classes,
        filters=filters,
        levels=2,
        normalization="batch",
    )


def by_path(model):
    return {weight.path: weight.numpy() for weight in model.weights}


def shuffled(model):
    """Give each weight values that no initializer gives."""
    for number, weight in enumerate(model.weights):
        weight.assign(np.full(weight.shape, 2.0 + number / 8))
    return model


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("weights") / "net.keras")
    shuffled(network()).save(path)
    return path


def test_layers_of_the_same_name_and_shapes_begin_with_its_weights(file):
    model, there = network(num_classes=3), by_path(keras.models.load_model(file))
    before = by_path(model)
    line = load_initial_weights(model, file)
    after = by_path(model)
    same = [path for path in after if not path.startswith("logits")]
    # Statistics of batch normalization are among them.
    assert any("moving_mean" in path for path in same)
    for path in same:
        assert np.array_equal(after[path], there[path]), path
    assert len(same) == len(after) - 2
    for path in ("logits/kernel", "logits/bias"):
        assert np.array_equal(after[path], before[path])
    num_layers = len({path.rpartition("/")[0] for path in after})
    share = sum(after[path].size for path in same) / sum(value.size for value in after.values())
    assert line == (
        f"Initial weights: {num_layers - 1} of {num_layers} layers, {share:.1%} of all weights, "
        f"from {file}. Random: logits (kernel 1 x 1 x 4 x 2 in the file, 1 x 1 x 4 x 3 here)."
    )


@keras.saving.register_keras_serializable(package="tests")
class Shift(layers.Layer):
    def build(self, shape):
        self.offset = self.add_weight(shape=(shape[-1],), initializer="zeros", name="offset")

    def call(self, image):
        return image + self.offset


class Doubled(Shift):
    pass


def unnamed(num_classes, kind=Shift):
    """Layers that Keras names, with a model within the model, and two of them by the user."""
    image = keras.Input((8, 8, 1))
    x = layers.Conv2D(3, 3, padding="same")(image)
    x = kind()(layers.Conv2D(3, 3, padding="same")(x))
    inner = keras.Sequential([layers.Conv2D(3, 1, name="inner"), layers.BatchNormalization()])
    x = inner(x)
    return keras.Model(image, layers.Conv2D(num_classes, 1, name="head")(x))


@pytest.mark.parametrize("kind", [Shift, Doubled], ids=["registered", "only in the model"])
def test_layers_that_keras_named_are_counted_by_their_class(kind, tmp_path):
    first = shuffled(unnamed(2, kind))
    first.save(tmp_path / "first.keras")
    later = unnamed(5, kind)
    # Keras has counted on in this process.
    assert {layer.name for layer in first.layers} != {layer.name for layer in later.layers}
    line = load_initial_weights(later, str(tmp_path / "first.keras"))
    values = [weight.numpy() for weight in first.weights]
    for weight, value in list(zip(later.weights, values, strict=True))[:-2]:
        assert np.array_equal(weight.numpy(), value), weight.path
    assert "5 of 6 layers" in line
    assert "Random: head (kernel" in line


class Block(layers.Layer):
    """Layers that the user named, in one that Keras names."""

    def __init__(self, **options):
        super().__init__(**options)
        self.conv = layers.Conv2D(3, 3, padding="same", name="conv")
        self.norm = layers.BatchNormalization(name="norm")

    def build(self, shape):
        self.conv.build(shape)
        self.norm.build((*shape[:-1], 3))
        super().build(shape)

    def call(self, image):
        return self.norm(self.conv(image))


def of_blocks(num_inner):
    image = keras.Input((8, 8, 3))
    inner = [layers.Conv2D(3, 3, padding="same") for _ in range(num_inner)]
    x = keras.Sequential([keras.Input((8, 8, 3)), *inner])(Block()(Block()(image)))
    return keras.Model(image, layers.Conv2D(2, 1, name="head")(x))


def test_layers_within_layers_are_found_from_the_first_on(tmp_path):
    first = shuffled(of_blocks(2))
    first.save(tmp_path / "first.keras")
    longer = of_blocks(3)
    line = load_initial_weights(longer, str(tmp_path / "first.keras"))
    # Two blocks of two layers, two of the three convolutions, and the head.
    assert "7 of 8 layers" in line
    inner = [model.layers[3].layers for model in (first, longer)]
    for layer, there in zip(inner[1], inner[0], strict=False):
        assert np.array_equal(layer.kernel.numpy(), there.kernel.numpy())


def test_a_deeper_network_keeps_what_it_has_in_common(file):
    deeper = unet.build(
        image_shape=(16, 16, 1), num_classes=2, filters=4, levels=3, normalization="batch"
    )
    there = by_path(keras.models.load_model(file))
    line = load_initial_weights(deeper, file)
    after = by_path(deeper)
    assert np.array_equal(after["down0_0_convolution/kernel"], there["down0_0_convolution/kernel"])
    assert re.search(r"not in the file.*, \d+ more\.", line)


def test_a_network_that_has_nothing_in_common_is_refused(file):
    other = keras.Sequential([keras.Input((16, 16, 1)), layers.Conv2D(7, 5, name="far")])
    with pytest.raises(ValueError, match=r"none of the 1 layers .*far \(not in the file\)"):
        load_initial_weights(other, file)


def test_a_file_that_cannot_be_one_is_refused_before_training(tmp_path, monkeypatch, capfd, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "cut.keras").write_bytes(b"PK")
    (tmp_path / "logs/model.keras").write_bytes(b"")
    for path, words in (
        ("nowhere.keras", r"is no \.keras file of a network.* as model\.keras in its folder"),
        ("logs", r"In this folder there is one: logs/model\.keras"),
        ("cut.keras", r"initial_weights: The model file 'cut\.keras' is not a \.keras file"),
    ):
        with pytest.raises(ValueError, match=words):
            check_model(RunConfig(initial_weights=path))
    assert main(["train", "--initial_weights", "nowhere.keras", "--out", "run"]) == 2
    assert "initial_weights='nowhere.keras'" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()
    check_model(RunConfig(initial_weights=file))


SMALL = {
    "data": "cells",
    "data_options": {"num_cases": 5, "size": 32},
    "model_options": {"filters": 4, "levels": 2, "normalization": "batch"},
    "steps": 1,
    "cores_per_replica": 1,
    # Too little to change anything.
    "optimizer": "sgd",
    "learning_rate": 1e-30,
}


def test_a_run_begins_with_them(tmp_path, capsys, file):
    config = RunConfig(**SMALL, initial_weights=file)
    run(config, SingleDevice(Launch()), tmp_path / "run")
    assert "Initial weights: " in capsys.readouterr().out
    there, after = (
        by_path(keras.models.load_model(path)) for path in (file, tmp_path / "run/model.keras")
    )
    for path, value in there.items():
        if "moving" not in path:
            assert np.array_equal(after[path], value), path


def test_a_run_that_goes_on_does_not_need_them(tmp_path, capsys):
    path = tmp_path / "net.keras"
    shuffled(network()).save(path)
    settings = {key: value for key, value in SMALL.items() if key != "steps"}
    config = RunConfig(**settings, initial_weights=str(path), epochs=1)
    run(config, SingleDevice(Launch()), tmp_path / "run")
    # The run was killed after its last checkpoint.
    (tmp_path / "run/result.json").unlink()
    path.unlink()
    capsys.readouterr()
    check_early(config, goes_on=True)
    assert run(config, SingleDevice(Launch()), tmp_path / "run")["epochs"] == 1
    assert "Initial weights" not in capsys.readouterr().out
