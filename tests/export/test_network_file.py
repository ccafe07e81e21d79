"""Exported networks: the file alone gives the logits of the run, or it is not kept."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.export import network_file
from tfunet.models.make import make_model
from tfunet.record import RunFolder

OWN = """
import keras, numpy as np, tensorflow as tf

TABLE = keras.layers.IntegerLookup(vocabulary=[0, 1])

class Bump(keras.layers.Layer):
    def call(self, image):
        {line}

def build(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    rows = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(image)
    rows = Bump(name="bump")(rows)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(rows))
"""

# Without `training`, a layer of Keras that resizes has those after it train. 12 rows become 23.
RESIZED = """
import keras

def build(*, image_shape, num_classes):
    layers = keras.layers
    image = keras.Input(image_shape)
    skip = layers.Conv2D(4, 3, strides=2, padding="same")(image)
    x = layers.Conv2D(4, 3, strides=2, padding="same")(skip)
    x = layers.Resizing(23, 23, interpolation="bilinear")(x)
    x = layers.Concatenate()([layers.BatchNormalization()(x), skip])
    x = layers.Resizing(46, 46, interpolation="nearest")(layers.Conv2D(num_classes, 1)(x))
    return keras.Model(image, x)
"""

# Tensors that layers keep, and that are no variables; one of them is large.
KEEPING = """
import keras, tensorflow as tf

FACTOR = tf.constant(1.5)

class Bank(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.filters = tf.random.stateless_uniform((3, 3, 1, 40), seed=(1, 2))

    def build(self, shape):
        self.shift = self.add_weight(shape=(1,), initializer="ones", trainable=False)

    def call(self, image):
        return tf.nn.conv2d(image, self.filters, 1, "SAME") * FACTOR + self.shift

def build(*, image_shape, num_classes):
    layers = keras.layers
    image = keras.Input(image_shape)
    x = layers.Normalization(mean=[0.3], variance=[1.7])(layers.Rescaling(2.0, offset=-1)(image))
    x = layers.BatchNormalization()(Bank()(x))
    return keras.Model(image, layers.Conv2D(num_classes, 1)(x))
"""


@pytest.fixture
def run_of(tmp_path):
    """A function that makes the folder of a finished run of generated images."""

    def made(model, data, patch, options=None):
        folder = RunFolder(tmp_path / "run")
        folder.create()
        channels, num_classes = {"cells": (1, 2), "tumours": (4, 4)}[data]
        sizes = {"num_cases": 4, "size": 32}
        config = RunConfig(
            model=model,
            model_options=options or {},
            data=data,
            data_options=sizes,
            patch=patch,
            precision="mixed_bfloat16",
        )
        built = make_model(
            model,
            image_shape=(*patch, channels),
            num_classes=num_classes,
            options=config.model_options,
        )
        rng = np.random.default_rng(0)
        for variable in built.trainable_variables:  # Biases of 0 would hide that they are lost.
            variable.assign(variable + rng.normal(0, 0.1, variable.shape))
        built.save_weights(folder.path / "model.weights.h5")
        folder.write_config(config)
        about = {"name": data, "channels": channels, "num_classes": num_classes, "patch": patch}
        folder.write_data({**about, "preparation": None, "label_names": []})
        cases = [f"{data}-{index:03}" for index in range(4)]
        folder.write_split({"train": cases[:2], "validation": cases[2:], "left_out": []})
        folder.write_result({})
        return folder.path

    return made


@pytest.mark.parametrize(
    ("model", "data", "patch", "window", "options"),
    [
        ("unet", "cells", (32, 32), (64, 16), {"filters": 2, "levels": 2, "dropout": 0.5}),
        (
            "unet",
            "tumours",
            (16, 16, 16),
            (16, 16, 16),
            {
                "filters": 2,
                "levels": 1,
                "upsampling": "linear",
                "normalization": "group",
                "groups": 2,
            },
        ),
        (
            "isensee",
            "tumours",
            (16, 16, 16),
            (16, 16, 16),
            {"filters": 2, "depth": 3, "segmentation_levels": 2},
        ),
        ("own", "cells", (32, 32), (32, 32), None),
        ("resized", "cells", (46, 46), (46, 46), None),
        ("keeping", "cells", (32, 32), (32, 32), None),
    ],
)
def test_onnx_gives_the_logits_of_the_run(
    model, data, patch, window, options, run_of, tmp_path, capsys
):
    if model == "own":
        (tmp_path / "own.py").write_text(OWN.format(line="return image + keras.ops.sqrt(2.0)"))
        model = f"{tmp_path / 'own.py'}:build"
    if model == "keeping":
        (tmp_path / "keeping.py").write_text(KEEPING)
        model = f"{tmp_path / 'keeping.py'}:build"
    if model == "resized":
        (tmp_path / "resized.py").write_text(RESIZED)
        model = f"{tmp_path / 'resized.py'}:build"
    folder = run_of(model, data, patch, options)
    words = ["--window", ",".join(map(str, window))] if window != patch else []
    assert main(["export", str(folder), "--to", "onnx", *words]) == exit_codes.OK
    said = capsys.readouterr().out
    facts = json.loads((folder / "onnx/network.json").read_text())
    assert 0 <= facts["compared"]["largest_difference"] <= facts["compared"]["bound"]
    assert f"{facts['compared']['largest_difference']:.1e}" in said
    assert len(facts["compared"]["images"]) == 2
    assert facts["compared"]["voxels"] == 2 * np.prod(window)
    assert f"{'pixels' if len(window) == 2 else 'voxels'} have another label" in said
    assert facts["labels"]["0"] == "background"
    # Names alone, not "1 cell".
    assert not any(name.startswith(f"{label} ") for label, name in facts["labels"].items())
    assert facts["input"]["shape"][1:-1] == list(window)
    assert sorted(path.name for path in (folder / "onnx").iterdir()) == [
        "model.onnx",
        "network.json",
    ]


@pytest.mark.parametrize(
    ("line", "to", "message"),
    [
        (
            "return image + tf.ensure_shape(tf.numpy_function(np.sin, [image], tf.float32), "
            "image.shape)",
            "savedmodel",
            r"The layer 'bump' \(Bump\) uses PyFunc: Python code",
        ),
        (
            "return image + tf.math.igamma(tf.abs(image) + 1.0, tf.abs(image))",
            "onnx",
            r"The layer 'bump' \(Bump\) uses Igamma: tf2onnx cannot write it",
        ),
        (
            "return image + tf.cast(TABLE(image[..., :1]), tf.float32)",
            "onnx",
            r"The layer 'bump' \(Bump\) uses a lookup table: tf2onnx cannot write it",
        ),
    ],
)
def test_a_layer_that_cannot_be_exported_is_named(line, to, message, run_of, tmp_path):
    (tmp_path / "own.py").write_text(OWN.format(line=line))
    folder = run_of(f"{tmp_path / 'own.py'}:build", "cells", (32, 32))
    with pytest.raises(ValueError, match=message):
        network_file.export_network(folder, to, folder / to)
    assert not (folder / to).exists()


def test_a_file_that_predicts_something_else_is_not_kept(run_of, monkeypatch, capsys):
    folder = run_of("unet", "cells", (32, 32), {"filters": 2, "levels": 1})
    export = keras.Model.export

    def other_weights(model, *given, **options):
        kernel = model.trainable_variables[-2]
        kernel.assign(kernel * 1.01)
        export(model, *given, **options)

    monkeypatch.setattr(keras.Model, "export", other_weights)
    assert main(["export", str(folder), "--to", "savedmodel"]) == exit_codes.CHECK_FAILED
    assert "The file is not kept." in capsys.readouterr().err
    assert not (folder / "savedmodel").exists()


def test_what_runs_a_file_can_import_nothing_of_ours(tmp_path):
    script = Path(network_file.__file__).with_name("run_exported.py").read_text()
    here = tmp_path / "script.py"
    here.write_text(script.replace("    run =", "    import tfunet\n    run ="))
    ended = subprocess.run([sys.executable, here, *"abcd"], capture_output=True, text=True)
    assert "import of tfunet halted" in ended.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "mlperf", "--window", "8,8"], "--window is for --to savedmodel and --to onnx"),
        (["--to", "onnx"], "There is no folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(words, message, tmp_path, capsys):
    assert main(["export", str(tmp_path / "none"), *words]) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err


def test_images_that_do_not_fit_the_network_are_refused(run_of, tmp_path):
    folder = run_of("unet", "cells", (32, 32), {"filters": 2, "levels": 1})
    np.save(tmp_path / "volume.npy", np.zeros((8, 8, 8), np.float32))
    with pytest.raises(ValueError, match="trained on 2D images with 1 channels"):
        network_file.export_network(
            folder, "onnx", folder / "onnx", images=[str(tmp_path / "volume.npy")]
        )
    keras.config.set_dtype_policy("float32")
