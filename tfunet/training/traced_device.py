"""The device that is being traced, as Keras sees it."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfunet.backend import Backend


def traced_device() -> int:
    """Return which device is being traced, in a process that has several."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def names_of_devices(backend: Backend) -> dict[int, str]:
    """Return the names of the devices of this process."""
    names: dict[int, str] = {}

    def look() -> tf.Tensor:
        number = tf.zeros(())
        names[traced_device()] = number.device
        return number

    tf.function(lambda: backend.run(look), autograph=False)()
    return names


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let Keras believe that this device is the only one: others have other variables."""
    with tf.distribute.ReplicaContext(_ALONE, 0):
        yield


# TensorFlow's strategy outside of any other.
_ALONE = tf.distribute.get_strategy()
