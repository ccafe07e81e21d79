"""Small changes to the graph of a traced step."""

import numpy as np
import tensorflow as tf

from tfunet.graph.edits import done, forget_shape_readers, identity


def test_nobody_holds_a_tensor_for_its_shape_or_for_that_of_the_weights_beside_it():
    weights = tf.Variable(tf.ones([3, 3]))

    @tf.function
    def step(image):
        large = tf.tanh(image)
        forward = tf.reduce_sum(large)
        # As the gradient of a convolution does, and late, as in a stage.
        with tf.control_dependencies([forward]):
            shapes = tf.raw_ops.ShapeN(input=[large, weights])
            others = [tf.raw_ops.Size(input=large), tf.raw_ops.Rank(input=large)]
            read = [tf.identity(known) for known in [*shapes, *others]]
        forget_shape_readers(large)
        return read

    traced = step.get_concrete_function(tf.TensorSpec([2, 3, 4]))
    results = traced(tf.zeros([2, 3, 4]))
    for found, expected in zip(results, ([2, 3, 4], [3, 3], 24, 3), strict=True):
        np.testing.assert_array_equal(found, expected)
    (large,) = (op.outputs[0] for op in traced.graph.get_operations() if op.type == "Tanh")
    for reader in large.consumers():
        if reader.type in ("Rank", "ShapeN", "Size"):
            assert not any(output.consumers() for output in reader.outputs)


def test_a_part_of_a_split_may_wait_for_another():
    def sums(parts_wait):
        @tf.function
        def step(image, *terms):
            first, second = tf.split(image, 2)
            if parts_wait:
                second = identity(second, [done(first.op)])
            a, b, c, d = terms
            # TensorFlow computes it in another order, unless it fails to optimize the graph.
            return tf.cumsum(second), (a + b) + (c + d)

        return step(tf.ones([4, 3]), *(tf.fill([3], number) for number in (1e8, 1.0, -1e8, 1.0)))

    for one, other in zip(sums(False), sums(True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sums(True)[1].numpy().all()
