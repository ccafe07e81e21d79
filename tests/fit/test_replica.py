"""What replicas draw is what one device draws for all rows, each its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfunet.fit.replica import as_one_device, computing, current_rows
from tfunet.fit.shares import Rows

DRAWS = {
    "normal": lambda x: keras.random.normal(ops.shape(x), seed=3),
    "uniform": lambda x: keras.random.uniform(ops.shape(x), seed=3),
    "truncated": lambda x: keras.random.truncated_normal(ops.shape(x), stddev=2.0, seed=3),
    "whole": lambda x: keras.random.randint(ops.shape(x), 0, 1000, seed=3),
    "gamma": lambda x: keras.random.gamma(ops.shape(x), 2.0, seed=3),
    # A number for each row, with which images are turned.
    "of_rows": lambda x: keras.random.uniform((ops.shape(x)[0],), seed=3),
    "dropout": lambda x: keras.random.dropout(x, 0.4, seed=3),
    "same_for_places": lambda x: keras.random.dropout(x, 0.4, (None, 1, None), seed=3),
    "categorical": lambda x: keras.random.categorical(x[:, 0], 2, seed=3),
}
LAYERS = {
    "spatial": lambda: layers.SpatialDropout1D(0.4, seed=3),
    "noise": lambda: layers.GaussianNoise(1.0, seed=3),
    "gaussian": lambda: layers.GaussianDropout(0.4, seed=3),
    "alpha": lambda: layers.AlphaDropout(0.4, seed=3),
}


def made(name):
    """Return a function of a batch that draws from the beginning."""
    if name in DRAWS:
        return DRAWS[name]
    layer = LAYERS[name]()
    return lambda x: layer(x, training=True)


def within(rows, draw):
    """Return a step of a replica that draws."""

    def step(x):
        with computing(rows):
            return draw(x)

    return step


def drawn(name, x, num_replicas, *, is_known):
    """What each replica draws for the rows that it takes of x, less what counts for nothing."""
    parts = []
    num_rows = len(x) if is_known else tf.constant(len(x), tf.int64)
    for index in range(num_replicas):
        rows, draw = Rows(index=index, num_replicas=num_replicas, num_rows=num_rows), made(name)
        begin, end = (int(each) for each in rows.taken)
        shape = [end - begin if is_known else None, *x.shape[1:]]
        step = within(rows, draw)
        with as_one_device():
            part = tf.function(step, input_signature=[tf.TensorSpec(shape)])(x[begin:end])
        parts.append(part[: int(rows.count)])
    return parts


@pytest.mark.parametrize("name", [*DRAWS, *LAYERS])
@pytest.mark.parametrize(
    ("num_rows", "num_replicas", "is_known"), [(6, 2, True), (5, 3, False), (2, 3, True)]
)
def test_replicas_draw_what_one_device_draws(name, is_known, num_rows, num_replicas):
    x = tf.random.stateless_uniform((num_rows, 3, 4), [1, 2], 0.5, 1.0)
    expected = made(name)(x)
    parts = drawn(name, x, num_replicas, is_known=is_known)
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-6)


def test_parts_of_a_batch_in_a_row_are_each_shared_out():
    whole = keras.random.normal((12, 2), seed=3)
    parts = []
    with as_one_device():
        for index in range(2):
            with computing(Rows(index=index, num_replicas=2, num_rows=6)):
                parts.append(keras.random.normal((6, 2), seed=3))  # False images, then true ones.
    np.testing.assert_array_equal(np.concatenate([part[:3] for part in parts]), whole[:6])
    np.testing.assert_array_equal(np.concatenate([part[3:] for part in parts]), whole[6:])


def test_first_values_of_a_variable_that_a_step_makes_are_those_of_one_device():
    def step(x):
        # The scope is Keras's for a variable that a step makes.
        with computing(Rows(index=1, num_replicas=2, num_rows=6)), tf.init_scope():
            return keras.random.normal((3, 2), seed=3)

    with as_one_device():
        made = tf.function(step)(tf.ones(1))
    np.testing.assert_array_equal(made, keras.random.normal((3, 2), seed=3))


def test_numbers_for_something_else_than_rows_are_the_same_for_all():
    codes = keras.random.normal((7, 2), seed=3)
    for index in range(2):
        with as_one_device(), computing(Rows(index=index, num_replicas=2, num_rows=6)):
            np.testing.assert_array_equal(keras.random.normal((7, 2), seed=3), codes)


def test_outside_of_a_step_nothing_is_shared_out():
    expected = keras.random.normal((6, 2), seed=3)
    with as_one_device():
        assert current_rows() is None
        np.testing.assert_array_equal(keras.random.normal((6, 2), seed=3), expected)
    np.testing.assert_array_equal(keras.random.normal((6, 2), seed=3), expected)


@pytest.mark.parametrize(
    ("num_rows", "weights"), [(4, [1.0, 1.0]), (3, [4 / 3, 2 / 3]), (1, [2.0, 0.0])]
)
def test_gradients_of_weights_are_weighed_by_rows_and_others_are_not(num_rows, weights):
    variable = tf.Variable(3.0)
    found, penalties = [], []
    with as_one_device():
        for index in range(2):
            rows = Rows(index=index, num_replicas=2, num_rows=num_rows)
            with computing(rows), tf.GradientTape() as tape:
                image = tf.ones(())
                with tf.GradientTape() as inner:
                    inner.watch(image)
                    looked_at = 5 * image
                penalties.append(float(inner.gradient(looked_at, image)))
                loss = 2 * variable
            with computing(rows):
                found.append(float(tape.gradient(loss, variable)))
    np.testing.assert_allclose(found, [2 * weight for weight in weights])
    assert penalties == [5, 5]


def test_a_sum_is_not_divided_by_rows_and_a_mean_is():
    values = tf.constant([[1.0], [3.0], [8.0]])
    for reduction, expected in (("sum", 12.0), ("sum_over_batch_size", 4.0)):
        loss = keras.losses.MeanAbsoluteError(reduction=reduction)
        total = 0.0
        with as_one_device():
            for index in range(2):
                rows = Rows(index=index, num_replicas=2, num_rows=3)
                begin, end = rows.taken
                with computing(rows):
                    own = loss(tf.zeros((end - begin, 1)), values[begin:end])
                    total += float(own * rows.weight(tf.float32)) / 2
        assert total == pytest.approx(expected)
