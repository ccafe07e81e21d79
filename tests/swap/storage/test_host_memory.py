"""Copies between a GPU and its host, in the graph of a step: no GPU is needed to look at it."""

import tensorflow as tf

from tfunet.swap.storage.host import HostMemory


def test_a_copy_begins_when_the_ops_that_it_waits_for_are_done():
    """TensorFlow sends a tensor as soon as it is made: what sends it must wait, not its reader."""
    graph = tf.Graph()
    with graph.as_default():
        tensor = tf.compat.v1.placeholder(tf.float32, [2, 4, 3])
        memory = HostMemory()
        rows = memory.rows(tensor)
        copies = []
        for goal, home, copied in (
            ("CPU", "GPU", lambda: memory.out(tensor)),
            ("GPU", "CPU", lambda: memory.back(tensor).op),
            ("CPU", "GPU", lambda: rows.write(tensor, 0)),
            ("GPU", "CPU", lambda: rows.read(0, 4).op),
        ):
            wait = tf.no_op("wait")
            with tf.control_dependencies([wait]):
                copies.append((copied(), goal, home, wait))
    for copy, goal, home, wait in copies:
        begins = copy.inputs[0].op
        assert copy.device.endswith(f"{goal}:0")
        assert begins.device.endswith(f"{home}:0")
        assert begins.type == copy.type == "Identity"
        assert list(begins.control_inputs) == [wait]
