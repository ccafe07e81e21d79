"""The device that is being traced, as Keras sees it."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


def traced_device() -> int:
    """Return which device is being traced, in a process that has several."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let Keras believe that this device is the only one: others have other variables."""
    with tf.distribute.ReplicaContext(_ALONE, 0):
        yield


# TensorFlow's strategy outside of any other.
_ALONE = tf.distribute.get_strategy()
