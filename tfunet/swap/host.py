"""Where swapped tensors go: host memory."""

import time
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfunet.stamps import Note, timed, unordered

ALIGNMENT = 64  # bytes


class Tier(Protocol):
    """Takes tensors out of device memory while a step runs, and brings them back.

    Attributes:
        copies_overlap: Whether copies run beside computation.
    """

    copies_overlap: bool

    def out(self, tensor: tf.Tensor) -> tf.Operation:
        """Return the op after which the device's copy is no longer needed."""

    def back(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the tensor, in new device memory; made under the caller's control edges."""


class NumpyMemory:
    """NumPy arrays, outside TensorFlow's own allocator: the host of a CPU that plays the device.

    Each swapped tensor has an array of its own, which is used again in every step, and in a step
    that is traced again for another batch.

    Args:
        note: Told of each copy in each step: "swap out" or "swap in", from when to when.
    """

    # They take a core that the ops would have.
    copies_overlap = False

    def __init__(self, note: Note | None = None) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._note = note

    def out(self, tensor: tf.Tensor) -> tf.Operation:
        key = tensor.name

        def put(value: np.ndarray) -> np.ndarray:
            since = time.time()
            held = self._arrays.get(key)
            if held is None or (held.shape, held.dtype) != (value.shape, value.dtype):
                self._arrays[key] = held = _aligned(value)
            np.copyto(held, value)
            if self._note is not None:
                self._note("swap out", since, time.time())
            return np.zeros((), np.int32)

        with tf.device(_host(tensor)):
            return unordered(tf.numpy_function(put, [tensor], tf.int32, name="swap_out").op)

    def back(self, tensor: tf.Tensor) -> tf.Tensor:
        key = tensor.name
        with tf.device(_host(tensor)):
            value = tf.numpy_function(lambda: self._arrays[key], [], tensor.dtype, name="swap_in")
            value.set_shape(tensor.shape)
        unordered(value.op)

        # The array is lent to TensorFlow, which takes it as it is; the copy lies on the device.
        def taken(value: tf.Tensor) -> tf.Tensor:
            with tf.device(tensor.device):
                copy = tf.raw_ops.DeepCopy(x=value)
            unordered(copy.op)
            return copy

        return timed("swap in", self._note, taken, value, device=tensor.device)


class HostMemory:
    """Memory of the host beside a GPU; TensorFlow copies from and to pinned buffers."""

    copies_overlap = True

    def __init__(self) -> None:
        self._copies: dict[str, tf.Tensor] = {}

    def out(self, tensor: tf.Tensor) -> tf.Operation:
        with tf.device("CPU:0"):
            copy = tf.identity(tensor, name="swap_out")
        self._copies[f"{id(tensor.graph)} {tensor.name}"] = copy
        return copy.op

    def back(self, tensor: tf.Tensor) -> tf.Tensor:
        with tf.device(tensor.device):
            return tf.identity(self._copies[f"{id(tensor.graph)} {tensor.name}"], name="swap_in")


def _aligned(value: np.ndarray) -> np.ndarray:
    """Return an empty array like another, at an address that TensorFlow takes without a copy."""
    memory = np.empty(value.nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + value.nbytes].view(value.dtype).reshape(value.shape)


def _host(tensor: tf.Tensor) -> str | None:
    """Return the device of a tensor on a CPU: NumPy functions run on CPUs only."""
    return tensor.device or None
