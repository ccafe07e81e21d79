import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.graph.capture import needed_later, taken_over
from tfunet.learning.averaging import Averaging, check_overwriting

GRADIENTS = [[[1.0, 2.0]], [[3.0, -6.0]]]


def halves(gradients):
    """Stands for an average over replicas: whatever it returns is what must be used."""
    return [gradient / 2 for gradient in gradients]


def step(optimizer, variable, passes, average=halves, **options):
    optimizer.build([variable])
    with Averaging(average=average, **options).traced():
        for gradients in passes:
            optimizer.apply([tf.constant(gradient) for gradient in gradients], [variable])


def test_average_comes_before_clipping():
    variable = keras.Variable([0.0, 0.0])
    optimizer = keras.optimizers.SGD(1.0, clipnorm=1.0)
    step(optimizer, variable, [[[0.6, 0.8]]])
    # Half of the gradient has norm 0.5: clipping first would have left all of it, 0.5 too, but
    # of a gradient of norm 4 only the average, 2, must be cut, to 1.
    np.testing.assert_allclose(variable.numpy(), [-0.3, -0.4], rtol=1e-6)
    step(optimizer, variable, [[[2.4, 3.2]]])
    np.testing.assert_allclose(variable.numpy(), [-0.9, -1.2], rtol=1e-6)


def test_accumulated_passes_make_one_step_of_their_mean():
    calls = []

    def average(gradients):
        calls.append(len(gradients))
        return list(gradients)

    variable = keras.Variable([0.0, 0.0])
    optimizer = keras.optimizers.SGD(1.0)
    step(optimizer, variable, GRADIENTS, average, accumulation=2)
    np.testing.assert_allclose(variable.numpy(), [-2.0, 2.0])
    assert calls == [1]  # It communicates once a step.
    assert int(optimizer.iterations) == 1


def test_pass_waits_for_the_one_before_so_that_only_one_holds_its_activations():
    averaging = Averaging(average=list, accumulation=3)
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([variable])

    @tf.function(autograph=False)
    def steps(value):
        with averaging.traced():
            for _ in range(3):
                image = averaging.following(value)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.tanh(variable.value * image))
                optimizer.apply(tape.gradient(loss, [variable.value]), [variable])

    graph = steps.get_concrete_function(tf.TensorSpec([2])).graph
    tanh, backward = (
        [op for op in graph.get_operations() if op.type == kind] for kind in ("Tanh", "TanhGrad")
    )
    assert len(tanh) == len(backward) == 3
    assert [sum(other in _before(op) for other in backward) for op in tanh] == [0, 1, 2]


def test_large_model_support_sees_the_gradients_of_each_pass():
    averaging = Averaging(average=list, accumulation=2, keep=needed_later)
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([variable])
    seen = []

    def step(value):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(variable.value * value))
        optimizer.apply(tape.gradient(loss, [variable.value]), [variable])
        return loss

    edited = taken_over(step, lambda ops, results: seen.append([op.type for op in ops]))

    @tf.function(autograph=False)
    def steps(value):
        with averaging.traced():
            for _ in range(2):
                edited(averaging.following(value))

    steps.get_concrete_function(tf.TensorSpec([2]))
    assert [types.count("TanhGrad") for types in seen] == [1, 1]


def _before(op):
    """All ops that have run before an op can begin."""
    found, pending = set(), [op]
    while pending:
        one = pending.pop()
        for other in (*(tensor.op for tensor in one.inputs), *one.control_inputs):
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def test_update_that_is_held_comes_after_the_block_and_not_after_an_error():
    variable = keras.Variable([0.0])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0)
    optimizer.build([variable])
    averaging = Averaging(average=halves)
    with averaging.traced():
        with averaging.held():
            optimizer.apply([tf.constant([2.0])], [variable])
            assert float(variable[0]) == 0.0
        assert float(variable[0]) == -1.0
        with contextlib.suppress(KeyError), averaging.held():
            optimizer.apply([tf.constant([2.0])], [variable])
            raise KeyError
        optimizer.apply([tf.constant([2.0])], [variable])
    assert float(variable[0]) == -2.0


def test_variable_that_the_loss_does_not_reach_stays():
    used, unused = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([used, unused])
    with Averaging(average=halves).traced():
        optimizer.apply([tf.constant([1.0]), None], [used, unused])
    assert float(used[0]) < 1.0
    assert float(unused[0]) == 1.0


def test_gradient_that_overflows_on_one_replica_is_skipped_by_all():
    # The loss scale is halved where the average, not the local gradient, is infinite.
    variable = keras.Variable([1.0])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    step(
        optimizer,
        variable,
        [[[1.0]]],
        lambda gradients: [gradient + np.inf for gradient in gradients],
    )
    assert float(variable[0]) == 1.0
    assert float(optimizer.dynamic_scale) == 2.0


class Twice(keras.optimizers.SGD):
    """A class of the user's own, whose apply does more and calls that of its parent."""

    def apply(self, grads, trainable_variables=None):
        super().apply([2 * gradient for gradient in grads], trainable_variables)


class Slow(keras.optimizers.SGD):
    """An optimizer around another one."""

    def __init__(self, inner):
        super().__init__(1.0)
        self.held = {"inner": [inner]}

    def apply(self, grads, trainable_variables=None):
        self.held["inner"][0].apply(grads, trainable_variables)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: keras.optimizers.SGD(1.0), -0.5),
        (lambda: Twice(1.0), -1.0),
        (lambda: Slow(Twice(1.0)), -1.0),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)), -0.5 / 2**15),
    ],
    ids=["Keras's", "the user's", "nested", "scaled"],
)
def test_every_class_of_optimizer_averages_once(make, expected):
    variable = keras.Variable([0.0])
    optimizer = make()
    step(optimizer, variable, [[[1.0]]])
    assert float(variable[0]) == expected
    optimizer.apply([tf.constant([1.0])], [variable])  # Outside of the step it is Keras's again.
    assert float(variable[0]) == expected + 2 * expected


def test_optimizers_that_would_be_summed_are_refused():
    variable = tf.Variable([0.0])
    with (
        Averaging(average=halves).traced(),
        pytest.raises(ValueError, match=r"gradient_descent\.GradientDescentOptimizer"),
    ):
        tf.compat.v1.train.GradientDescentOptimizer(1.0).apply_gradients([([1.0], variable)])
    with Averaging(average=halves, is_alone=True).traced():
        tf.compat.v1.train.GradientDescentOptimizer(1.0).apply_gradients(
            [(tf.constant([1.0]), variable)]
        )
    assert float(variable[0]) == -1.0


@pytest.mark.parametrize("outer", [lambda made: made, keras.optimizers.LossScaleOptimizer])
@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"use_ema": True, "ema_overwrite_frequency": 2}, True),
        ({"use_ema": True}, False),
        ({"ema_overwrite_frequency": 2}, False),  # Without averages it means nothing.
    ],
)
def test_a_strategy_of_tensorflow_cannot_overwrite_weights_in_a_step(outer, options, is_refused):
    optimizers = [keras.optimizers.SGD(), outer(keras.optimizers.SGD(name="other", **options))]
    check_overwriting(optimizers)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        if not is_refused:
            check_overwriting(optimizers)
            return
        with pytest.raises(ValueError, match=r"'other' has ema_overwrite_frequency=2: .* horovod"):
            check_overwriting(optimizers)
