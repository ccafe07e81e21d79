"""Models of the user's own: built, refused with clear words, saved and predicted with."""

import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
import tifffile

from tfunet.arguments import check_names
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.models.make import make_model
from tfunet.prediction.options import Options
from tfunet.prediction.run import predict
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training import saving
from tfunet.training.compiled_model import compiled_model

HEAD = "import keras\nimport tensorflow as tf\nfrom keras import layers as L\n"
NET = """
class Net(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.dropout = L.Dropout(0.1)
        self.down, self.up = L.Conv2D(4, 3, strides=2, padding="same"), L.UpSampling2D()
        self.heads = {"last": [L.BatchNormalization(), L.Conv2D(num_classes, 1)]}
    def call(self, image, training=False):
        x = tf.concat([image, self.up(self.down(image))], -1)
        for layer in self.heads["last"]:
            x = layer(x)
        return self.dropout(x, training=training)
"""
# Built by itself, layer by layer, so that nothing needs a call.
BUILT = """
    def build(self, shape):
        self.down.build(shape)
        norm, head = self.heads["last"]
        norm.build((None, None, None, 5))
        head.build((None, None, None, 5))
        self.built = True
"""
# With a train_step of its own that uses a network which call does not reach.
CRITIC = """
class Critic(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.critic = keras.Sequential([L.Conv2D(1, 3)])
        self.second = keras.optimizers.Adam(0.01)
    def train_step(self, data):
        image, mask = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.critic(image) ** 2)
        weights = self.critic.trainable_variables
        self.second.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            loss = self.compute_loss(image, mask, self(image, training=True))
        weights = [*self.down.trainable_variables]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}
"""
BUILD = "def build(*, image_shape, num_classes):\n    return {}(num_classes)\n"
SETTINGS = {
    "data_options": {"num_cases": 5, "size": 32},
    "replica_batch": 2,
    "steps": 2,
    "optimizer": "sgd",
}


def write(folder, text):
    path = folder / "own.py"
    path.write_text(HEAD + text)
    return f"{path}:build"


@pytest.mark.parametrize(
    ("text", "name"),
    [(NET, "Net"), (NET + BUILT, "Net"), (NET + CRITIC, "Critic")],
    ids=["not built", "built by itself", "with a network beside it"],
)
def test_subclass_trains_saves_and_predicts(text, name, tmp_path):
    model = write(tmp_path, text + BUILD.format(name))
    config = RunConfig(model=model, cache_dir=str(tmp_path / "cache"), **SETTINGS)
    run(config, SingleDevice(Launch()), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.model_path() is not None
    image = np.random.default_rng(0).random((40, 48)).astype("float32")
    tifffile.imwrite(tmp_path / "image.tif", image)
    (labels,) = predict(folder.path, [str(tmp_path / "image.tif")], tmp_path / "out", Options())
    assert tifffile.imread(labels).shape == image.shape
    again = make_model(model, image_shape=(32, 32, 1), num_classes=2, options={})
    again.load_weights(folder.model_path())
    with np.load(folder.path / "checkpoint.npz") as file:
        trained = [file[f"variable_{index:05d}"] for index in range(len(again.variables))]
    for variable, value in zip(again.variables, trained, strict=True):
        if any(variable is weight for weight in again.weights):  # Not a state of random numbers.
            np.testing.assert_array_equal(variable.numpy(), value)


class Forgets(keras.layers.Conv2D):
    """It saves nothing."""

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


def test_weights_that_would_be_lost_are_refused_before_the_first_step(tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 1)), Forgets(4, 1), keras.layers.Conv2D(2, 1)])
    before = model.get_weights()
    with pytest.raises(ValueError, match="2 of the model's 4 weights would be lost"):
        saving.file_of(model, RunFolder(tmp_path))
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert list(tmp_path.iterdir()) == []


class NoConfig(keras.layers.Layer):
    """A layer of the user's own without get_config, in a functional model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, image):
        return self.function(image)


def test_layer_without_config_is_found_before_the_first_step(tmp_path):
    image = keras.Input((8, 8, 1))
    model = keras.Model(image, keras.layers.Conv2D(2, 1)(NoConfig(tf.nn.relu)(image)))
    assert saving.file_of(model, RunFolder(tmp_path)) == "model.weights.h5"
    model = keras.Model(image, keras.layers.Conv2D(2, 1)(image))
    assert saving.file_of(model, RunFolder(tmp_path)) == "model.keras"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def build(pretrained_weights=None, input_size=(256, 256, 1)): pass\n",
            r"called as build\(image_shape=\.\.\., num_classes=\.\.\., \*\*options\)",
        ),
        ("def build(image_shape, /, num_classes): pass\n", "takes image_shape and num_classes"),
        ("def build(image_shape, num_classes, depth): pass\n", "needs the option depth"),
        ("def build(**options): return options\n", "returned builtins.dict; it must return"),
        (
            "def build(**options):\n    import tf_keras\n    return tf_keras.Sequential()\n",
            r"returned tf_keras\S*Sequential; it must return a keras.Model of Keras 3",
        ),
        ("build = keras.layers.Conv2D\n", r"the class keras\S*Conv2D; it must be a subclass of"),
        (
            NET.replace("L.UpSampling2D()", "L.Conv2D(1, 9, padding='valid')")
            + BUILD.format("Net"),
            r"by a call on images of shape \(None, 32, 32, 1\), and that failed",
        ),
    ],
)
def test_what_builds_no_model_says_what_is_called_with_what(text, message, tmp_path):
    name = write(tmp_path, text)
    with pytest.raises(ValueError, match=message):
        make_model(name, image_shape=(32, 32, 1), num_classes=2, options={})


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            "(self, g_optimizer, d_optimizer): super().compile()",
            r"compile\(g_optimizer, d_optimize",
        ),
        ("(self, optimizer, loss): super().compile()", r"calls compile\(optimizer=\.\.\., loss="),
        ("(self, optimizer, **other): super().compile('sgd', **other)", "not use the optimizer"),
        ("(self, loss, **other): super().compile(loss='mse', **other)", "not use the loss"),
    ],
)
def test_compile_of_its_own_says_what_is_called_with_what(own, message, tmp_path):
    from tfunet.data.task import open_task
    from tfunet.learning.losses import make

    text = f"class Own(keras.Model):\n    def compile{own}\n"
    text += "def build(*, image_shape, num_classes):\n    i = keras.Input(image_shape)\n"
    text += "    return Own(i, L.Conv2D(num_classes, 1)(i))\n"
    config = RunConfig(model=write(tmp_path, text), **SETTINGS)
    with pytest.raises(ValueError, match=message):
        compiled_model(open_task(config), make("dice", {}))


@pytest.mark.parametrize("how", ["", "model.compile('sgd', 'mse', ['accuracy'])"])
def test_what_a_model_was_compiled_with_is_not_replaced_without_a_word(how, tmp_path):
    from tfunet.data.task import open_task
    from tfunet.learning.losses import make

    text = "def build(*, image_shape, num_classes):\n    i = keras.Input(image_shape)\n"
    text += (
        f"    model = keras.Model(i, L.Conv2D(num_classes, 1)(i))\n    {how}\n    return model\n"
    )
    config = RunConfig(**{**SETTINGS, "model": write(tmp_path, text), "optimizer": "adam"})
    said = []
    model = compiled_model(open_task(config), make("dice", {}), say=said.append)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert len(said) == bool(how)
    assert all(
        "came compiled, with SGD. The run does not use its optimizer" in line for line in said
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("net.h5", "in Keras's old format.* save it with model.save"),
        ("NET.H5", "in Keras's old format"),
        ("net.weights.h5", "holds weights without the model"),
        ("saved", "is a SavedModel"),
        ("net.pb", "cannot be trained here"),
        ("net.onnx", "ONNX"),
        ("net.pth", "PyTorch"),
        ("missing.keras", "does not exist"),
        ("text.keras", "not a .keras file"),
        ("zip.keras", "not what Keras 3 saves"),
        ("old.keras", r"saved by Keras 2\.15\.0 \(tf_keras"),
    ],
)
def test_files_that_are_no_models_of_keras_3_say_so(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").touch()
    (tmp_path / "text.keras").write_text("text")
    for file, members in (
        ("zip.keras", {"a": "b"}),
        ("old.keras", {"metadata.json": json.dumps({"keras_version": "2.15.0"})}),
    ):
        with zipfile.ZipFile(tmp_path / file, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
    with pytest.raises(ValueError, match=message):
        check_names(RunConfig(model=name))


def test_subclass_cannot_be_described(tmp_path, capsys):
    name = write(tmp_path, NET + BUILD.format("Net"))
    assert main(["models", "show", name, "--shape", "32,32,1"]) == 2
    assert "Only functional models" in capsys.readouterr().err
