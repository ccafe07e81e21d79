"""Every optimizer of Keras gives the same bits with its states, and weights, off the device."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from homed_training import SMALL_CHUNK, WAYS, away, chunks_of
from keras import layers, optimizers

# Those that hand variables to other ones: tests/state/test_homed_models.py.
WRAPPERS = {optimizers.Optimizer, optimizers.LossScaleOptimizer, optimizers.MultiOptimizer}
KINDS = {
    name: kind
    for name, kind in vars(optimizers).items()
    if inspect.isclass(kind) and issubclass(kind, optimizers.Optimizer) and kind not in WRAPPERS
}
STEPS = 5


def schedule():
    return optimizers.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)


RATE = tf.Variable(0.0, trainable=False)  # What a rate that is called returns, changed by steps.


OPTIONS = {
    "SGD momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "SGD nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "RMSprop centered": lambda: optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    "Adam decay": lambda: optimizers.Adam(0.01, weight_decay=0.05),
    "AdamW ema": lambda: optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.7),
    "SGD ema overwrites": lambda: optimizers.SGD(
        0.05, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2
    ),
    "Lamb ema": lambda: optimizers.Lamb(0.01, use_ema=True, ema_overwrite_frequency=3),
    "Adam clipvalue": lambda: optimizers.Adam(0.01, clipvalue=0.01),
    "SGD clipnorm": lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05),
    "Adam global_clipnorm": lambda: optimizers.Adam(0.01, global_clipnorm=0.05),
    "Adam schedule": lambda: optimizers.Adam(schedule()),
    "Lion called rate": lambda: optimizers.Lion(lambda: 1 * RATE),
    "Ftrl penalties": lambda: optimizers.Ftrl(
        0.05, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.01
    ),
    "Adam accumulates": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
}


def excluded_by_name(model):
    made = optimizers.AdamW(0.05, weight_decay=0.5)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


def excluded_by_variable(model):
    made = optimizers.SGD(0.05, weight_decay=0.5, momentum=0.9)
    made.exclude_from_weight_decay(var_list=[model.weights[0]])
    return made


MAKES = {
    **{name: lambda model, kind=kind: kind(0.05) for name, kind in KINDS.items()},
    **{name: lambda model, make=make: make() for name, make in OPTIONS.items()},
    "AdamW but for names": excluded_by_name,
    "SGD but for a variable": excluded_by_variable,
    "Adam assigned rate": lambda model: optimizers.Adam(0.05),
}


def trained(name, context):
    """Return weights, states and predictions after a few steps."""
    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    # A kernel of a chunk and a part of one.
    x = layers.Dense(30, activation="tanh", kernel_regularizer="l2")(image := keras.Input((40,)))
    model = keras.Model(image, layers.Dense(3)(x))
    optimizer = MAKES[name](model)
    optimizer.build(model.trainable_variables)
    draw = np.random.default_rng(0)
    inputs = tf.constant(draw.normal(size=(STEPS, 8, 40)), tf.float32)
    targets = tf.constant(draw.integers(0, 3, (STEPS, 8)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(autograph=False)
    def step(image, target):
        with tf.GradientTape() as tape:
            total = loss(target, model(image, training=True)) + tf.add_n(model.losses)
        optimizer.apply(tape.gradient(total, model.trainable_variables))

    with chunks_of(SMALL_CHUNK), context(model.trainable_variables, optimizer):
        for number in range(STEPS):
            RATE.assign(0.05 / (1 + number))
            if name == "Adam assigned rate":
                optimizer.learning_rate = 0.05 / (1 + number)
            step(inputs[number], targets[number])
        predicted = model(inputs[0]).numpy()
        optimizer.finalize_variable_values(model.trainable_variables)
        kept = [variable.numpy() for variable in (*model.weights, *optimizer.variables)]
    return [predicted, *kept]


@functools.cache
def plain(name):
    class Nothing:
        def __init__(self, *args):
            pass

        __enter__ = __exit__ = lambda *args: None

    return trained(name, Nothing)


# What TensorFlow's optimizer multiplies in another order where a weight comes from the host, as it
# does for no reason to be seen: Muon's (rate * update * sqrt(width) * 0.2).
REORDERED = {("Muon", "weights"), ("Muon", "weights in chunks")}


@pytest.fixture
def products_as_written():
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})


PLACES = dict(zip(WAYS, ("host", "both", "both", "disk"), strict=True))


# With weights away, states are, too: the classes go through all.
@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in MAKES for way in WAYS if name in KINDS or way != "states"],
)
def test_bits_are_those_of_plain_training(name, way, tmp_path):
    found = trained(name, functools.partial(away, way, PLACES[way], tmp_path))
    for expected, value in zip(plain(name), found, strict=True):
        if (name, way) in REORDERED:
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-5)
        else:
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(("name", "way"), sorted(REORDERED))
@pytest.mark.usefixtures("products_as_written")
def test_bits_are_the_same_where_products_are_not_reordered(name, way, tmp_path):
    found = trained(name, functools.partial(away, way, "both", tmp_path))
    for expected, value in zip(plain.__wrapped__(name), found, strict=True):
        np.testing.assert_array_equal(value, expected)


MIXED = ("Nadam", "AdamW ema", "SGD ema overwrites", "Lamb ema", "AdamW but for names", "Muon")


@pytest.mark.parametrize("name", MIXED)
def test_bits_are_the_same_where_small_weights_stay(name, tmp_path):
    context = functools.partial(away, "states in chunks", "both", tmp_path, least=1000)
    for expected, value in zip(plain(name), trained(name, context), strict=True):
        np.testing.assert_array_equal(value, expected)
