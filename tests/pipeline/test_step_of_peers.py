"""The tests of torchgpipe and PyTorch, on stages."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from staged_models import orders_of
from staged_step import StagedStep

from tfunet.pipeline.network import read_network
from tfunet.pipeline.schedules import gpipe, one_f_one_b

pytestmark = pytest.mark.usefixtures("float64", "seeded")


# torchgpipe's test of a skip from the first to the third of three convolutions, in three
# micro-batches, and PyTorch's of a perceptron, which its 1F1B cannot run with a skip.
@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2]])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_skip_over_any_cut(cuts, recompute):
    image = keras.Input((6, 6, 3))
    first = layers.Conv2D(3, 1)(image)
    second = layers.Conv2D(3, 1)(first)
    model = keras.Model(image, layers.Conv2D(3, 1)(layers.Add()([second, first])))
    images = tf.random.normal((3, 6, 6, 3), dtype="float64")

    def square(_, output):
        return tf.reduce_mean(output**2)

    network = read_network(model)
    step = StagedStep(network, [0, *cuts, 4])
    for schedule in (gpipe, one_f_one_b):
        orders = schedule(len(cuts) + 1, 3)
        value, pairs = step.run(orders, [images], images, square, recompute=recompute)
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            expected = square(None, model(images, training=True))
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        gradients = tape.gradient(expected, variables)
        for (_, found), known in zip(pairs, gradients, strict=True):
            np.testing.assert_allclose(found, known, rtol=0, atol=1e-12)


# torchgpipe's test of transparency: layers of 1, 2, 4, 2 and 1 units, 8 samples, 4 micro-batches.
def test_a_chain_of_dense_layers_is_the_same_in_stages():
    numbers = keras.Input((1,))
    x = numbers
    for width in (2, 4, 2, 1):
        x = layers.Dense(width)(x)
    model = keras.Model(numbers, x)
    given = tf.random.normal((8, 1), dtype="float64")

    def mean(_, output):
        return tf.reduce_mean(output)

    step = StagedStep(read_network(model), [0, 2, 4])
    _, pairs = step.run(one_f_one_b(2, 4), [given], given, mean)
    with tf.GradientTape() as tape:
        value = mean(None, model(given))
    expected = tape.gradient(value, [variable.value for variable in model.trainable_variables])
    for (_, found), known in zip(pairs, expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-12)


# PyTorch's tests of a perceptron of 512 units, a layer a stage, with its tolerances: gradients of
# two steps in four micro-batches, or in eight with two stages a device; and twenty steps.
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "v"])
def test_a_perceptron_is_the_same_in_stages(schedule):
    micro_batches = 8 if schedule == "v" else 4
    keras.config.set_dtype_policy("float32")
    numbers = x = keras.Input((512,))
    for _ in range(4):
        x = layers.Dense(512, activation="relu")(x)
    model = keras.Model(numbers, x)
    alone = keras.models.clone_model(model)
    alone.set_weights(model.get_weights())
    draw = np.random.default_rng(0)
    given, wanted = (tf.constant(draw.normal(size=(256, 512)), tf.float32) for _ in range(2))

    def squares(targets, output):
        return tf.reduce_mean(tf.reduce_sum(tf.square(targets - output), axis=-1))

    network = read_network(model)
    step = StagedStep(network, range(5))
    for turn in range(20 if schedule == "1f1b" else 2):
        orders = orders_of(schedule, 4, micro_batches)
        _, pairs = step.run(orders, [given], wanted, squares)
        with tf.GradientTape() as tape:
            value = squares(wanted, alone(given, training=True))
        variables = alone.trainable_variables
        gradients = tape.gradient(value, [weight.value for weight in variables])
        for (_, found), known in zip(pairs, gradients, strict=True):
            if turn < 2:
                np.testing.assert_allclose(found, known, rtol=1e-5, atol=4e-5)
        for own, found, known in zip(variables, pairs, gradients, strict=True):
            variable, gradient = found
            variable.assign_sub(1e-4 * gradient)
            own.assign_sub(1e-4 * known)
    np.testing.assert_allclose(model(given), alone(given), rtol=1e-3, atol=1e-4)
