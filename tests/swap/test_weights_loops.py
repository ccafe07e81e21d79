"""Weights off the device train as ever in loops, in eager steps, and with late optimizers."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.swap import LargeModelSupport

DRAW = np.random.default_rng(0)
WORDS = DRAW.integers(0, 100, (16, 6))
IMAGES = DRAW.normal(size=(16, 64)).astype("float32")
TRUTH = (IMAGES[:, 0] > 0).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
FIT = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


class Repeated(layers.Layer):
    def build(self, _):
        self.kernel = self.add_weight(shape=(64, 64))

    def call(self, x):
        return tf.while_loop(lambda at, _: at < 3, self.again, [0, x])[1]

    def again(self, at, x):
        plain, turned = (
            (lambda: x @ self.kernel.value),
            (lambda: x @ tf.transpose(self.kernel.value)),
        )
        return at + 1, tf.tanh(tf.cond(tf.reduce_sum(x) > 0, plain, turned))


class Thrice(keras.Model):
    """Trains three times in a loop."""

    def train_step(self, data):
        images, truth = data

        def again(at, _):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(images, truth, self(images, training=True))
            trained = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, trained), trained)
            return at + 1, loss

        return {"loss": tf.while_loop(lambda at, _: at < 3, again, [0, 0.0])[1]}


class Late(keras.Model):
    """Its second optimizer is built in the first step."""

    def train_step(self, data):
        images, truth = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(images, truth, self(images, training=True))
        trained = self.trainable_variables
        gradients = tape.gradient(loss, trained)
        self.optimizer.apply(gradients[:2], trained[:2])
        self.other.apply(gradients[2:], trained[2:])
        return {"loss": loss}


def recurrent():
    words = keras.Input((6,), dtype="int32")
    x = layers.GRU(32, reset_after=False)(layers.Embedding(100, 64)(words))
    return keras.Model(words, layers.Dense(2)(x)), WORDS


def repeated():
    image = keras.Input((64,))
    return keras.Model(image, layers.Dense(2)(Repeated()(image))), IMAGES


def thrice():
    image = keras.Input((64,))
    return Thrice(image, layers.Dense(2)(layers.Dense(64)(image))), IMAGES


def late():
    image = keras.Input((64,))
    model = Late(image, layers.Dense(2)(layers.Dense(64)(layers.Dense(64)(image))))
    model.other = keras.optimizers.RMSprop(0.01)
    return model, IMAGES


def support(weights):
    return LargeModelSupport("1GiB", weights=weights, threshold_bytes=1024, verbose=0)


def compiled(make):
    keras.utils.set_random_seed(1)
    model, inputs = make()
    model.compile(keras.optimizers.Adam(0.01), LOSS)
    trained = model.trainable_variables
    model.optimizer.build(trained[:2] if make is late else trained)
    return model, inputs


@pytest.mark.parametrize("make", [recurrent, repeated, thrice, late])
def test_fit_is_as_ever(make):
    found = []
    for callbacks in ([], [support("weights")]):
        model, inputs = compiled(make)
        model.fit(inputs, TRUTH, callbacks=callbacks, **FIT)
        found.append(model.get_weights())
    for plain, other in zip(*found, strict=True):
        # TensorFlow adds up the gradients of a loop and a branch in another order.
        np.testing.assert_allclose(plain, other, rtol=0, atol=1e-6 if make is repeated else 0)


@pytest.mark.parametrize("weights", ["state", "weights"])
def test_eager_steps_are_as_ever(weights):
    found = []
    for helper in (None, support(weights)):
        model, images = compiled(wide)
        with helper.on(model) if helper else contextlib.nullcontext():
            eager_step(model, images)
        eager_step(model, images)  # What left stays off the device.
        found.append(model.get_weights())
    for plain, other in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, other)


def wide():
    image = keras.Input((64,))
    return keras.Model(image, layers.Dense(2)(layers.Dense(64)(image))), IMAGES


def eager_step(model, images):
    with tf.GradientTape() as tape:
        loss = LOSS(TRUTH, model(images, training=True))
    trained = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, trained), trained)


class InFunction(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4), name="kernel")

    @tf.function
    def call(self, x):
        return tf.matmul(x, self.kernel)


def test_weight_that_a_function_of_a_layer_reads_is_refused():
    support = LargeModelSupport("1GiB", weights="weights", threshold_bytes=16, verbose=0)
    with support.making():
        image = keras.Input((8,))
        model = keras.Model(image, layers.Dense(4)(InFunction()(image)))
    model.compile("adam", "mse")
    x = np.ones((4, 8), "float32")
    with pytest.raises(ValueError, match="so that it has no gradient"):
        model.fit(x, x[:, :4], verbose=0, callbacks=[support])


class Mapped(keras.layers.Layer):
    def __init__(self, way, **options):
        super().__init__(**options)
        self.way = way

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, x):
        def row(given):
            kernel = before if self.way == "before" else tf.convert_to_tensor(self.kernel)
            return tf.linalg.matvec(kernel, given)

        before = tf.convert_to_tensor(self.kernel) if self.way == "before" else None
        if self.way == "within":
            return tf.map_fn(lambda given: tf.vectorized_map(row, given[None])[0], x)
        return tf.vectorized_map(row, x)


@pytest.mark.parametrize("way", ["alone", "within", "before"])
def test_weight_that_is_read_for_all_elements_at_once_has_a_gradient_or_is_refused(way):
    found = []
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    for weights in ("none", "weights"):
        keras.utils.set_random_seed(1)
        image = keras.Input((8,))
        model = keras.Model(image, layers.Dense(4)(Mapped(way)(image)))
        model.compile("sgd", "mse")
        support = LargeModelSupport("1GiB", weights=weights, threshold_bytes=16, verbose=0)
        is_refused = weights == "weights" and way != "before"
        refused = pytest.raises(ValueError, match="leaves it without a gradient")
        with refused if is_refused else contextlib.nullcontext():
            model.fit(x, x[:, :4], verbose=0, callbacks=[support])
        found.append(model.get_weights())
    if way == "before":
        for plain, other in zip(*found, strict=True):
            np.testing.assert_array_equal(plain, other)
