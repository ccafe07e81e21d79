"""Tiers that take swapped tensors, and those in host memory."""

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfunet.swap.storage.disk import aligned
from tfunet.timing.stamps import Note, timed, unordered

ALIGNMENT = 64  # bytes
HOST = "CPU:0"
# Where the ops of a step without a device run.
GPU = "GPU:0"

_functions: "weakref.WeakKeyDictionary[tf.Graph, int]" = weakref.WeakKeyDictionary()
_numbers = itertools.count()


def function_of(graph: tf.Graph) -> int:
    """Return a number of the function that a graph is traced for; graphs inside it have the same.

    A process runs one function at a time; the graphs of one function (replicas) can run at once.
    """
    while hasattr(outer := getattr(graph, "outer_graph", None), "outer_graph"):
        graph = outer
    if graph not in _functions:
        _functions[graph] = next(_numbers)
    return _functions[graph]


def key_of(graph: tf.Graph, name: str) -> str:
    """Return a key of a tensor, unique among the graphs of its function."""
    return f"{id(graph)} {name}"


class Tier(Protocol):
    """Takes tensors out of device memory while a step runs, and brings them back."""

    copies_overlap: bool  # with computation

    def out(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Operation:
        """Return the op after which the device's copy is no longer needed.

        `name` is the tensor's name in the plan where that is not its own.
        """

    def back(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
        """Return the tensor in new device memory, made under the caller's control edges."""

    def rows(self, tensor: tf.Tensor) -> "Rows":
        """Return the place of a tensor that comes and goes slab by slab."""


class Rows(Protocol):
    """A tensor outside of device memory, (batch, rows, ...), written and read by rows.

    Both ops are made under the caller's control edges.
    """

    def write(self, slab: tf.Tensor, first: int) -> tf.Operation:
        """Write rows from `first` on; return the op after which they are there."""

    def read(self, first: int, last: int) -> tf.Tensor:
        """Return the rows from `first` to before `last`, in new device memory."""


class NumpyMemory:
    """NumPy arrays, outside TensorFlow's own allocator, for a CPU that plays the device.

    Each swapped tensor has an array of its own, which is used again in every step. A step of
    another function, traced for another batch size, takes over the arrays that fit and frees the
    others. `note` is told of each "swap out" and "swap in" in each step.
    """

    # Copies take a core from the ops.
    copies_overlap = False

    def __init__(self, note: Note | None = None) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._spare: list[np.ndarray] = []  # of the previous function
        self._function: int | None = None
        self._changes = threading.Lock()
        self._note = note

    def array(self, function: int, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return the array of a tensor to write to; see `function_of` and `key_of`."""
        with self._changes:
            if function != self._function:
                self._spare += self._arrays.values()
                self._arrays.clear()
                self._function = function
            held = self._arrays.get(key)
            if held is not None and (held.shape, held.dtype) == (shape, dtype):
                self._spare.clear()  # The function's second step: it has all arrays that it needs.
            else:
                self._arrays[key] = held = self._spared(shape, dtype)
            return held

    def _spared(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array of the previous function, or free some of those for a new one."""
        for index, array in enumerate(self._spare):
            if (array.shape, array.dtype) == (shape, dtype):
                return self._spare.pop(index)
        wanted = prod(shape) * dtype.itemsize
        while self._spare and wanted > 0:
            wanted -= self._spare.pop().nbytes
        return _aligned(shape, dtype)

    def out(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Operation:
        key, function = key_of(tensor.graph, name or tensor.name), function_of(tensor.graph)

        def store(value: np.ndarray) -> None:
            np.copyto(self.array(function, key, value.shape, value.dtype), value)

        with tf.device(_host(tensor)):
            return unordered(stored(tensor, store, self._note, name="swap_out").op)

    def back(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
        key = key_of(tensor.graph, name or tensor.name)
        with tf.device(_host(tensor)):
            value = tf.numpy_function(lambda: self._arrays[key], [], tensor.dtype, name="swap_in")
            unordered(value.op)
            value = shaped(value, tensor.shape)
        return self._taken(value, tensor.device)

    def rows(self, tensor: tf.Tensor) -> "NumpyRows":
        return NumpyRows(self, tensor)

    def _taken(self, value: tf.Tensor, device: str) -> tf.Tensor:
        """Return a copy on the device of an array that TensorFlow reads in place."""

        def taken(value: tf.Tensor) -> tf.Tensor:
            with tf.device(device):
                copy = tf.raw_ops.DeepCopy(x=value)
            unordered(copy.op)
            return copy

        return timed("swap in", self._note, taken, value, device=device)


class NumpyRows:
    """Rows in a NumPy array."""

    def __init__(self, memory: NumpyMemory, tensor: tf.Tensor) -> None:
        self._memory = memory
        self._key = f"{key_of(tensor.graph, tensor.name)} rows"
        self._like = tensor
        self._host = _host(tensor)
        # First row, row after the last, and a tensor that a read of these rows takes as an input.
        # A control edge would not do: TensorFlow loses it with an op that it simplifies away.
        self._written: list[tuple[int, int, tf.Tensor]] = []

    def write(self, slab: tf.Tensor, first: int) -> tf.Operation:
        memory, key, shape = self._memory, self._key, tuple(self._like.shape)
        function = function_of(self._like.graph)

        def store(value: np.ndarray) -> None:
            held = memory.array(function, key, shape, value.dtype)
            held[:, first : first + value.shape[1]] = value

        with tf.device(self._host):
            written = stored(slab, store, memory._note, name="slab_out")
        self._written.append((first, first + slab.shape[1], written))
        return unordered(written.op)

    def read(self, first: int, last: int) -> tf.Tensor:
        memory, key = self._memory, self._key
        awaited = [written for begin, end, written in self._written if begin < last and end > first]

        def get(*_: np.ndarray) -> np.ndarray:
            rows = memory._arrays[key][:, first:last]
            if rows.flags.c_contiguous and rows.ctypes.data % ALIGNMENT == 0:
                return rows
            lent = _aligned(rows.shape, rows.dtype)
            np.copyto(lent, rows)
            return lent

        shape = self._like.shape.as_list()
        with tf.device(self._host):
            value = tf.numpy_function(get, awaited, self._like.dtype, name="slab_in")
            value.set_shape([shape[0], last - first, *shape[2:]])
        unordered(value.op)
        return memory._taken(value, self._like.device)


class HostMemory:
    """Memory of the host beside a GPU; TensorFlow copies from and to pinned buffers.

    TensorFlow sends a tensor to another device as soon as it is made, and takes memory for it
    there, whatever the op waits for that reads it. So an op on the device that the tensor comes
    from, which shares its memory, waits for the caller's control edges.
    """

    copies_overlap = True

    def __init__(self) -> None:
        self._copies: dict[str, tf.Tensor] = {}

    def out(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Operation:
        copy = _sent(tensor, "swap_out", tensor.device or GPU, HOST)
        self._copies[key_of(tensor.graph, name or tensor.name)] = copy
        return copy.op

    def back(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
        copy = self._copies[key_of(tensor.graph, name or tensor.name)]
        return _sent(copy, "swap_in", HOST, tensor.device or GPU)

    def rows(self, tensor: tf.Tensor) -> "TensorRows":
        return TensorRows(tensor)


class TensorRows:
    """Rows in tensors of the host, one for each slab that was written."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self._device = tensor.device or GPU
        self._slabs: dict[int, tf.Tensor] = {}

    def write(self, slab: tf.Tensor, first: int) -> tf.Operation:
        self._slabs[first] = _sent(slab, "slab_out", self._device, HOST)
        return self._slabs[first].op

    def read(self, first: int, last: int) -> tf.Tensor:
        parts = []
        with tf.device(HOST):
            for begin, slab in sorted(self._slabs.items()):
                end = begin + slab.shape[1]
                if begin < last and end > first:
                    part = slab[:, max(0, first - begin) : last - begin]
                    parts.append(slab if part.shape[1] == slab.shape[1] else part)
            joined = parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
        return _sent(joined, "slab_in", HOST, self._device)


def _sent(tensor: tf.Tensor, name: str, home: str, goal: str) -> tf.Tensor:
    """Return a copy on another device that begins when the caller's control edges allow it."""
    with tf.device(home):
        ready = tf.identity(tensor, name=f"{name}_begins")
    with tf.control_dependencies(None), tf.device(goal):
        return tf.identity(ready, name=name)


def stored(
    tensor: tf.Tensor, store: Callable[[np.ndarray], None], note: Note | None, *, name: str
) -> tf.Tensor:
    """Return the output of an op that has a Python function store the tensor's array."""

    def put(value: np.ndarray) -> np.ndarray:
        since = time.time()
        store(value)
        if note is not None:
            note("swap out", since, time.time())
        return np.zeros((), np.int32)

    return tf.numpy_function(put, [tensor], tf.int32, name=name)


def shaped(value: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Return the output of a Python function, with a shape that TensorFlow's optimizer knows too.

    The optimizer does not read what `set_shape` says, and rearranges only ops of known shapes.
    """
    return tf.raw_ops.EnsureShape(input=value, shape=shape)


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an empty array at an address that TensorFlow accepts without a copy."""
    return aligned(prod(shape) * dtype.itemsize, ALIGNMENT).view(dtype).reshape(shape)


def _host(tensor: tf.Tensor) -> str | None:
    """Return the device of a tensor on a CPU: NumPy functions run on CPUs only."""
    return tensor.device or None
