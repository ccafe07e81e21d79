"""Made-up tensors, to run ops on."""

from collections.abc import Sequence
from math import prod

import tensorflow as tf

# So many made-up numbers differ.
NUMBERS = 2**20
# A number of repetitions that divides a size is sought among so many.
MOST_TIMES = 2**10


def made_up_numbers(dtype: tf.DType) -> tf.Tensor:
    """Return numbers of both signs; whole ones are 0.

    Where signs decide what an op does, as in an activation in 16 bits, it takes twice as long as
    with numbers that are all alike.
    """
    if not dtype.is_floating:
        return tf.zeros([1], dtype)
    return tf.cast(tf.random.stateless_normal([NUMBERS], seed=[0, 0]), dtype)


def repeated(numbers: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return a tensor of a shape that has some of the numbers, (n,), at least twice.

    TensorFlow would not copy what is there once.
    """
    size = prod(shape)
    least = max(2, -(-size // numbers.shape[0]))
    times = next((times for times in range(least, least + MOST_TIMES) if size % times == 0), None)
    if times is None or size < times:
        return tf.fill(shape, numbers[0])
    return tf.reshape(tf.tile(numbers[: size // times], [times]), shape)
