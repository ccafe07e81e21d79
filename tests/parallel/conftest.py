import keras
import pytest


@pytest.fixture(autouse=True)
def float64():
    """Keras's layers in float64, in which a mistake cannot hide behind rounding."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
