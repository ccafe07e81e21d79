"""What is timed inside a traced step: the right part, at the right time, with the same result."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tfunet.timing.stamps import timed

WAIT_SECONDS = 0.2
# Sleeps are never shorter, but the clock of the day may be set meanwhile, a little at a time.
SURE_SECONDS = 0.8 * WAIT_SECONDS


def slow(values):
    def wait(value):
        time.sleep(WAIT_SECONDS)
        return value

    return tf.numpy_function(wait, [values], values.dtype)


def test_a_part_is_timed_without_what_comes_before_and_after_it():
    noted = []

    @tf.function
    def step(values):
        before = slow(values)
        part = timed("part", lambda *given: noted.append(given), slow, before)
        return slow(part)

    np.testing.assert_array_equal(step(tf.constant([1.0, 2.0])), [1.0, 2.0])
    noted.clear()
    since = time.time()
    step(tf.constant([1.0, 2.0]))
    ended = time.time()
    ((name, begin, end),) = noted
    assert name == "part"
    # How much longer sleeps are, the machine decides.
    assert begin >= since + SURE_SECONDS
    assert end - begin >= SURE_SECONDS
    assert end <= ended - SURE_SECONDS


def test_without_a_note_the_graph_is_as_it_was():
    def num_ops(note):
        @tf.function
        def step(values):
            return timed("part", note, lambda one: one + 1.0, values)

        return len(step.get_concrete_function(tf.TensorSpec([2])).graph.get_operations())

    assert num_ops(None) < num_ops(lambda *given: None)

    @tf.function
    def plain(values):
        return values + 1.0

    graph = plain.get_concrete_function(tf.TensorSpec([2])).graph
    assert num_ops(None) == len(graph.get_operations())


@pytest.mark.parametrize("given", [(), {"a": tf.ones(2), "b": [tf.zeros(3)]}])
def test_structures_stay(given):
    @tf.function
    def step():
        return timed("part", lambda *told: None, lambda one: one, given, device="CPU:0")

    tf.nest.assert_same_structure(step(), given)
