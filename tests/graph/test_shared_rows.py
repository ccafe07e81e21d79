"""Which ops only show rows of a tensor: as TensorFlow does it."""

import numpy as np
import pytest
import tensorflow as tf

from tfunet.graph import reader
from tfunet.graph.shared_rows import with_shared_rows
from tfunet.graph.step import root

# A shape, and what is cut off a tensor of it.
CASES = {
    "micro-batches": ([4, 8, 8, 1], lambda one: tf.split(one, 2)),
    "rows that begin anywhere": ([4, 3, 3, 1], lambda one: tf.split(one, 2)),
    "channels": ([4, 8, 8, 4], lambda one: tf.split(one, 2, axis=3)),
    "tensors of a message": ([96], lambda one: tf.split(one, [32, 64])),
    "with a number before them": ([65], lambda one: tf.split(one, [1, 64])),
    "the first numbers": ([128], lambda one: one[:64]),
    "unaligned numbers": ([128], lambda one: one[1:65]),
    "the last rows": ([4, 8, 8, 1], lambda one: one[2:]),
    "every other row": ([4, 8, 8, 1], lambda one: one[::2]),
    "columns": ([4, 8, 8, 1], lambda one: one[:, 2:]),
    "a new axis": ([64], lambda one: one[tf.newaxis]),
}


def address(tensor):
    return tensor._numpy().__array_interface__["data"][0]


@pytest.mark.parametrize("case", CASES)
def test_rows_are_views_where_tensorflow_copies_nothing(case):
    shape, cut = CASES[case]
    whole = tf.sin(tf.constant(np.ones(shape, np.float32)))
    begin, end = address(whole), address(whole) + whole.numpy().nbytes
    are_views = {begin <= address(part) < end for part in tf.nest.flatten(cut(whole))}

    @tf.function(autograph=False)
    def step(one):
        return tf.nest.flatten(tf.nest.map_structure(tf.exp, cut(tf.sin(one))))

    graph = step.get_concrete_function(tf.TensorSpec(shape)).graph
    ops = graph.get_operations()
    trace = with_shared_rows(reader.read(ops, graph.outputs)[0], ops)
    (sine,) = (op.outputs[0] for op in trace.ops if op.kind == "Sin")
    roots = {root(trace, op.inputs[0]) for op in trace.ops if op.kind == "Exp"}
    assert are_views == {roots == {sine}}


def sizes_of(step):
    """Return the bytes of what each kind of op makes first."""
    graph = step.get_concrete_function(tf.TensorSpec([1, 64])).graph
    ops = graph.get_operations()
    trace = with_shared_rows(reader.read(ops, graph.outputs)[0], ops)
    return {op.kind: trace.tensors[op.outputs[0]].num_bytes for op in trace.ops if op.outputs}


def test_a_tensor_of_unknown_shape_is_as_large_as_what_is_taken_of_it():
    @tf.function(autograph=False)
    def step(sent):
        came = tf.boolean_mask(tf.reshape(sent, [-1]), tf.reshape(sent, [-1]) > 0)
        return tf.split(came, [1, 63])

    assert sizes_of(step)["GatherV2"] == 64 * 4


def test_an_exchange_has_a_buffer_for_both_even_if_nothing_is_received():
    @tf.function(autograph=False)
    def step(sent):
        keys = {"group_size": 2, "group_key": 1, "instance_key": 1, "ordering_token": []}
        tf.raw_ops.CollectiveGatherV2(input=sent, **keys)
        return tf.exp(sent)

    assert sizes_of(step)["CollectiveGatherV2"] == 2 * 64 * 4
