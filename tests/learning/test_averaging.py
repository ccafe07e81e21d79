import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.learning.averaging import averaging

GRADIENTS = [[[1.0, 2.0]], [[3.0, -6.0]]]


def halves(gradients):
    """Stands for an average over replicas: whatever it returns is what must be used."""
    return [gradient / 2 for gradient in gradients]


def step(optimizer, variable, passes):
    optimizer.build([variable])
    for gradients in passes:
        optimizer.apply([tf.constant(gradient) for gradient in gradients], [variable])


def test_average_comes_before_clipping():
    variable = keras.Variable([0.0, 0.0])
    optimizer = averaging(keras.optimizers.SGD(1.0, clipnorm=1.0), halves)
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
    optimizer = averaging(keras.optimizers.SGD(1.0), average, accumulation=2)
    step(optimizer, variable, GRADIENTS)
    np.testing.assert_allclose(variable.numpy(), [-2.0, 2.0])
    assert calls == [1]  # It communicates once a step.
    assert int(optimizer.iterations) == 1


def test_variable_that_the_loss_does_not_reach_stays():
    used, unused = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = averaging(keras.optimizers.Adam(0.1), halves)
    optimizer.build([used, unused])
    optimizer.apply([tf.constant([1.0]), None], [used, unused])
    assert float(used[0]) < 1.0
    assert float(unused[0]) == 1.0


def test_saved_optimizer_is_the_users_own_class(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=averaging(keras.optimizers.AdamW(0.1, weight_decay=0.2), halves))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert type(again) is keras.optimizers.AdamW
    assert again.weight_decay == pytest.approx(0.2)


def test_gradient_that_overflows_on_one_replica_is_skipped_by_all():
    # The loss scale is halved where the average, not the local gradient, is infinite.
    variable = keras.Variable([1.0])
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
    optimizer = averaging(inner, lambda gradients: [gradient + np.inf for gradient in gradients])
    optimizer.build([variable])
    optimizer.apply([tf.constant([1.0])], [variable])
    assert float(variable[0]) == 1.0
    assert float(optimizer.dynamic_scale) == 2.0
