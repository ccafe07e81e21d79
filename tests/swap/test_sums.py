"""Large sums of gradients are made two at a time: what that changes, and what it does not."""

from functools import reduce

import pytest
import tensorflow as tf

from tfunet.swap import sums, trace
from tfunet.swap.schedule import memory, schedule

SHAPE = (8, 32)
NUM_BYTES = 4 * 8 * 32


@pytest.mark.parametrize("num_terms", range(3, sums.MOST_TERMS + 1))
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_tensorflow_adds_so_many_terms_from_the_left(dtype, num_terms):
    terms = [
        tf.cast(tf.random.stateless_normal((999,), (one, 0)), dtype) for one in range(num_terms)
    ]
    in_pairs = reduce(lambda one, other: tf.raw_ops.AddN(inputs=[one, other]), terms)
    from_the_right = reduce(lambda one, other: one + other, reversed(terms))
    whole = tf.raw_ops.AddN(inputs=terms)
    assert tf.reduce_all(whole == in_pairs)
    assert not tf.reduce_all(whole == from_the_right)


def traced(*, returns_sum=False, waits=False, divided_from=None):
    """Return the function of a gradient whose middle is read by four, its ops and its handles."""

    @tf.function
    def step(image):
        with tf.GradientTape() as tape:
            tape.watch(image)
            middle = tf.tanh(image)
            read = [middle[:, at : at + 2] for at in range(4)]
            loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in read])
        sources = [image, middle] if returns_sum else [image]
        gradients = tape.gradient(loss, sources)
        graph = tf.compat.v1.get_default_graph()
        (op,) = (one for one in graph.get_operations() if is_sum(one))
        if waits:
            gradients[0].op._add_control_input(op)
        if divided_from is not None:
            ops = trace.in_order(graph.get_operations(), gradients)
            found.extend(sums.in_pairs(ops, gradients, divided_from))
        else:
            found.extend(trace.in_order(graph.get_operations(), gradients))
        return gradients

    found = []
    return step, step.get_concrete_function(tf.TensorSpec(SHAPE)).graph, found


def is_sum(op):
    return op.type == "AddN" and op.outputs[0].shape == SHAPE


@pytest.mark.parametrize("waits", [False, True])
def test_gradients_are_added_as_they_come(waits):
    step, graph, ops = traced(waits=waits)
    divided, other_graph, pairs = traced(waits=waits, divided_from=NUM_BYTES)
    assert [len(op.inputs) for op in ops if is_sum(op)] == [4]
    assert [len(op.inputs) for op in pairs if is_sum(op)] == [2, 2, 2]
    # They are in the order of the ops, each after what it reads, and nothing reads the old sum.
    made = set()
    for op in pairs:
        assert {one.op.name for one in op.inputs if one.op.type != "Placeholder"} <= made
        made.add(op.name)
    (old,) = (one for one in other_graph.get_operations() if is_sum(one) and len(one.inputs) == 4)
    assert not old.outputs[0].consumers()
    assert not old._control_outputs
    image = tf.random.stateless_normal(SHAPE, (1, 2))
    (one,), (other,) = step(image), divided(image)
    assert tf.reduce_all(one == other)
    # At most two of the four gradients are there together.
    peaks = []
    for found, of in ((ops, graph), (pairs, other_graph)):
        read, _ = trace.read(found, of.outputs)
        peaks.append(memory(read, schedule(read, {})).max())
    assert peaks[0] - peaks[1] > NUM_BYTES


@pytest.mark.parametrize(
    "changed", [{"returns_sum": True}, {"divided_from": NUM_BYTES + 1}], ids=["result", "small"]
)
def test_sum_that_is_returned_or_small_stays(changed):
    _, _, ops = traced(**{"divided_from": NUM_BYTES, **changed})
    assert [len(op.inputs) for op in ops if is_sum(op)] == [4]
