"""Which sums and products TensorFlow makes anew together."""

import pytest
import tensorflow as tf

from tfunet.graph.regrouped import regrouped

LARGE, SMALL = (8, 8, 4), (4,)


def sum_of_sums(a, b, c, small):
    return (a + b) + (c + small)


def sum_read_twice(a, b, c, small):
    inner = a + b
    return (inner + c) * inner


def sum_under_another_name(a, b, c, small):
    return tf.identity_n([a + b, small])[0] + c


def sum_added_to_itself(a, b, c, small):
    inner = a + b
    return inner + inner


def product_by_itself(a, b, c, small):
    inner = a * small
    return inner * inner


def larger_first(a, b, c, small):
    return (a * small) * 3.0


def largest_last(a, b, c, small):
    return (small * 3.0) * a


def two_as_large(a, b, c, small):
    return (a * small) * b


def two_as_large_by_name(a, b, c, small):
    return (a * small) * tf.tanh(b, name="y")


def all_as_large(a, b, c, small):
    return (a * b) * c


def divided_by_constant(a, b, c, small):
    return (a * b) / 6.0


def divided_by_what_is_constant(a, b, c, small):
    return (a * b) / tf.sqrt(tf.cast(tf.constant(6), tf.float32))


def divided_by_tensor(a, b, c, small):
    return (a * b) / small


def product_of_sums(a, b, c, small):
    return (a + b) * (c + small)


def awaited(a, b, c, small):
    inner = a + b
    with tf.control_dependencies([inner]):
        return inner + tf.identity(c)


@pytest.mark.parametrize(
    ("step", "num_inner"),
    [
        (sum_of_sums, 2),
        (sum_read_twice, 0),
        (sum_under_another_name, 1),
        (sum_added_to_itself, 1),
        (product_by_itself, 0),
        (larger_first, 1),
        (largest_last, 0),  # as TensorFlow would have it
        (two_as_large, 1),
        (two_as_large_by_name, 0),
        (all_as_large, 0),
        (divided_by_constant, 1),
        (divided_by_what_is_constant, 1),
        (divided_by_tensor, 0),
        (product_of_sums, 0),
        (awaited, 0),
    ],
)
def test_what_is_made_anew_with_the_op_that_reads_it(step, num_inner):
    specs = [tf.TensorSpec(shape) for shape in (LARGE, LARGE, LARGE, SMALL)]
    ops = tf.function(step).get_concrete_function(*specs).graph.get_operations()
    outer_of = regrouped(ops, (), lambda op: True)
    assert len(outer_of) == num_inner
    kinds = {op.name: op.type for op in ops}
    assert {kinds[name] for name in outer_of} <= {"AddV2", "Mul"}


def test_what_nothing_needs_reads_nothing():
    @tf.function
    def step(a, b, c):
        inner = a + b
        tf.square(inner, name="left_out")
        return inner + c

    graph = step.get_concrete_function(*[tf.TensorSpec(LARGE)] * 3).graph
    ops = [op for op in graph.get_operations() if op.name != "left_out"]
    assert len(regrouped(ops, (), lambda op: False)) == 1
    assert not regrouped(ops, (), lambda op: True)


def test_what_the_step_returns_has_a_reader_more():
    @tf.function
    def step(a, b, c):
        inner = a + b
        return inner, inner + c

    graph = step.get_concrete_function(*[tf.TensorSpec(LARGE)] * 3).graph
    ops = graph.get_operations()
    identities = {output.op.name for output in graph.outputs}
    sums = {output.op.inputs[0].op.name for output in graph.outputs}
    assert not regrouped(ops, identities, lambda op: True)
    assert not regrouped(ops, sums, lambda op: True)
    assert len(regrouped(ops, (), lambda op: True)) == 1
