import keras
import pytest


@pytest.fixture(autouse=True)
def float64():
    """Keras's layers in float64, in which a mistake cannot hide behind rounding.

    Weights are drawn from one seed: a draw can make rounding a thousand times larger than another.
    """
    keras.utils.set_random_seed(1)
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
