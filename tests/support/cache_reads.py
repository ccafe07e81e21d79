"""Counts what is read of the cache."""

from contextlib import contextmanager
from unittest.mock import patch

import tensorflow as tf


@contextmanager
def bytes_read(least):
    """Yield a variable that counts the bytes that leave the cache, in every slice of its mapped
    files, which have more than so many values."""
    num_bytes = tf.Variable(0, dtype=tf.int64, trainable=False)
    real = tf.slice

    def counted(values, begin, size):
        if values.shape.rank == 1 and values.shape.num_elements() > least:
            num_bytes.assign_add(tf.cast(size[0], tf.int64) * values.dtype.size)
        return real(values, begin, size)

    with patch.object(tf, "slice", counted):
        yield num_bytes
