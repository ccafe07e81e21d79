"""Models of many kinds train with weights and states off the device as they do on it."""

import contextlib
import functools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from homed_training import SMALL_CHUNK, away, chunks_of
from keras import layers
from own_step import Careful

from tfunet.timing.stamps import unordered

IMAGES = np.random.default_rng(0).normal(size=(12, 8, 8, 1)).astype("float32")
TARGETS = (IMAGES[..., 0] > 0).astype("int32")
FIT = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


def compiled(model, optimizer=None, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer or keras.optimizers.Adam(0.01), loss=loss, **options)
    return model


def convolutions(kind=keras.Model, **options):
    image = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu", **options)(image)
    shared = layers.Conv2D(16, 3, padding="same", activation="tanh")
    return kind(image, layers.Conv2D(2, 1)(shared(shared(x))))


def own_step():
    return compiled(convolutions(Careful)), IMAGES, TARGETS


def shared_layers():
    return compiled(convolutions()), IMAGES, TARGETS


class Adversaries(keras.Model):
    """A generator, and a critic that is updated first: the generator's step reads it after."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([layers.Input((4,)), layers.Dense(64), layers.Dense(64)])
        self.critic = keras.Sequential([layers.Input((64,)), layers.Dense(32), layers.Dense(1)])
        self.of_critic = keras.optimizers.Adam(0.01)
        self.of_generator = keras.optimizers.SGD(0.05, momentum=0.9)
        self.built = True

    def call(self, drawn):
        return self.generator(drawn)

    def train_step(self, data):
        drawn, real = data
        with tf.GradientTape() as tape:
            made = self.critic(self.generator(drawn))
            loss = tf.reduce_mean(tf.square(made)) + tf.reduce_mean(
                tf.square(self.critic(real) - 1)
            )
        weights = self.critic.trainable_variables
        self.of_critic.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            other = tf.reduce_mean(tf.square(self.critic(self.generator(drawn)) - 1))
        weights = self.generator.trainable_variables
        self.of_generator.apply(tape.gradient(other, weights), weights)
        return {"loss": loss, "other": other}


def two_optimizers():
    draw = np.random.default_rng(1)
    model = Adversaries()
    model.compile()
    model.of_critic.build(model.critic.trainable_variables)
    model.of_generator.build(model.generator.trainable_variables)
    return model, *(draw.normal(size=(12, size)).astype("float32") for size in (4, 64))


def volumes():
    image = keras.Input((4, 8, 8, 1))
    high = layers.Conv3D(8, 3, padding="same", activation="relu")(image)
    low = layers.Conv3D(16, 3, padding="same", activation="relu")(layers.MaxPooling3D()(high))
    up = layers.Conv3DTranspose(8, 2, strides=2)(low)
    x = layers.Conv3D(8, 3, padding="same", activation="relu")(layers.concatenate([high, up]))
    model = keras.Model(image, layers.Conv3D(2, 1)(x))
    images = np.random.default_rng(0).normal(size=(8, 4, 8, 8, 1)).astype("float32")
    return compiled(model), images, (images[..., 0] > 0).astype("int32")


def mixed(policy):
    keras.config.set_dtype_policy(policy)
    image = keras.Input((40,))
    x = layers.Dense(64, activation="relu")(image)
    model = keras.Model(image, layers.Dense(2, dtype="float32")(x))
    images = np.random.default_rng(0).normal(size=(12, 40)).astype("float32")
    return compiled(model), images, (images[:, 0] > 0).astype("int32")


def frozen_layer():
    model = convolutions()
    model.layers[1].trainable = False
    return compiled(model), IMAGES, TARGETS


def embedding():
    words = keras.Input((6,), dtype="int32")
    x = layers.Embedding(50, 32)(words)
    x = layers.SeparableConv1D(24, 3, padding="same", activation="relu")(x)
    model = keras.Model(words, layers.Dense(2)(layers.Flatten()(x)))
    draw = np.random.default_rng(0)
    return compiled(model), draw.integers(0, 50, (12, 6)), draw.integers(0, 2, 12)


def normalized():
    image = keras.Input((8, 8, 1))
    x = layers.BatchNormalization()(layers.Conv2D(32, 3, padding="same", use_bias=False)(image))
    x = layers.GroupNormalization(4)(layers.Conv2D(32, 3, padding="same")(layers.ReLU()(x)))
    return compiled(keras.Model(image, layers.Conv2D(2, 1)(x))), IMAGES, TARGETS


def constrained():
    limit = keras.constraints.MaxNorm(0.5)
    return compiled(convolutions(kernel_constraint=limit)), IMAGES, TARGETS


def penalized():
    return compiled(convolutions(kernel_regularizer="l2"), "adamw"), IMAGES, TARGETS


def many_steps():
    return compiled(convolutions(), steps_per_execution=3), IMAGES, TARGETS


def several_in_one():
    optimizers = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01))
    optimizers["conv2d.*bias"] = keras.optimizers.SGD(0.1)
    return compiled(convolutions(), keras.optimizers.MultiOptimizer(optimizers)), IMAGES, TARGETS


KINDS = {
    "own train_step": own_step,
    "shared layers": shared_layers,
    "two optimizers": two_optimizers,
    "three dimensions": volumes,
    "mixed_bfloat16": lambda: mixed("mixed_bfloat16"),
    "mixed_float16": lambda: mixed("mixed_float16"),
    "frozen layer": frozen_layer,
    "embedding and separable": embedding,
    "normalized": normalized,
    "constraint": constrained,
    "regularizer": penalized,
    "steps_per_execution": many_steps,
    "MultiOptimizer": several_in_one,
}


def made(kind):
    """Return a model with its optimizers built, images and targets."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model, images, targets = KINDS[kind]()
    if kind != "two optimizers":
        model.optimizer.build(model.trainable_variables)
    return model, images, targets


def optimizers_of(model):
    return [
        each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)
    ] or [model.optimizer]


def state_of(model):
    states = [state for each in optimizers_of(model) for state in each.variables]
    return [variable.numpy() for variable in (*model.variables, *states)]


def fitted(kind, way=None, place="host", folder=None):
    """Return what a fit gave: its losses, weights, states and predictions."""
    model, images, targets = made(kind)
    context = contextlib.nullcontext()
    if way is not None:
        context = away(way, place, folder, model.trainable_variables, *optimizers_of(model))
    with chunks_of(SMALL_CHUNK), context:
        history = model.fit(images, targets, **FIT).history
        predicted = model.predict(images, batch_size=4, verbose=0)
        return [*map(np.array, history.values()), predicted, *state_of(model)]


plain = functools.cache(fitted)


@pytest.mark.parametrize("way", ["weights", "weights in chunks", "states in chunks"])
@pytest.mark.parametrize("kind", KINDS)
def test_fit_is_that_of_plain_keras(kind, way, tmp_path):
    place = "both" if way == "weights in chunks" else "host"
    for found, expected in zip(fitted(kind, way, place, tmp_path), plain(kind), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.fixture
def homed(tmp_path):
    """A model with weights and states off the device, updated in chunks."""
    model, *_ = made("normalized")
    context = away(
        "weights in chunks", "both", tmp_path, model.trainable_variables, model.optimizer
    )
    with chunks_of(SMALL_CHUNK), context:
        yield model


def on_device():
    """Return the same model on the device."""
    return made("normalized")[0]


def assert_same(model, other):
    for found, expected in zip(state_of(model), state_of(other), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_weights_are_given_and_taken(homed):
    other = on_device()
    homed.fit(IMAGES, TARGETS, **FIT)
    other.set_weights(homed.get_weights())
    for found, expected in zip(other.get_weights(), homed.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    homed.set_weights([2 * weight for weight in other.get_weights()])
    np.testing.assert_array_equal(homed.get_weights()[0], 2 * other.get_weights()[0])
    assert homed.count_params() == other.count_params()
    homed.summary(print_fn=lambda text: None)


def test_saved_models_and_weights_are_those_of_a_device(homed, tmp_path):
    other = on_device()
    for model, name in ((homed, "homed"), (other, "other")):
        model.fit(IMAGES, TARGETS, **FIT)
        model.save(tmp_path / f"{name}.keras")
        model.save_weights(tmp_path / f"{name}.weights.h5")
    assert_same(keras.saving.load_model(tmp_path / "homed.keras"), other)
    homed.fit(IMAGES, TARGETS, **FIT)
    homed.load_weights(tmp_path / "other.weights.h5")
    assert_same(homed, other)
    homed.fit(IMAGES, TARGETS, **FIT)
    other.fit(IMAGES, TARGETS, **FIT)
    assert_same(homed, other)


def test_callbacks_keep_and_restore_weights(homed, tmp_path):
    other = on_device()
    for model, name in ((homed, "homed"), (other, "other")):
        kept = str(tmp_path / (name + "-{epoch}.keras"))
        callbacks = [
            keras.callbacks.ModelCheckpoint(kept),
            # Each epoch is worse: the first one's weights come back.
            keras.callbacks.EarlyStopping(
                "loss", mode="max", patience=2, restore_best_weights=True
            ),
        ]
        model.fit(IMAGES, TARGETS, **(FIT | {"epochs": 5}), callbacks=callbacks)
    assert_same(homed, other)
    first = keras.saving.load_model(tmp_path / "homed-1.keras")
    for found, expected in zip(homed.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len([*tmp_path.glob("homed-*.keras")]) == 3


def test_two_updates_of_one_optimizer_in_a_step_follow_each_other(tmp_path):
    def trained(context):
        keras.utils.set_random_seed(1)
        weight = keras.Variable(np.ones((2, SMALL_CHUNK)), name="weight")
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build([weight])

        @tf.function(autograph=False)
        def step():
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.sin(weight.value))
                optimizer.apply(tape.gradient(loss, [weight.value]), [weight])
            return tf.reduce_sum(weight.value)

        with context([weight], optimizer):
            return [step().numpy() for _ in range(3)], weight.numpy()

    expected, weight = trained(lambda *_: contextlib.nullcontext())
    with chunks_of(SMALL_CHUNK):
        context = functools.partial(away, "weights in chunks", "both", tmp_path)
        found, homed_weight = trained(context)
    np.testing.assert_array_equal(homed_weight, weight)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("way", ["weights", "weights in chunks"])
def test_what_is_read_before_an_update_is_the_old_value_however_late(way, tmp_path):
    weight = keras.Variable(np.ones(2 * SMALL_CHUNK), name="weight")
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([weight])

    def wait():
        time.sleep(0.3)
        return np.int32(0)

    @tf.function(autograph=False)
    def step():
        waited = tf.numpy_function(wait, [], tf.int32)
        with tf.control_dependencies([unordered(waited.op)]):
            before = tf.reduce_sum(weight.value)
        optimizer.apply([tf.ones(2 * SMALL_CHUNK)], [weight])
        return before, tf.reduce_sum(weight.value)

    with chunks_of(SMALL_CHUNK), away(way, "host", tmp_path, [weight], optimizer):
        before, after = step()
    assert (float(before), float(after)) == (2 * SMALL_CHUNK, SMALL_CHUNK)


def test_what_a_branch_writes_is_read_after_it_however_late(tmp_path):
    weight = keras.Variable(np.ones(4), name="weight")

    @tf.function(autograph=False)
    def step(is_written):
        def write():
            waited = tf.numpy_function(lambda: time.sleep(0.3) or np.int32(0), [], tf.int32)
            waited.set_shape([])
            weight.assign(2 * tf.ones(4) + tf.cast(waited, "float32"))
            return 0

        tf.cond(is_written, write, lambda: 0)
        return tf.reduce_sum(weight.value)

    with away("weights", "host", tmp_path, [weight]):
        assert [float(step(tf.constant(on))) for on in (False, True)] == [4, 8]
