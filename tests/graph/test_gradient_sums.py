"""Gradients that are added up in the order of their graph, in steps that TensorFlow finds large."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.swap import LargeModelSupport

# A step with some dozen tensors of 16 MiB: TensorFlow takes a CPU for one of 256 MiB.
SIDE, FILTERS = 512, 24


def make_model():
    keras.utils.set_random_seed(0)
    image = x = keras.Input((SIDE, SIDE, 1))
    for _ in range(3):
        x = keras.layers.Conv2D(FILTERS, 3, padding="same", use_bias=False)(x)
        x = keras.layers.GroupNormalization(-1)(x)  # its gradient has sums of three
        x = keras.layers.LeakyReLU(0.01)(x)
    model = keras.Model(image, keras.layers.Conv2D(2, 1)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, jit_compile=False)
    return model


def trained(support=None, changed=lambda run: run):
    """Return the weights after some steps, and the kinds of op that TensorFlow ran."""
    model = make_model()
    rng = np.random.default_rng(0)
    image = tf.constant(rng.normal(size=(1, SIDE, SIDE, 1)), tf.float32)
    mask = tf.cast(image[..., 0] > 0.5, tf.int32)
    model.make_train_function()
    if support is not None:
        support._install(model)
    run = changed(model.train_function)
    batches = iter(tf.data.Dataset.from_tensors((image, mask)).repeat(2))
    with context.collect_graphs(optimized=True) as graphs:
        for _ in range(2):
            run(batches)
    if support is not None:
        support._remove()
    kinds = {node.op for graph in graphs for node in graph.node}
    return [variable.numpy() for variable in model.trainable_variables], kinds


def test_sums_of_a_large_step_are_added_in_the_order_of_its_graph():
    _, kinds = trained()
    assert "TemporaryVariable" in kinds  # TensorFlow has divided a sum
    weights, kinds = trained(changed=in_order_of_graph)
    assert "TemporaryVariable" not in kinds
    support = LargeModelSupport("240MiB", verbose=0)
    supported, kinds = trained(support)
    assert support.gives_up
    assert "TemporaryVariable" not in kinds
    for weight, other in zip(weights, supported, strict=True):
        np.testing.assert_array_equal(weight, other)


def test_step_is_as_it_was_where_it_is_not_wanted():
    _, kinds = trained(changed=lambda run: in_order_of_graph(run, lambda: False))
    assert "TemporaryVariable" in kinds


def test_options_are_as_they_were_also_after_an_exception():
    options = context.context().function_call_options

    def fails():
        assert context.context().function_call_options is not options
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_order_of_graph(fails)()
    assert context.context().function_call_options is options
