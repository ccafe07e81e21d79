"""A step through stages against the whole model: loss and gradients to 1e-12 in float64."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from staged_models import (
    MICRO_BATCHES,
    MODELS,
    data,
    free_cuts,
    long_skips,
    loss,
    micro_batches_of_the_whole,
    nested,
    orders_of,
    regularized,
    shared_layer,
    small_unet,
    traced,
    whole,
)
from staged_step import StagedStep

from tfunet.pipeline.chunk import chunks_of
from tfunet.pipeline.network import read_network
from tfunet.pipeline.schedules import gpipe, one_f_one_b

pytestmark = pytest.mark.usefixtures("float64", "seeded")


@pytest.mark.parametrize(
    ("build", "schedule", "parts"),
    [
        (small_unet, "1f1b", 3),
        (small_unet, "v", 4),
        *((build, "gpipe", 2) for build in MODELS[1:]),
        *((build, "1f1b", 4) for build in MODELS[1:]),
        *((build, "v", 4) for build in MODELS[1:]),
    ],
)
def test_gradients_are_those_of_the_whole_model(build, schedule, parts):
    model = build()
    images, targets = data(model)
    network = read_network(model)
    if build is regularized:  # Its statistics are those of a micro-batch.
        expected = micro_batches_of_the_whole(model, images, targets)
    else:
        expected = whole(model, images, targets)
    free = free_cuts(network)
    inner = [free[at * len(free) // (parts - 1)] for at in range(parts - 1)]
    step = StagedStep(network, [0, *inner, len(network.nodes)])
    value, pairs = step.run(orders_of(schedule, parts), [images], targets, loss)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    found = {id(variable): gradient for variable, gradient in pairs}
    largest = max(float(tf.reduce_max(tf.abs(gradient))) for gradient in expected[1])
    assert len(found) == len(model.trainable_variables)
    for variable, gradient in zip(model.trainable_variables, expected[1], strict=True):
        difference = np.abs(found[id(variable)] - gradient).max()
        assert difference <= 1e-12 * largest, variable.path
    if schedule == "1f1b":
        assert step.peak_kept == [min(MICRO_BATCHES, parts - stage) for stage in range(parts)]


def test_schedules_give_the_same_bits_and_leave_nothing_behind():
    model = long_skips()
    images, targets = data(model)
    network = read_network(model)
    results = []
    for orders in (gpipe(2, MICRO_BATCHES), one_f_one_b(2, MICRO_BATCHES)):
        step = StagedStep(network, [0, 2, len(network.nodes)])
        results.append(
            [gradient.numpy() for _, gradient in step.run(orders, [images], targets, loss)[1]]
        )
        assert not any(stage.kept for stage in step.stages)
        # The next step begins anew.
        again = step.run(orders, [images], targets, loss)[1]
        np.testing.assert_array_equal(results[-1][0], again[0][1])
        gone = weakref.ref(step)
        del step
        gc.collect()
        assert gone() is None
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_traced_step_is_the_same(recompute):
    model = long_skips()
    images, targets = data(model)
    network = read_network(model)
    value, gradients = traced(network, recompute)(images, targets)
    expected = whole(model, images, targets)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    by_name = {
        variable.path: gradient
        for variable, gradient in zip(model.trainable_variables, expected[1], strict=True)
    }
    variables = [weight for node in network.nodes for weight in node.trainable_variables]
    for variable, gradient in zip(variables, gradients, strict=True):
        np.testing.assert_allclose(gradient, by_name[variable.path], rtol=1e-10, atol=1e-12)


def test_what_cannot_be_cut_is_refused_by_name():
    model = shared_layer()
    network = read_network(model)
    with pytest.raises(ValueError, match="'again' shares the variable"):
        chunks_of(network, [0, 1, len(network.nodes)])
    image = keras.Input((8, 8, 3))
    layer = layers.Conv2D(3, 1, activity_regularizer="l2", name="twice")
    with pytest.raises(ValueError, match="'twice' is called 2 times"):
        chunks_of(read_network(keras.Model(image, layer(layer(image)))), [0, 2])


def test_models_that_are_no_graph_or_pass_masks_are_refused():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    with pytest.raises(ValueError, match="is a class of its own"):
        read_network(Own())
    words = keras.Input((4,))
    embedded = layers.Embedding(5, 3, mask_zero=True, name="words")(words)
    with pytest.raises(ValueError, match="'words' makes a mask"):
        read_network(keras.Model(words, layers.Dense(1)(embedded)))


def test_nodes_of_inner_models_are_listed_and_what_nobody_reads_is_not():
    names = [node.name for node in read_network(nested()).nodes]
    assert len(names) == 8
    assert sum("/" in name for name in names) == 4
    image = keras.Input((4, 4, 1))
    both = layers.Conv2D(1, 1, name="read")(image)
    layers.Conv2D(1, 1, name="unread")(image)
    assert [node.name for node in read_network(keras.Model(image, both)).nodes] == ["read"]
