"""What layers add to the loss is each replica's own, where replicas share the layers."""

import threading

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from tfunet.models.own_terms import keep_terms_apart

NUM_REPLICAS = 2


class Costly(layers.Layer):
    """Adds to the loss, and waits for the other replica after that, as for an exchange."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def call(self, inputs):
        self.add_loss(ops.mean(inputs))
        if tf.executing_eagerly():
            self.barrier.wait(20)
        return inputs


@pytest.mark.parametrize("calls", [1, 2])
def test_replicas_that_share_layers_have_their_own_terms(calls):
    barrier = threading.Barrier(NUM_REPLICAS)
    image = keras.Input((4, 4, 1))
    inner = keras.Sequential([Costly(barrier)])
    first = layers.Conv2D(1, 1, kernel_regularizer=lambda _: ops.convert_to_tensor(7.0))(image)
    output = layers.ReLU(activity_regularizer=lambda x: 100 * ops.mean(x))(inner(image))
    model = keras.Model(image, layers.Add()([first, output]))
    keep_terms_apart(model)
    terms = {}

    def replica(number):
        for call in range(calls):
            value = 1.0 + number + 10 * call
            model(ops.full((1, 4, 4, 1), value))
            barrier.wait(20)
            terms[number, call] = sorted(float(term) for term in model.losses)
            barrier.wait(20)

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(NUM_REPLICAS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert terms == {
        (number, call): sorted([7.0, value, 100 * value])
        for number in range(NUM_REPLICAS)
        for call in range(calls)
        for value in [1.0 + number + 10 * call]
    }
