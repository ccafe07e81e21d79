"""Which activations and layers treat each pixel alone, and whose code a layer runs."""

from functools import partial

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from tfunet.geometry.kinds import is_own, kind_of
from tfunet.geometry.pointwise import has_pointwise_activation


def centred(x):
    return x - ops.mean(x, axis=(1, 2), keepdims=True)


@keras.saving.register_keras_serializable(package="tests")
def doubled(x):
    return 2 * x


class Scaled:
    """A callable that cannot be a key of a table."""

    __hash__ = None

    def __eq__(self, other):
        return self is other

    def __call__(self, x):
        return x / (1 + ops.abs(x))


@pytest.mark.parametrize(
    ("activation", "is_pointwise"),
    [
        (None, True),
        ("relu", True),
        ("softmax", True),
        (keras.activations.gelu, True),
        (doubled, True),
        (keras.saving.serialize_keras_object(doubled), True),
        (ops.relu, True),
        (ops.softmax, True),
        (tf.nn.silu, True),
        (lambda x: ops.log(x), True),  # Some values have no logarithm.
        (partial(keras.activations.leaky_relu, negative_slope=0.3), True),
        (Scaled(), True),
        (layers.LeakyReLU(0.1), True),
        (layers.Softmax(), True),
        (layers.PReLU(shared_axes=[1, 2]), True),
        (layers.Activation(doubled), True),
        (centred, False),
        (lambda x: centred(x), False),
        (partial(keras.activations.softmax, axis=1), False),
        (lambda x: ops.softmax(x, axis=2), False),
        (lambda x: ops.roll(x, 8, axis=1), False),
        (lambda x: ops.flip(x, axis=2), False),
        (lambda x: ops.average_pool(x, 3, 1, padding="same"), False),
        (lambda x: x - ops.mean(x, axis=0), False),  # over samples
        (lambda x: x + keras.random.uniform(ops.shape(x)), False),
        (lambda x: x * ops.reshape(ops.arange(12, dtype=x.dtype), (1, 12, 1, 1)), False),
        (lambda x: 1 / 0, False),
        (layers.Softmax(axis=1), False),
        (layers.Softmax(axis=[1, 2]), False),
        (layers.PReLU(), False),
        (layers.Dropout(0.5), False),
        (layers.Activation(centred), False),
    ],
)
@pytest.mark.parametrize("layer", [partial(layers.Conv2D, 4, 3), layers.Activation])
def test_what_is_not_known_of_an_activation_is_tried(layer, activation, is_pointwise):
    made = layer(activation=activation)
    made(keras.Input((14 if layer is not layers.Activation else 12, 11, 4)))
    assert has_pointwise_activation(made) == is_pointwise


@pytest.mark.parametrize("kind", ["graph", "strategy", "stateless", "float64"])
def test_an_activation_is_tried_apart_from_what_is_traced(kind, request):
    if kind == "float64":
        request.getfixturevalue("float64")
    layer = layers.Activation(lambda x: 2 * x)
    layer(keras.Input((8, 8, 2)))
    asked = []
    if kind == "graph":
        tf.function(lambda: asked.append(has_pointwise_activation(layer)), autograph=False)()
    elif kind == "strategy":
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope(), tf.Graph().as_default():
            asked.append(has_pointwise_activation(layer))
    else:
        with keras.StatelessScope():
            asked.append(has_pointwise_activation(layer))
    assert asked == [True]


def test_an_activation_is_tried_once():
    calls = []

    def function(x):
        calls.append(x)
        return 2 * x

    for _ in range(2):
        layer = layers.Activation(function)
        layer(keras.Input((8, 8, 2)))
        calls.clear()
        assert has_pointwise_activation(layer)
    assert not calls


class Down(layers.Conv2D):
    """Only other defaults."""

    def __init__(self, filters, **options):
        super().__init__(filters, 3, strides=2, padding="same", **options)

    def described(self):
        return "down"

    def get_config(self):
        return super().get_config()


class Deeper(Down):
    pass


class Standardized(layers.Conv2D):
    def call(self, inputs):
        return centred(super().call(inputs))


class Flipped(layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, ops.flip(kernel, 0))


class Fixed(layers.Conv2D):
    @property
    def kernel(self):
        return ops.ones((3, 3, 4, 2))


class Mixed:
    def call(self, inputs):
        return inputs


class MixedPooling(Mixed, layers.MaxPooling2D):
    pass


def replaced(layer):
    layer.call = lambda inputs: inputs
    return layer


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (layers.Conv2D(2, 3), layers.Conv2D),
        (Down(2), layers.Conv2D),
        (Deeper(2), layers.Conv2D),
        (Standardized(2, 3), object),
        (Flipped(2, 3), object),
        (Fixed(2, 3), object),
        (MixedPooling(), object),
        (replaced(layers.ReLU()), object),
    ],
)
def test_a_subclass_that_overrides_nothing_is_its_base(layer, kind):
    assert kind_of(layer) is kind
    assert is_own(layer, "call") == (kind is object and not isinstance(layer, Flipped | Fixed))
