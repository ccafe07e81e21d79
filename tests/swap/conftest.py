import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def _arithmetic_as_written():
    """Turn off the rewriting of sums, whose last bit depends on who else reads their parts."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})
