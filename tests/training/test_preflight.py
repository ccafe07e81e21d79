import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.learning import losses
from tfunet.learning.outputs import ClassOutputs, RegionOutputs
from tfunet.learning.region_loss import RegionLoss
from tfunet.models.make import make_model
from tfunet.training import preflight

IMAGE = np.random.default_rng(0).normal(size=(1, 8, 8, 1)).astype("float32")
MASK = np.zeros((1, 8, 8), "int32")


def net(*layers):
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


def look(model, loss="dice", num_classes=3, outputs=None, **options):
    return preflight.inspect(
        model,
        losses.make(loss, options),
        image=IMAGE,
        truth=MASK,
        outputs=outputs or ClassOutputs(num_classes=num_classes),
    )


def conv(channels=3, **options):
    return keras.layers.Conv2D(channels, 3, **{"padding": "same", **options})


class OwnError(keras.layers.Layer):
    """Fails with a reason that Keras wraps in words of its own."""

    def call(self, image):
        raise ValueError("its own reason")

    def compute_output_spec(self, image):
        return keras.KerasTensor(image.shape)


def test_sound_model_is_reported():
    checked = look(net(conv(), keras.layers.BatchNormalization()))
    assert checked.parameters == 30 + 12
    assert checked.trainable_parameters == 30 + 6
    assert checked.output_shape == (8, 8, 3)
    assert "42 parameters" in str(checked)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: net(conv(padding="valid")), "must have the shape of the masks"),
        (
            lambda: net(keras.layers.Flatten(), keras.layers.Dense(3)),
            r"gives 3 numbers for a sample, and the data set has masks of shape \(8, 8\)",
        ),
        (lambda: net(conv(4)), "4 channels; the data has 3 classes"),
        (lambda: net(conv(1)), "1 channels; the data has 3 classes"),
        (lambda: net(conv(activation="softmax")), "activation 'softmax'"),
        (lambda: net(conv(), keras.layers.Softmax()), "looks like probabilities"),
        (lambda: net(conv(), keras.layers.Activation("sigmoid")), "activation 'sigmoid'"),
        (lambda: net(conv(dtype="mixed_float16")), "float16; the loss needs float32"),
        (lambda: net(conv(trainable=False)), "nothing to train"),
        (lambda: net(conv(bias_initializer=keras.initializers.Constant(np.nan))), "NaN"),
        (
            lambda: keras.Sequential([keras.Input((8, 8, 2)), conv()]),
            r"cannot take a batch of shape \(1, 8, 8, 1\)",
        ),
        (lambda: net(OwnError(), conv()), r"batch of shape .*: its own reason\. Set patch"),
    ],
)
def test_model_that_would_train_wrongly_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        look(model())


def gated(channels, **options):
    """A gate, which is a sigmoid, on the features."""
    entry = keras.Input((8, 8, 1))
    x = conv(4)(entry)
    return keras.Model(entry, conv(channels, **options)(x * conv(1, activation="sigmoid")(x)))


class GateLast(keras.Model):
    """The layer that it lists last is not the one that makes its output."""

    def __init__(self):
        super().__init__()
        self.head = conv()
        self.gate = conv(1, activation="sigmoid")

    def call(self, image):
        return self.head(image * self.gate(image))


class OwnFunction(keras.Model):
    """Its call is a function of TensorFlow's."""

    def __init__(self, activation):
        super().__init__()
        self.head, self.activation = conv(), activation

    @tf.function
    def call(self, image):
        return self.activation(self.head(image))


def built(model):
    model(IMAGE)
    return model


def last_op(operation, channels=3, **options):
    entry = keras.Input((8, 8, 1))
    return keras.Model(entry, operation(conv(channels, **options)(entry)))


ZEROS = {"kernel_initializer": "zeros"}


@pytest.mark.parametrize(
    "model",
    [
        lambda: built(GateLast()),
        lambda: gated(3),
        lambda: net(conv(1, **ZEROS)),
        lambda: net(conv(1, **ZEROS), keras.layers.Activation("linear", dtype="float32")),
        lambda: net(conv(1, **ZEROS), keras.layers.Cropping2D(0), keras.layers.Reshape((8, 8, 1))),
        # A deep supervision: a sum of logits.
        lambda: last_op(lambda x: x + keras.ops.flip(x, 1), 1, **ZEROS),
        # Activations that are known, and no probabilities, with values in 0..1.
        lambda: net(
            conv(1, kernel_initializer=keras.initializers.Constant(1e-3)), keras.layers.ReLU()
        ),
        lambda: built(OwnFunction(lambda logits: logits)),
    ],
)
def test_logits_are_told_from_probabilities_by_what_makes_them(model):
    model = model()
    look(model, num_classes=2 if model(IMAGE).shape[-1] == 1 else 3)


@pytest.mark.parametrize(
    "model",
    [
        lambda: built(OwnFunction(keras.ops.softmax)),
        lambda: last_op(lambda x: keras.ops.softmax(keras.ops.cast(x, "float32")) + 0.0),
        lambda: last_op(lambda x: 0.5 * (keras.ops.softmax(x) + keras.ops.softmax(2 * x))),
        lambda: last_op(
            lambda x: keras.ops.exp(x) / keras.ops.sum(keras.ops.exp(x), -1, keepdims=True)
        ),
        lambda: last_op(keras.ops.hard_sigmoid, 1),
        lambda: net(conv(2), keras.layers.Softmax(), keras.layers.UpSampling2D(1)),
        lambda: net(conv(strides=2), keras.layers.Softmax(), keras.layers.UpSampling2D(2)),
    ],
)
def test_probabilities_are_refused_however_they_are_made(model):
    model = model()
    channels = model(IMAGE).shape[-1]
    with pytest.raises(ValueError, match="looks like probabilities"):
        look(model, num_classes=max(2, channels))


def test_model_with_two_outputs_is_refused():
    entry = keras.Input((8, 8, 1))
    model = keras.Model(entry, [conv()(entry), conv()(entry)])
    with pytest.raises(ValueError, match="one tensor of logits"):
        look(model)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("SparseCategoricalCrossentropy", {}, "from_logits = true"),
        ("dice", {"reduction": "sum"}, "reduction"),
        ("Dice", {}, "one-hot masks"),
    ],
)
def test_loss_that_misreads_the_output_is_refused(loss, options, message):
    with pytest.raises(ValueError, match=message):
        look(net(conv()), loss, **options)


REGIONS = RegionOutputs(regions={"whole": (1, 2), "core": (2,)})


def look_at_regions(model, each):
    loss = RegionLoss(each, list(REGIONS.regions.values()), num_classes=3)
    return preflight.inspect(model, loss, image=IMAGE, truth=MASK, outputs=REGIONS)


def test_a_network_of_regions_has_a_logit_for_each():
    binary = keras.losses.BinaryCrossentropy(from_logits=True)
    for each in (losses.make("dice", {}), binary):
        assert look_at_regions(net(conv(2)), each).output_shape == (8, 8, 2)


@pytest.mark.parametrize(
    ("channels", "activation", "each", "message"),
    [
        (3, None, losses.make("dice", {}), r"3 channels; the data has 2 regions \(whole, core\)"),
        (2, "sigmoid", losses.make("dice", {}), "looks like probabilities"),
        (2, None, losses.make("dice", {"reduction": "sum"}), "reduction"),
        (2, None, keras.losses.BinaryCrossentropy(), "from_logits = true"),
        (2, None, keras.losses.MeanSquaredError(), "compares numbers"),
    ],
)
def test_what_does_not_fit_regions_is_refused(channels, activation, each, message):
    with pytest.raises(ValueError, match=message):
        look_at_regions(net(conv(channels, activation=activation)), each)


def test_sigmoids_of_regions_are_told_by_their_values_too():
    model = last_op(keras.ops.hard_sigmoid, 2)
    with pytest.raises(ValueError, match="looks like probabilities"):
        look_at_regions(model, losses.make("dice", {}))


def test_a_loss_that_mixes_regions_and_samples_is_refused():
    with pytest.raises(ValueError, match="a value for each sample"):
        look_at_regions(net(conv(2)), OwnLoss(lambda true, predicted: keras.ops.mean(predicted)))
    mixing = OwnLoss(lambda true, predicted: keras.ops.mean(predicted, (1, 2, 3)) / true.shape[0])
    with pytest.raises(ValueError, match="in a batch of two"):
        look_at_regions(net(conv(2)), mixing)


def test_loss_that_mixes_samples_is_refused():
    class OneNumber(keras.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.mean(y_pred)

    with pytest.raises(ValueError, match="a value for each sample"):
        preflight.inspect(
            net(conv()), OneNumber(), image=IMAGE, truth=MASK, outputs=ClassOutputs(num_classes=3)
        )


def test_saved_model_is_loaded_and_code_in_it_is_not_run(tmp_path):
    net(conv()).save(tmp_path / "net.keras")
    known = {"image_shape": (8, 8, 1), "num_classes": 3, "options": {}}
    model = make_model(str(tmp_path / "net.keras"), **known)
    assert look(model).parameters == 30
    net(conv(), keras.layers.Lambda(lambda x: x * 2)).save(tmp_path / "unsafe.keras")
    with pytest.raises(ValueError, match="cannot be loaded"):
        make_model(str(tmp_path / "unsafe.keras"), **known)
    with pytest.raises(ValueError, match="does not exist"):
        make_model("missing.keras", **known)
    with pytest.raises(ValueError, match="no options"):
        make_model(str(tmp_path / "net.keras"), **{**known, "options": {"filters": 2}})


# TensorFlow counts a CPU's memory under a cap only, which a process has from its start.
PEAK = """
import numpy as np, tensorflow as tf, keras
from tfunet.learning import losses
from tfunet.learning.outputs import ClassOutputs
from tfunet.training import preflight
size, channels, depth = 64, 16, 12
image = keras.Input((size, size, 1))
x = image
for _ in range(depth):
    x = keras.layers.Conv2D(channels, 1)(x)
model = keras.Model(image, keras.layers.Conv2D(2, 1)(x))
begun = tf.config.experimental.get_memory_info("CPU:0")["current"]
preflight.inspect(
    model,
    losses.make("dice", {}),
    image=np.random.default_rng(0).normal(size=(8, size, size, 1)).astype("float32"),
    truth=np.zeros((8, size, size), "int32"),
    outputs=ClassOutputs(num_classes=2),
)
peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - begun
print(peak / (8 * size * size * channels * 4))
"""


@pytest.mark.multiprocess
def test_outputs_of_layers_are_not_all_held_at_once():
    capped = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "1024"}
    ended = subprocess.run(
        [sys.executable, "-c", PEAK],
        env={**os.environ, **capped},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    # In units of the output of one of its twelve layers.
    assert float(ended.stdout) < 6


class OwnLoss(keras.Loss):
    def __init__(self, compute):
        super().__init__(name="own")
        self.compute = compute

    def call(self, y_true, y_pred):
        return self.compute(y_true, y_pred)


def overlap(true, predicted):
    """Soft Dice of each sample, of arrays whose shapes should agree."""
    axes = tuple(range(1, len((true * predicted).shape)))
    return 1 - keras.ops.sum(true * keras.ops.sigmoid(predicted), axes)


TRUTH = np.random.default_rng(1).integers(0, 2, MASK.shape)


def look_at_loss(compute, channels=1):
    model = net(conv(channels))
    return preflight.inspect(
        model, OwnLoss(compute), image=IMAGE, truth=TRUTH, outputs=ClassOutputs(num_classes=2)
    )


@pytest.mark.parametrize(
    "compute",
    [
        lambda true, predicted: overlap(true, predicted[..., 0]),
        lambda true, predicted: overlap(true[..., None], predicted),
        lambda true, predicted: keras.ops.square(true - predicted[..., 0]),
        lambda true, predicted: keras.random.uniform((true.shape[0],)),
    ],
)
def test_a_loss_of_each_sample_alone_passes(compute):
    look_at_loss(compute)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        # One mask (1, 8, 8) times logits (1, 8, 8, 1) is (1, 8, 8, 8): no error, another loss.
        (overlap, r"cannot be computed for y_true \(1, 8, 8\) and y_pred \(1, 8, 8, 1\)"),
        (
            lambda true, predicted: keras.ops.mean(true * predicted, (1, 2, 3)),
            "cannot be computed for",
        ),
        (
            lambda true, predicted: keras.ops.mean(predicted, (1, 2, 3)) / keras.ops.sum(true),
            "gives a sample .* alone and .* in a batch of two",
        ),
        (
            lambda true, predicted: keras.ops.square(predicted - keras.ops.mean(predicted, 0)),
            "gives a sample 0 alone",
        ),
        (lambda true, predicted: keras.ops.matmul(true, predicted), "cannot be computed for"),
        (lambda true, predicted: keras.ops.mean(predicted), r"gives the shape \(\) for 1 samples"),
    ],
)
def test_a_loss_that_mixes_samples_is_refused(compute, message):
    with pytest.raises(ValueError, match=message):
        look_at_loss(compute)


@pytest.mark.parametrize(
    ("name", "options", "channels", "message"),
    [
        ("MeanSquaredError", {}, 1, "compares numbers, and the model gives logits"),
        ("MeanAbsoluteError", {}, 2, "compares numbers"),
        ("Huber", {}, 1, "compares numbers"),
        ("SparseCategoricalCrossentropy", {"from_logits": True}, 1, "a logit for each of 2 class"),
        ("BinaryCrossentropy", {"from_logits": True}, 2, "cannot be computed for y_true"),
    ],
)
def test_a_loss_of_keras_that_does_not_fit_the_logits_is_refused(name, options, channels, message):
    with pytest.raises(ValueError, match=message):
        look(net(conv(channels)), name, 2, **options)
