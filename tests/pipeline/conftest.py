"""The same random weights in every test that asks for them."""

import keras
import pytest


@pytest.fixture
def seeded():
    keras.utils.set_random_seed(0)
