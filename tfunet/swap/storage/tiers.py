"""Tiers for swapped tensors beyond host memory: a file on disk."""

from collections.abc import Collection
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.swap.storage.disk import DiskFile
from tfunet.swap.storage.host import Rows, Tier, function_of, key_of, shaped, stored
from tfunet.timing.stamps import Note, timed, unordered


@final
class DiskTier:
    """A file that tensors are written to and read from, by way of host memory.

    Host memory holds a tensor while it is read, until it is on the device. `file` has room for each
    tensor, by its `key_of`, in the part of its function. For `note` see `NumpyMemory`.
    """

    def __init__(self, file: DiskFile, *, on_gpu: bool, note: Note | None = None) -> None:
        # On a CPU copies take a core from the ops.
        self.copies_overlap = on_gpu
        self._file = file
        self._on_gpu = on_gpu
        self._note = note
        self._written: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def out(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Operation:
        key, part = key_of(tensor.graph, name or tensor.name), function_of(tensor.graph)

        def store(value: np.ndarray) -> None:
            self._file.write(key, value, part=part)
            self._written[key] = value.shape, value.dtype

        # When this is done, the copy in host memory is gone: only copies under way take any.
        with tf.device(self._host(tensor)):
            return unordered(stored(tensor, store, self._note, name="swap_out").op)

    def back(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
        key, part = key_of(tensor.graph, name or tensor.name), function_of(tensor.graph)

        def get() -> np.ndarray:
            shape, dtype = self._written[key]
            num_bytes = int(np.prod(shape)) * dtype.itemsize
            return self._file.read(key, num_bytes, part=part).view(dtype).reshape(shape)

        def fetched(_: Any) -> tf.Tensor:
            with tf.device(self._host(tensor)):
                value = tf.numpy_function(get, [], tensor.dtype, name="swap_in")
                unordered(value.op)
                value = shaped(value, tensor.shape)
            with tf.device(tensor.device):
                if self._on_gpu:
                    return tf.identity(value)
                # The array lies outside of TensorFlow's memory; the copy is on the device.
                copy = tf.raw_ops.DeepCopy(x=value)
            unordered(copy.op)
            return copy

        return timed("swap in", self._note, fetched, device=tensor.device)

    def _host(self, tensor: tf.Tensor) -> str | None:
        return "CPU:0" if self._on_gpu else tensor.device or None


@final
class HostAndDisk:
    """Host memory, and the disk for some tensors, by name."""

    def __init__(self, host: Tier, disk: DiskTier, on_disk: Collection[str]) -> None:
        self.copies_overlap = host.copies_overlap
        self._host = host
        self._disk = disk
        self._on_disk = frozenset(on_disk)

    def out(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Operation:
        return self._tier_of(name or tensor.name).out(tensor, name=name)

    def back(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
        return self._tier_of(name or tensor.name).back(tensor, name=name)

    def rows(self, tensor: tf.Tensor) -> Rows:
        return self._host.rows(tensor)

    def _tier_of(self, name: str) -> Tier | DiskTier:
        return self._disk if name in self._on_disk else self._host
