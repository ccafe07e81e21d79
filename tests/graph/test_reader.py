"""What is read of a traced step."""

import tensorflow as tf

from tfunet.graph import reader
from tfunet.swap.plan import split


def test_what_nothing_needs_is_no_part_of_a_step():
    weights = tf.Variable(tf.ones((3, 3, 1, 2)))

    @tf.function
    def step(image):
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = tf.reduce_sum(tf.nn.conv2d(image, weights, 1, "SAME") ** 2)
        of_weights, _ = tape.gradient(loss, [weights, image])
        weights.assign_sub(of_weights)
        return tf.sqrt(loss)

    graph = step.get_concrete_function(tf.TensorSpec((1, 8, 8, 1))).graph
    ops = graph.get_operations()
    assert "Conv2DBackpropInput" in [op.type for op in ops]
    kept = [op.type for op in reader.in_order(ops, graph.outputs)]
    assert "Conv2DBackpropInput" not in kept
    assert {"Conv2DBackpropFilter", "AssignSubVariableOp", "Sqrt"} <= set(kept)
    # What a step returns is needed, and what is read outside of its ops too.
    assert "Sqrt" not in [op.type for op in reader.in_order(ops, ())]
    square_root = next(op for op in ops if op.type == "Sqrt")
    inside = ops[: ops.index(square_root)]
    assert "Sum" in [op.type for op in reader.in_order(inside, ())]


def test_sums_that_become_one_run_in_slabs_together_from_the_first_on():
    @tf.function
    def step(a, b, c, d):
        return tf.nn.relu(((a + b) + c) + d)

    graph = step.get_concrete_function(*[tf.TensorSpec((1, 8, 8, 2))] * 4).graph
    trace, _ = reader.read(reader.in_order(graph.get_operations(), graph.outputs), graph.outputs)
    sums = [index for index, op in enumerate(trace.ops) if op.kind == "AddV2"]
    inner, other, last = (trace.ops[index].outputs[0] for index in sums)
    assert [trace.tensors[index].is_passed_on for index in (inner, other, last)] == [
        True,
        True,
        False,
    ]
    assert last in split.splittable(trace)
    assert set(sums) < split.touched(trace, {last})
