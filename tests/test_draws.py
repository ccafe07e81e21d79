"""Each test draws the same numbers, whichever tests its process has run before."""

import random

import keras
import numpy as np
import pytest

RNG = np.random.default_rng(0)
FIRST = RNG.random()


# Three times, so that one of two workers of pytest-xdist has it more than once.
@pytest.mark.parametrize("again", range(3))
def test_numbers_do_not_depend_on_earlier_tests(again):
    after_import = np.random.default_rng(0)
    assert after_import.random() == FIRST
    assert RNG.random() == after_import.random()
    drawn = [random.random(), np.random.random(), float(keras.random.normal(()))]
    weights = keras.layers.Dense(2)(np.ones((1, 3), np.float32)).numpy().tolist()
    keras.utils.set_random_seed(1)
    assert drawn == [random.random(), np.random.random(), float(keras.random.normal(()))]
    assert weights == keras.layers.Dense(2)(np.ones((1, 3), np.float32)).numpy().tolist()
