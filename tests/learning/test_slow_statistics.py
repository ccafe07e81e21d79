"""Batch normalisation whose statistics a training is too short for."""

import keras
import numpy as np
import pytest

from tfunet.learning.slow_statistics import slow_statistics


def network(momentum):
    image = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(2, 3, padding="same")(image)
    return keras.Model(image, keras.layers.BatchNormalization(momentum=momentum)(x))


@pytest.mark.parametrize(
    ("momentum", "steps", "share"), [(0.999, 273, "76%"), (0.999, 2400, ""), (0.99, 4, "")]
)
def test_statistics_that_stay_what_they_begin_with_are_told(momentum, steps, share):
    told = slow_statistics(network(momentum), steps)
    assert (f"still hold {share}" in told) if share else told == ""


def test_statistics_of_data_are_none():
    model = network(0.999)
    model.layers[-1].moving_mean.assign(np.ones(2))
    assert slow_statistics(model, 1) == ""
