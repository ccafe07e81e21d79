"""Random choices: functions of (seed, epoch, sample), and random enough."""

import numpy as np
import pytest
import tensorflow as tf

from tfunet.data.augmentation.random_streams import (
    CROP_STREAM,
    ORDER_STREAM,
    STREAMS,
    epoch_order,
    stream_seed,
)


def long(value):
    return tf.constant(value, tf.int64)


def test_the_order_of_an_epoch_never_changes():
    expected = [7, 1, 3, 6, 0, 8, 4, 2, 9, 5]
    # Written down on purpose: a run resumed on another TensorFlow must see the same samples.
    assert epoch_order(10, 0, long(0)).numpy().tolist() == expected
    assert epoch_order(10, 0, long(1)).numpy().tolist() != expected
    assert epoch_order(10, 1, long(0)).numpy().tolist() != expected


@pytest.mark.parametrize("num_samples", [5, 60])
def test_any_sample_is_as_likely_as_another_at_any_position(num_samples):
    epochs = 1500
    dataset = tf.data.Dataset.range(epochs).map(lambda epoch: epoch_order(num_samples, 7, epoch))
    places = np.zeros((num_samples, num_samples))
    for order in dataset.as_numpy_iterator():
        places[np.arange(num_samples), order] += 1
    assert (places.sum(axis=0) == epochs).all()
    expected = epochs / num_samples
    chi_square = ((places - expected) ** 2 / expected).sum()
    freedom = (num_samples - 1) ** 2
    # Five standard deviations; tf.random.experimental.index_shuffle is fifteen times off.
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_seeds_of_all_streams_samples_and_epochs_are_distinct():
    found = {
        tuple(stream_seed(seed, long(epoch), long(sample), stream).numpy())
        for seed in (0, 1, 2**40)
        for epoch in (0, 1, 2**20)
        for sample in (0, 1, 2**31)
        for stream in (0, 1, 16, 255)
    }
    assert len(found) == 3 * 3 * 3 * 4


def test_every_choice_has_a_stream_of_its_own():
    numbers = [ORDER_STREAM, CROP_STREAM, *STREAMS.values()]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 2**8
