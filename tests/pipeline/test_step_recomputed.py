"""Stages that recompute: the same bits, no state changed, and nothing more kept."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from staged_models import (
    MICRO_BATCHES,
    convolved,
    data,
    loss,
    traced,
)
from staged_step import StagedStep

from tfunet.pipeline.network import read_network
from tfunet.pipeline.schedules import gpipe, one_f_one_b

pytestmark = pytest.mark.usefixtures("float64", "seeded")


class Shaken(layers.Layer):
    """Draws numbers of its own, and counts its calls, which its output depends on."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        noise = keras.random.normal(inputs.shape[1:], dtype=inputs.dtype, seed=self.seeds)
        return inputs * (1 + 0.1 * noise) / (1 + self.calls)


def with_states():
    """Dropout, statistics of batches, a seed and a count: all that a second pass could change."""
    image = keras.Input((8, 8, 2))
    x = layers.BatchNormalization()(convolved(image, 4, kernel_regularizer="l2"))
    x = layers.Dropout(0.3, seed=1)(x)
    x = convolved(Shaken()(x), 4, activity_regularizer="l2")
    x = layers.SpatialDropout2D(0.3, seed=2)(x)
    return keras.Model(image, convolved(layers.BatchNormalization()(x), 2))


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_recomputed_passes_give_the_same_bits_and_change_no_state(schedule):
    results = []
    for recompute in (False, True):
        keras.utils.set_random_seed(0)
        model = with_states()
        images, targets = data(model)
        step = StagedStep(read_network(model), [0, 4, 6, 8])
        for _ in range(2):
            orders = schedule(3, MICRO_BATCHES)
            value, pairs = step.run(orders, [images], targets, loss, recompute=recompute)
        gradients = [gradient for _, gradient in pairs]
        results.append([value, *gradients, *(variable.numpy() for variable in model.variables)])
        assert not any(stage.kept for stage in step.stages)
    for kept, recomputed in zip(*results, strict=True):
        np.testing.assert_array_equal(kept, recomputed)


class Seen(layers.Layer):
    """Remembers what it made, without holding it."""

    def __init__(self):
        super().__init__()
        self.made = []

    def call(self, inputs):
        outputs = inputs * 2.0
        self.made.append(weakref.ref(outputs))
        return outputs


@pytest.mark.parametrize("recompute", [False, True])
def test_a_recomputed_stage_keeps_only_what_it_read(recompute):
    seen = Seen()
    image = keras.Input((8, 8, 2))
    x = convolved(image, 2)
    x = convolved(convolved(seen(convolved(x, 3)), 3, activation="tanh"), 3)
    model = keras.Model(image, convolved(x, 2))
    seen.made.clear()
    images, _ = data(model)
    step = StagedStep(read_network(model), [0, 1, 5, 6])
    first, middle, _ = step.stages
    middle.predict(first.predict({0: images}))
    gc.collect()
    assert seen.made[-1]() is None
    seen.made.clear()
    for stage in (first, middle):
        stage.begin(1, {0} if recompute else ())
    given = first.forward(0, {0: images}, None)
    for _ in range(2):  # Any other step than the last.
        made = middle.forward(0, given, None)
        gc.collect()
        assert (seen.made[-1]() is None) == recompute
    gradients = middle.backward(0, {at: tf.ones_like(tensor) for at, tensor in made.items()})
    assert len(gradients) == 1
    assert len(seen.made) == (3 if recompute else 2)
    gc.collect()
    assert not any(reference() is not None for reference in seen.made)


class OwnDraw(layers.Layer):
    """Draws numbers in a way that a second pass cannot repeat."""

    def __init__(self, draw, name):
        super().__init__(name=name)
        self.draw = draw

    def call(self, inputs):
        return inputs + self.draw(tuple(inputs.shape))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


@tf.function
def inside(shape):
    return tf.random.uniform(shape, dtype="float64")


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda shape: tf.random.normal(shape, dtype="float64"), r"'shaky.*\(RandomStandardNor"),
        (inside, "random numbers of its own .RandomUniform"),
        (lambda shape: keras.random.normal(shape, dtype="float64"), "'shaky.* changes a var"),
    ],
)
def test_what_would_draw_other_numbers_in_a_second_pass_is_refused(draw, words):
    image = keras.Input((8, 8, 2))
    x = OwnDraw(draw, "shaky")(convolved(image, 2))
    model = keras.Model(image, convolved(convolved(x, 2), 2))
    images, targets = data(model)
    network = read_network(model)
    traced(network, recompute=False)(images, targets)
    with pytest.raises(ValueError, match=words):
        traced(network, recompute=True)(images, targets)
