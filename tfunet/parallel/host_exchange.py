"""Exchanges between processes of one host, through memory that they share instead of sockets.

    A   copies a tensor into a buffer of its own -> a byte through B's pipe
    B   has that byte -> copies the tensor out of A's buffer

Each process has two buffers for each other one, so that it is a message ahead at most: the byte of
the message before the last one must have come back. Buffers and pipes have no name, and the others
open them through /proc, as only the same user can. So nothing is left of a process that was killed,
and where the other end of a pipe is closed, that process has ended.

For CPUs, where a socket is served by the core that computes. Averages stay the backend's own.
"""

import contextlib
import hashlib
import math
import mmap
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Exchange, Topology
from tfunet.files.regular import read_bytes

BUFFERS = 2
SENT, READ = b"s", b"r"
# What NumPy has no type for travels as whole numbers of its size.
AS_BITS = {tf.bfloat16: tf.uint16}


def exchange_of(backend: Backend, topology: Topology, *, what: str, may_share: bool) -> Exchange:
    """Return what exchanges tensors between devices: the backend, or memory that they share.

    All processes must call it at once.

    Args:
        what: What needs it, such as "split".
        may_share: Whether processes of one host may share memory, if the backend's class says that
            its own may, the same in all processes. A class that inherits from it, or wraps it, has
            to say so itself: it may exchange in another way.

    Raises ValueError for a backend that cannot exchange.
    """
    exchange: Exchange | None = getattr(backend, "exchange", None)
    if exchange is None:
        raise ValueError(
            f"The backend {backend.name!r} has no method `exchange`, which {what} needs. Leave "
            f"out {what}, or choose mirrored, multiworker or horovod."
        )
    may_share = may_share and vars(type(backend)).get("shares_memory", False)
    if not may_share or len(topology.local_replicas) != 1 or topology.process_count == 1:
        return exchange
    is_cpu = not tf.config.list_logical_devices("GPU")
    return connected(backend, topology, is_cpu=is_cpu) or exchange


def connected(backend: Backend, topology: Topology, *, is_cpu: bool) -> "HostExchange | None":
    """Return the exchange through shared memory; None, in all processes, where one is elsewhere or
    computes on a GPU."""
    me, count = topology.process_index, topology.process_count
    ends = {other: _Outgoing() for other in range(count) if other != me}
    table = np.zeros((count, count, 3 + BUFFERS))
    for other, end in ends.items():
        host = _host() if is_cpu else -1.0 - me
        table[me, other] = [host, os.getpid(), end.pipe[1], *end.buffers]
    table = backend.sum(table)
    hosts = {table[one, other, 0] for one in range(count) for other in range(count) if one != other}
    peers: dict[int, _Peer] = {}
    if len(hosts) == 1:
        with contextlib.suppress(OSError):
            peers = {
                other: _Peer(other, end, table[other, me, 1:].astype(int).tolist())
                for other, end in ends.items()
            }
    # The sum is a barrier, too: all have opened what they need.
    is_complete = backend.sum(np.array([float(len(peers) == len(ends))]))[0] == count
    for end in ends.values():
        end.close_given()
    if not is_complete:
        for end in ends.values():
            end.close()
        return None
    exchange = HostExchange(peers)
    weakref.finalize(exchange, _close, list(ends.values()), list(peers.values()))
    return exchange


def _close(ends: Sequence["_Outgoing"], peers: Sequence["_Peer"]) -> None:
    every: list[_Outgoing | _Peer] = [*peers, *ends]
    for each in every:
        each.close()


def _host() -> float:
    """Return a number of what processes must have in common to open each other's memory."""
    where = (
        read_bytes(Path("/proc/sys/kernel/random/boot_id"), most=64).decode(),
        os.readlink("/proc/self/ns/pid"),
        str(os.getuid()),
    )
    digest = hashlib.sha256("\n".join(where).encode()).digest()
    return float(int.from_bytes(digest[:6]))  # As many bits as a float64 keeps.


class _Outgoing:
    """What this process writes for another one: its buffers; and the pipe that it reads."""

    def __init__(self) -> None:
        self.pipe = os.pipe()
        self.buffers = [os.memfd_create("tfunet", os.MFD_CLOEXEC) for _ in range(BUFFERS)]

    def close_given(self) -> None:
        """Close the end of the pipe that is the other's, so that its end is noticed."""
        os.close(self.pipe[1])

    def close(self) -> None:
        for descriptor in (self.pipe[0], *self.buffers):
            os.close(descriptor)


class _Peer:
    """Another process: messages to it and from it, in order."""

    def __init__(self, index: int, own: _Outgoing, theirs: Sequence[int]) -> None:
        self._index, self._own = index, own
        process, pipe, *buffers = theirs
        self._inbox = own.pipe[0]
        self._outbox = os.open(f"/proc/{process}/fd/{pipe}", os.O_WRONLY)
        self._opened = [os.open(f"/proc/{process}/fd/{each}", os.O_RDWR) for each in buffers]
        self._incoming = [_Buffer(each) for each in self._opened]
        self._outgoing = [_Buffer(each) for each in own.buffers]
        self._num_sent = self._num_received = 0
        self._waiting = {SENT: 0, READ: BUFFERS}

    def send(self, values: np.ndarray) -> None:
        self._await(READ)
        self._outgoing[self._num_sent % BUFFERS].write(values)
        self._num_sent += 1
        self._tell(SENT)

    def receive(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        self._await(SENT)
        values = self._incoming[self._num_received % BUFFERS].read(shape, dtype)
        self._num_received += 1
        with contextlib.suppress(ConnectionError):  # It needs this no more, if it has ended well.
            self._tell(READ)
        return values

    def _await(self, word: bytes) -> None:
        while not self._waiting[word]:
            words = os.read(self._inbox, 64)
            if not words:
                raise ConnectionError(f"Process {self._index} ended during an exchange.")
            for known in (SENT, READ):
                self._waiting[known] += words.count(known)
        self._waiting[word] -= 1

    def _tell(self, word: bytes) -> None:
        try:
            os.write(self._outbox, word)
        except BrokenPipeError:
            raise ConnectionError(f"Process {self._index} ended during an exchange.") from None

    def close(self) -> None:
        for descriptor in (self._outbox, *self._opened):
            os.close(descriptor)


class _Buffer:
    """Memory of no name, which grows with the largest message."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None

    def write(self, values: np.ndarray) -> None:
        np.copyto(self._view(values.shape, values.dtype, grows=True), values)

    def read(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        return self._view(shape, dtype, grows=False).copy()

    def _view(self, shape: Sequence[int], dtype: np.dtype, *, grows: bool) -> np.ndarray:
        num_bytes = max(1, math.prod(shape) * dtype.itemsize)
        if self._map is None or len(self._map) < num_bytes:
            if grows:
                os.ftruncate(self._descriptor, num_bytes)
            self._map = mmap.mmap(self._descriptor, num_bytes)
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype, count).reshape(shape)


@final
class HostExchange:
    """`Backend.exchange` for processes that share memory."""

    def __init__(self, peers: Mapping[int, _Peer]) -> None:
        self._peers = peers
        self._graph: Any = None
        self._last: tf.Operation | None = None

    def __call__(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        """Send a tensor to each of `sent`; return what those of `received` send."""
        wire = AS_BITS.get(dtype, dtype)
        to, of = sorted(sent), sorted(received)
        given = [tf.bitcast(sent[other], wire) if wire != dtype else sent[other] for other in to]
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        # It waits in a thread of TensorFlow's, which may be the only one: all must come to the
        # exchanges in the order in which they traced them.
        after = [self._last] if graph is self._graph and self._last is not None else []
        with tf.control_dependencies(after if graph is not None else []):
            swap = partial(self._swap, to, {other: received[other] for other in of}, wire)
            # Eagerly, a single one comes without its list.
            came = tf.nest.flatten(tf.numpy_function(swap, given, [wire] * len(of) or [tf.int32]))
        if graph is not None:
            self._graph, self._last = graph, came[0].op
        parts = {}
        for other, value in zip(of, came, strict=False):
            shaped = tf.ensure_shape(value, received[other])
            parts[other] = tf.bitcast(shaped, dtype) if wire != dtype else shaped
        return parts

    def _swap(
        self,
        to: Sequence[int],
        of: Mapping[int, Sequence[int]],
        dtype: tf.DType,
        *given: np.ndarray,
    ) -> list[np.ndarray]:
        for other, values in zip(to, given, strict=True):
            self._peers[other].send(np.asarray(values))
        kind = np.dtype(dtype.as_numpy_dtype)
        return [self._peers[other].receive(shape, kind) for other, shape in of.items()] or [
            np.zeros((), np.int32)
        ]
