"""Times ops of a step alone, on made-up numbers, and measures or predicts their scratch memory."""

import contextlib
import re
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from tfunet.graph import slab_ops, slab_rules
from tfunet.graph.clock import Clock
from tfunet.graph.edits import like
from tfunet.graph.passes import COLLECTIVE
from tfunet.graph.reader import NO_SIZE, num_bytes
from tfunet.graph.slabs import Slabs
from tfunet.graph.static_values import known_value
from tfunet.graph.window_axes import POOL_GRADIENTS
from tfunet.machine.device import free_bytes, used_bytes
from tfunet.timing.xplane import read_allocations

# The op does not work on made-up numbers, or there is no room for them beside the weights.
REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)
# TensorFlow waits for ten seconds before it refuses memory. After so many refusals, the ops that
# are left are not timed.
MOST_OUT_OF_MEMORY = 3
# Inputs are made so many bytes ahead of the op that reads them, so that they have left the nearest
# caches, but no more than a share of the free memory of the device.
AHEAD_BYTES = 3 * 2**23
AHEAD_SHARE = 1 / 4
# So many made-up numbers differ.
NUMBERS = 2**20
# A number of repetitions that divides a size is sought among so many.
MOST_TIMES = 2**10
# A tiny op is timed so many times in a row.
TINY_OPS = 100


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """What an op takes.

    Args:
        seconds: Its time (see `Clock.seconds`).
        scratch_bytes: Memory of its device beyond its outputs; 0 if the allocator keeps no account.
    """

    seconds: float
    scratch_bytes: int = 0


class OpKind(NamedTuple):
    """Ops that take the same time.

    Args:
        is_held: Whether another op reads its inputs later, so that it cannot use their memory.
        times: How many of them a step has.
        fresh: Positions of the inputs that were made or read just before: caches may have them.
        slab: How the op runs in slabs, and the rows [begin, end) of the slab that is run in its
            place; None if all of the op is run.
    """

    op: tf.Operation
    is_held: bool = False
    times: int = 1
    fresh: frozenset[int] = frozenset()
    slab: tuple[Slabs, int, int] | None = None

    def shape(self, position: int) -> Sequence[int]:
        """Return the shape of an input, or of the rows that the slab reads of it."""
        tensor = self.op.inputs[position]
        if self.slab is None:
            return tensor.shape
        slabs, begin, end = self.slab
        rows = slabs.inputs[position]
        if rows is None:
            return tensor.shape
        first, last = rows.rows(begin, end)
        return slab_rules.shape_of_rows(tensor, last - first)

    @property
    def share(self) -> float:
        """The share of the op that is run."""
        if self.slab is None:
            return 1.0
        slabs, begin, end = self.slab
        return (end - begin) / slabs.rows


def take(kinds: Sequence[OpKind]) -> list[OpCost | None]:
    """Return what each op takes alone; None for an op that cannot be run alone.

    They run in one call, one after the other, so that nothing else runs between two readings of
    the clock. Call it where ops run at once (`tf.init_scope`).
    """
    able = [index for index, (op, *_) in enumerate(kinds) if _can_be_alone(op)]
    taken = dict(zip(able, _take([kinds[index] for index in able]), strict=True))
    return [taken.get(index) for index in range(len(kinds))]


def tiny_seconds() -> float:
    """Return how long TensorFlow takes for an op on a few numbers."""
    clock = Clock()

    @tf.function(jit_compile=False, autograph=False)
    def several(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        def chain() -> tf.Tensor:
            result = first
            for _ in range(TINY_OPS):
                result = tf.sqrt(result * second)
            return result

        previous = clock.warm(first)
        with tf.control_dependencies([clock.time("tiny", [previous], chain)]):
            return tf.zeros(())

    numbers = tf.fill([16], 1.0)
    return clock.seconds(lambda: several(numbers, numbers))["tiny"] / (2 * TINY_OPS)


def _can_be_alone(op: tf.Operation) -> bool:
    if (
        not op.outputs
        or op.op_def.is_stateful
        # It would wait for others, which time other ops.
        or op.type.startswith(COLLECTIVE)
        or any(tensor.dtype in NO_SIZE for tensor in (*op.inputs, *op.outputs))
        or not all(tensor.shape.is_fully_defined() for tensor in op.inputs)
    ):
        return False
    # If the shape of an output depends on numbers, made-up ones will not do.
    with tf.Graph().as_default():
        inputs = [
            tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
            if (value := known_value(op, tensor)) is None
            else tf.constant(value, tensor.dtype)
            for tensor in op.inputs
        ]
        outputs = like(op, inputs, "alone").outputs
        return all(tensor.shape.is_fully_defined() for tensor in outputs)


def _take(kinds: Sequence[OpKind]) -> list[OpCost | None]:
    """Return what each op takes; None for the ops that TensorFlow refuses to run."""
    taken: list[OpCost | None] = [None] * len(kinds)
    parts = [list(range(len(kinds)))]
    out_of_memory = 0
    while parts and out_of_memory < MOST_OUT_OF_MEMORY:
        part = parts.pop()
        try:
            results = _take_together([kinds[index] for index in part])
        except REFUSALS as error:
            out_of_memory += isinstance(error, tf.errors.ResourceExhaustedError)
            named = re.search(r"\balone_(\d+)", str(error))
            at, half = int(named[1]) if named else 0, len(part) // 2
            left = [part[:at] + part[at + 1 :]] if named else [part[half:], part[:half]]
            parts += [some for some in left if some and some != part]
        else:
            for index, result in zip(part, results, strict=True):
                taken[index] = result
    return taken


def _take_together(kinds: Sequence[OpKind]) -> Sequence[OpCost]:
    clock = Clock()
    free = free_bytes()
    ahead_bytes = AHEAD_BYTES if free is None else min(AHEAD_BYTES, int(free * AHEAD_SHARE))
    dtypes = {tf.float32, *(tensor.dtype for op, *_ in kinds for tensor in op.inputs)}

    # The numbers are arguments: TensorFlow would compute with constants beforehand.
    @tf.function(jit_compile=False, autograph=False)
    def one_after_another(*numbers: tf.Tensor) -> tf.Tensor:
        number = dict(zip(dtypes, numbers, strict=True))
        previous = clock.warm(numbers[0])
        waiting: deque[list[tf.Tensor | None]] = deque()
        coming = iter(kinds)
        for index, kind in enumerate(kinds):
            while not waiting or sum(map(_num_bytes, waiting)) < ahead_bytes:
                following = next(coming, None)
                if following is None:
                    break
                ahead, previous = _made_ahead(following, number, previous)
                waiting.append(ahead)
            inputs, previous = _completed(kind, waiting.popleft(), number, previous)
            run = partial(_run, kind, inputs, f"alone_{index}")
            previous = clock.time(f"alone_{index}", [previous], run)
            if kind.is_held:
                previous = clock.read([previous], inputs)
        with tf.control_dependencies([previous]):
            return tf.zeros(())

    numbers = [made_up_numbers(dtype) for dtype in dtypes]
    with tempfile.TemporaryDirectory() as folder:
        # If the allocator keeps no account, the profiler gets none either.
        watched = None if used_bytes() is None else _profiled(folder)
        counts = {f"alone_{index}": kind.times for index, kind in enumerate(kinds)}
        seconds = clock.seconds(lambda: one_after_another(*numbers), counts=counts, watched=watched)
        scratch = _scratch(folder, [op for op, *_ in kinds])
    return [
        OpCost(seconds=seconds[name] / kind.share, scratch_bytes=scratch[name])
        for name, kind in ((f"alone_{index}", kind) for index, kind in enumerate(kinds))
    ]


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


def _num_bytes(tensors: Sequence[tf.Tensor | None]) -> int:
    return sum(num_bytes(tensor) for tensor in tensors if tensor is not None)


def _run(kind: OpKind, inputs: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    op = kind.op
    with tf.device(op.device or None):
        if kind.slab is None:
            return like(op, inputs, name).outputs[0]
        slabs, begin, end = kind.slab
        with tf.name_scope(name):  # An error names it.
            return slab_ops.make(op, slabs, inputs, begin, end)[0]


def _made_ahead(
    kind: OpKind, number: Mapping[tf.DType, tf.Tensor], previous: tf.Operation
) -> tuple[list[tf.Tensor | None], tf.Operation]:
    """Return made-up inputs of an op, without the fresh ones, and the last op that makes them."""
    op = kind.op
    if op.type in POOL_GRADIENTS:
        inputs, previous = _completed(kind, [None] * len(op.inputs), number, previous)
        # oneDNN's gradient reads more than the output of its forward op, which is the second input.
        with tf.control_dependencies([previous]), tf.device(op.device or None):
            forward = like(op.inputs[1].op, inputs[:1], f"forward_of_{previous.name}")
        return [inputs[0], forward.outputs[0], *inputs[2:]], forward
    ahead: list[tf.Tensor | None] = []
    for at in range(len(op.inputs)):
        ahead.append(None if at in kind.fresh else _made_up(kind, at, number, previous))
        previous = previous if ahead[-1] is None else ahead[-1].op
    return ahead, previous


def _completed(
    kind: OpKind,
    ahead: Sequence[tf.Tensor | None],
    number: Mapping[tf.DType, tf.Tensor],
    previous: tf.Operation,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Return all inputs of an op, and the last op that makes one that was not made ahead."""
    inputs = []
    for at, made in enumerate(ahead):
        inputs.append(_made_up(kind, at, number, previous) if made is None else made)
        previous = inputs[-1].op if made is None else previous
    return inputs, previous


def _made_up(
    kind: OpKind, at: int, number: Mapping[tf.DType, tf.Tensor], previous: tf.Operation
) -> tf.Tensor:
    op, tensor = kind.op, kind.op.inputs[at]
    known = known_value(op, tensor)
    # One after the other: TensorFlow would make one op of two that are all alike.
    with tf.device(op.device or None), tf.control_dependencies([previous]):
        if known is not None:
            return tf.constant(known, tensor.dtype)
        return repeated(number[tensor.dtype], kind.shape(at))


def signature(op: tf.Operation) -> Any:
    """Return a key that is equal for ops that take the same time."""
    attributes = {
        name: value.SerializeToString()
        for name, value in op.node_def.attr.items()
        if not name.startswith("_")
    }
    # Shapes as text: some tensors have no known rank.
    inputs = [(tensor.dtype, str(tensor.shape)) for tensor in op.inputs]
    # The size of the output may depend on the value of an input, as in a Tile.
    outputs = [str(tensor.shape) for tensor in op.outputs]
    return op.type, tuple(sorted(attributes.items())), tuple(inputs), tuple(outputs)


@contextlib.contextmanager
def _profiled(folder: str) -> Iterator[None]:
    """Profile what the allocator hands out, unless another profile is being taken."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    with contextlib.ExitStack() as profile:
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            tf.profiler.experimental.start(folder, options)
            profile.callback(tf.profiler.experimental.stop)
        yield


def _scratch(folder: str, ops: Sequence[tf.Operation]) -> dict[str, int]:
    """Return the most bytes that each op held at once beyond its outputs, by its name when run."""
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    owners: dict[int, tuple[str, int]] = {}
    for path in Path(folder).glob("**/*.xplane.pb"):
        events = read_allocations(path)
        # Host memory beside a GPU is not the device's.
        on_gpu = [event for event in events if event.allocator.startswith("GPU_")]
        for event in on_gpu or events:
            if event.begins:
                owners[event.address] = event.op, event.num_bytes
                held[event.op] = held.get(event.op, 0) + event.num_bytes
                most[event.op] = max(most.get(event.op, 0), held[event.op])
            elif event.address in owners:
                name, size = owners.pop(event.address)
                held[name] -= size
    outputs = {f"alone_{index}": sum(map(num_bytes, op.outputs)) for index, op in enumerate(ops)}
    return {name: max(0, most.get(name, 0) - size) for name, size in outputs.items()}
