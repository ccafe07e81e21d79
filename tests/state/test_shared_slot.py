"""A state of which each process has a part: whole only where all processes ask together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.state.home import home_of
from tfunet.state.shared import SharedState
from tfunet.state.shared_slot import SharedSlot, gathering, on_devices, with_slots
from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.device_memory import sizes


def alone(values):
    """Stands for the sum over one process."""
    return values


def built(optimizer, variables):
    state = SharedState(optimizer, variables, alone)
    state.build()
    return state


def test_state_is_a_clear_error_for_who_reads_it_alone():
    weight = keras.Variable(np.ones((40, 3)), name="weight")
    optimizer = keras.optimizers.Adam(0.1)
    built(optimizer, [weight]).place([0, 1], {0: "CPU:0", 1: "CPU:0"}, by_element=True)
    momentum = optimizer.variables[2]
    assert momentum.shape == (40, 3)
    with pytest.raises(
        ValueError, match=r"'adam\S*/weight_momentum' is shared out .* leave out ze"
    ):
        momentum.numpy()
    with gathering():
        assert np.asarray(momentum.value).shape == (40, 3)


def test_parts_take_and_give_values():
    slot = SharedSlot(alone, "a", (2, 4), "float32")
    slot.parts = [(0, 3, tf.Variable(tf.zeros(3))), (5, 8, tf.Variable(tf.zeros(3)))]
    slot.assign_whole(np.arange(8.0).reshape(2, 4))
    assert slot.value.numpy().tolist() == [0, 1, 2, 5, 6, 7]
    slot.assign(slot.value + 1)
    # What another process has is zero here: those of all add up.
    assert slot.own().reshape(-1).tolist() == [1, 2, 3, 0, 0, 6, 7, 8]
    assert slot.whole().dtype == np.float32


def test_what_devices_hold_is_parts():
    weight = keras.Variable(np.ones((40, 3)))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    built(optimizer, [weight]).place([0, 1], {1: "CPU:0"}, by_element=True)
    *counters, slot = with_slots(optimizer.variables)
    assert isinstance(slot, SharedSlot)
    *same, part = on_devices(optimizer.variables)
    assert same == counters
    assert part.shape == [56]  # Of 120 elements the first device has 64.
    # The counter of steps, the learning rate, the part; of two devices of a process each has half.
    assert sizes(optimizer.variables) == [8, 4, 8 * 56]
    assert sizes(optimizer.variables, num_devices=2) == [8, 4, 4 * 56]


def test_optimizer_that_is_built_already_is_refused():
    weight = keras.Variable(np.ones(3))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([weight])
    with pytest.raises(ValueError, match="has its state before the run could share it out"):
        SharedState(optimizer, [weight], alone)


def test_optimizer_that_does_not_say_whose_a_state_is_is_refused():
    class Own(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            self.table = self.add_variable(shape=(4, 4), name="table")

    with pytest.raises(ValueError, match=r"Own keeps the state '\S*table', of which it does not"):
        built(Own(), [keras.Variable(np.ones(3))])


def test_support_takes_nothing_off_beside_states_that_are_shared_out():
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    built(model.optimizer, model.trainable_variables)
    with pytest.raises(ValueError, match=r"weights='state' \(swap_weights\) .* devices share out"):
        LargeModelSupport("1GiB", weights="state", verbose=0).take_off(model)
    # Without them, all would leave.
    LargeModelSupport("1KiB", threshold_bytes=1, verbose=0).take_off(model)
    assert not any(map(home_of, model.variables))
