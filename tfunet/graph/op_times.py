"""Runs ops of a step one after another on made-up numbers: how long, and with how much scratch."""

import contextlib
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfunet.geometry.reach import Slabs
from tfunet.graph import slices
from tfunet.graph.reader import num_bytes
from tfunet.machine.device import free_bytes, used_bytes
from tfunet.timing.xplane import read_allocations

REPEATS = 5
# What takes as long is steadier, and timed twice.
LONG_SECONDS = 1.0
# Made-up numbers will not do for an op, or there is no room for them beside the weights.
REFUSALS = (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)
# Gradients that read an output of a forward op, their second input.
OF_FORWARD = frozenset({"MaxPoolGrad", "MaxPool3DGrad"})
# What an op reads was written so many bytes before, and is not in the nearest caches any more.
AHEAD_BYTES = 3 * 2**23
# But no more than this share of what is free of the device.
AHEAD_SHARE = 1 / 4
# So often nothing is timed, for what looking at the clock takes.
NOTHINGS = 7
# So many made-up numbers differ.
NUMBERS = 2**20
MOST_TIMES = 2**10
# A small op is timed so many times in a row.
TINY_OPS = 100


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What an op takes.

    Args:
        seconds: See `Clock.seconds`.
        scratch_bytes: Of its device, beyond its outputs; 0 where the allocator keeps no account.
    """

    seconds: float
    scratch_bytes: int = 0


class Kind(NamedTuple):
    """One op of several that take the same time.

    Args:
        op: That one.
        is_held: Whether something reads its inputs after it, so that it cannot use their memory.
        times: How many there are in a step.
        fresh: Inputs, by position, that were made or read just before: caches may have them.
        slab: Own rows of a slab that is run in the place of the op; None for all of it.
    """

    op: tf.Operation
    is_held: bool = False
    times: int = 1
    fresh: frozenset[int] = frozenset()
    slab: tuple[Slabs, int, int] | None = None

    def shape(self, position: int) -> Sequence[int]:
        """Return the shape of an input, or of what a slab takes of it."""
        whole = self.op.inputs[position]
        reach = self.slab[0].inputs[position] if self.slab is not None else None
        if self.slab is None or reach is None:
            return whole.shape
        first, last = reach.rows(*self.slab[1:])
        return slices.shape_of_rows(whole, last - first)

    @property
    def share(self) -> float:
        """Of the op: what is run of it."""
        return 1.0 if self.slab is None else (self.slab[2] - self.slab[1]) / self.slab[0].rows


class Clock:
    """Looks at the clock in the middle of a graph.

    Not with `tf.timestamp`, which op determinism refuses and which does not wait for a GPU.
    """

    def __init__(self) -> None:
        self._looks: list[float] = []
        self._names: list[str] = []
        self._graph: Any = None

    def time(
        self,
        name: str,
        after: Sequence[tf.Operation],
        part: Callable[[], tf.Tensor | tf.Operation],
    ) -> tf.Operation:
        """Return the op that looks at the clock after a part, which another look began.

        Args:
            name: Of the part, for `seconds`.
            after: Ops before the first look.
            part: Makes ops under the control edges that are there when it is called. Where it
                returns a tensor, a number of it is read, so that a GPU is done with it.
        """
        with tf.control_dependencies([self._look(after)]):
            made = part()
        self._names.append(name)
        if isinstance(made, tf.Operation):
            return self._look([made])
        return self._look([made.op], made)

    def warm(self, seen: tf.Tensor) -> tf.Operation:
        """Time nothing, for what looking takes, which `seconds` takes off; return the last look."""
        previous: list[tf.Operation] = []
        # The first looks of a call take longer, and the median forgets them.
        for _ in range(NOTHINGS):
            self._names.append("")
            previous = [self._look([self._look(previous)], seen)]
        return previous[0]

    def read(self, after: Sequence[tf.Operation], tensors: Sequence[tf.Tensor]) -> tf.Operation:
        """Return an op that reads a number of each tensor after others."""
        return self._call(lambda *_: np.zeros(()), after, tensors)

    def seconds(
        self,
        run: Callable[[], Any],
        *,
        counts: Mapping[str, float] | None = None,
        watched: Any = None,
    ) -> dict[str, float]:
        """Return what each part took in a few runs.

        Of the parts together, each as often as it counts, the time is that of the run that took
        least: what held the others up was not theirs. What of it falls on each part, the medians
        say.

        Args:
            run: Runs the graph.
            counts: How often each part counts; once by default.
            watched: Context of one run more, which is not among them.
        """
        runs: list[list[float]] = []
        run()  # Traces and compiles.
        if watched is not None:
            with watched:
                run()
        since = time.perf_counter()
        while len(runs) < (REPEATS if time.perf_counter() - since < LONG_SECONDS else 2):
            self._looks.clear()
            run()
            begins, ends = self._looks[::2], self._looks[1::2]
            runs.append([end - begin for begin, end in zip(begins, ends, strict=True)])
        looks = statistics.median(
            [one for run in runs for name, one in zip(self._names, run, strict=True) if not name]
            or [0.0]
        )
        weights = [(counts or {}).get(name, 1) if name else 0 for name in self._names]
        net = [[max(one - looks, 0.0) for one in run] for run in runs]
        medians = [statistics.median(one) for one in zip(*net, strict=True)]
        whole = min(_weighted(weights, run) for run in net)
        share = whole / (_weighted(weights, medians) or 1.0)
        named = zip(self._names, medians, strict=True)
        return {name: share * one for name, one in named if name}

    def _look(self, after: Sequence[tf.Operation], seen: tf.Tensor | None = None) -> tf.Operation:
        return self._call(self._now, after, [] if seen is None else [seen])

    def _call(
        self,
        function: Callable[..., np.ndarray],
        after: Sequence[tf.Operation],
        tensors: Sequence[tf.Tensor],
    ) -> tf.Operation:
        graph = tf.compat.v1.get_default_graph()
        if graph is not self._graph:
            self._graph = graph
            with tf.control_dependencies(None), tf.device("CPU:0"):
                self._flat, self._first, self._one = (tf.constant([one]) for one in (-1, 0, 1))
        with tf.control_dependencies(after):
            flat = [tf.raw_ops.Reshape(tensor=one, shape=self._flat) for one in tensors]
            given = [tf.raw_ops.Slice(input=one, begin=self._first, size=self._one) for one in flat]
            with tf.device("CPU:0"):
                return tf.numpy_function(function, given, tf.float64, name="look").op

    def _now(self, *_: np.ndarray) -> np.ndarray:
        self._looks.append(time.perf_counter())
        return np.zeros(())


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * one for weight, one in zip(weights, values, strict=True))


def take(kinds: Sequence[Kind]) -> list[Taken | None]:
    """Return what each op takes, alone; None for one that cannot be run so.

    They run in one call, one after the other, so that nothing but them is between two looks at the
    clock. Call it where ops run at once (`tf.init_scope`).
    """
    able = [index for index, (op, *_) in enumerate(kinds) if _can_be_alone(op)]
    found = dict(zip(able, _take([kinds[index] for index in able]), strict=True))
    return [found.get(index) for index in range(len(kinds))]


def tiny_seconds() -> float:
    """Return how long TensorFlow takes for an op whose numbers are next to none."""
    clock = Clock()

    @tf.function(jit_compile=False, autograph=False)
    def several(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        def chain() -> tf.Tensor:
            result = one
            for _ in range(TINY_OPS):
                result = tf.sqrt(result * other)
            return result

        previous = clock.warm(one)
        with tf.control_dependencies([clock.time("tiny", [previous], chain)]):
            return tf.zeros(())

    numbers = tf.fill([16], 1.0)
    return clock.seconds(lambda: several(numbers, numbers))["tiny"] / (2 * TINY_OPS)


def _can_be_alone(op: tf.Operation) -> bool:
    special = (tf.resource, tf.variant, tf.string)
    if (
        not op.outputs
        or op.op_def.is_stateful
        or any(one.dtype in special for one in (*op.inputs, *op.outputs))
        or not all(one.shape.is_fully_defined() for one in op.inputs)
    ):
        return False
    # The shape of what it makes may depend on numbers, which made-up ones will not do for.
    with tf.Graph().as_default():
        inputs = [
            tf.compat.v1.placeholder(one.dtype, one.shape)
            if (value := known_value(op, one)) is None
            else tf.constant(value, one.dtype)
            for one in op.inputs
        ]
        outputs = _like(op, inputs, "alone").outputs
        return all(one.shape.is_fully_defined() for one in outputs)


def _take(kinds: Sequence[Kind]) -> list[Taken | None]:
    if not kinds:
        return []
    try:
        return list(_take_together(kinds))
    except REFUSALS:
        if len(kinds) == 1:
            return [None]
        half = len(kinds) // 2
        return [*_take(kinds[:half]), *_take(kinds[half:])]


def _take_together(kinds: Sequence[Kind]) -> Sequence[Taken]:
    clock = Clock()
    free = free_bytes()
    ahead_bytes = AHEAD_BYTES if free is None else min(AHEAD_BYTES, int(free * AHEAD_SHARE))
    dtypes = {tf.float32, *(one.dtype for op, *_ in kinds for one in op.inputs)}

    # The numbers come as arguments: TensorFlow would compute with constants beforehand.
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

    numbers = [made_up_numbers(one) for one in dtypes]
    with tempfile.TemporaryDirectory() as folder:
        # An allocator that keeps no account tells the profiler nothing either.
        watched = None if used_bytes() is None else _profiled(folder)
        counts = {f"alone_{index}": kind.times for index, kind in enumerate(kinds)}
        seconds = clock.seconds(lambda: one_after_another(*numbers), counts=counts, watched=watched)
        scratch = _scratch(folder, [op for op, *_ in kinds])
    return [
        Taken(seconds=seconds[name] / kind.share, scratch_bytes=scratch[name])
        for name, kind in ((f"alone_{index}", kind) for index, kind in enumerate(kinds))
    ]


def made_up_numbers(dtype: tf.DType) -> tf.Tensor:
    """Return numbers of both signs: where they decide what an op does, as an activation's in 16
    bits do, it takes twice as long as with numbers all alike. Whole ones are 0."""
    if not dtype.is_floating:
        return tf.zeros([1], dtype)
    return tf.cast(tf.random.stateless_normal([NUMBERS], seed=[0, 0]), dtype)


def _num_bytes(tensors: Sequence[tf.Tensor | None]) -> int:
    return sum(num_bytes(one) for one in tensors if one is not None)


def _run(kind: Kind, inputs: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    """Return the first output of an op, or of a slab of it."""
    op = kind.op
    with tf.device(op.device or None):
        if kind.slab is None:
            return _like(op, inputs, name).outputs[0]
        return slices.make(op, kind.slab[0], inputs, *kind.slab[1:])[0]


def _made_ahead(
    kind: Kind, number: Mapping[tf.DType, tf.Tensor], previous: tf.Operation
) -> tuple[list[tf.Tensor | None], tf.Operation]:
    """Return made-up inputs of an op, but for fresh ones, and the last op that makes them."""
    op = kind.op
    if op.type in OF_FORWARD:
        inputs, previous = _completed(kind, [None] * len(op.inputs), number, previous)
        # oneDNN's needs what only its own forward op hands on.
        with tf.control_dependencies([previous]), tf.device(op.device or None):
            forward = _like(op.inputs[1].op, inputs[:1], f"forward_of_{previous.name}")
        return [inputs[0], forward.outputs[0], *inputs[2:]], forward
    ahead: list[tf.Tensor | None] = []
    for at in range(len(op.inputs)):
        ahead.append(None if at in kind.fresh else _made_up(kind, at, number, previous))
        previous = previous if ahead[-1] is None else ahead[-1].op
    return ahead, previous


def _completed(
    kind: Kind,
    ahead: Sequence[tf.Tensor | None],
    number: Mapping[tf.DType, tf.Tensor],
    previous: tf.Operation,
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Return the inputs of an op, those made up that were not ahead, and the last op of these."""
    inputs = []
    for at, made in enumerate(ahead):
        inputs.append(_made_up(kind, at, number, previous) if made is None else made)
        previous = inputs[-1].op if made is None else previous
    return inputs, previous


def _made_up(
    kind: Kind, at: int, number: Mapping[tf.DType, tf.Tensor], previous: tf.Operation
) -> tf.Tensor:
    op, like = kind.op, kind.op.inputs[at]
    known = known_value(op, like)
    # One after the other: TensorFlow makes one of two that are alike in all.
    with tf.device(op.device or None), tf.control_dependencies([previous]):
        if known is not None:
            return tf.constant(known, like.dtype)
        return repeated(number[like.dtype], kind.shape(at))


def repeated(numbers: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return a tensor of a shape from some of these numbers, (n,), twice or more often.

    TensorFlow does not copy what is there once.
    """
    size = prod(shape)
    least = max(2, -(-size // numbers.shape[0]))
    times = next((one for one in range(least, least + MOST_TIMES) if size % one == 0), None)
    if times is None or size < times:
        return tf.fill(shape, numbers[0])
    return tf.reshape(tf.tile(numbers[: size // times], [times]), shape)


def known_value(op: tf.Operation, tensor: tf.Tensor) -> Any:
    """Return the value of an op's input if it does not depend on data; None of any other."""
    if tensor.op.type == "ShapeN":
        return list(tensor.op.inputs[tensor.value_index].shape)
    value = tf.get_static_value(tensor)
    if value is None and op.type == "Tile" and tensor is op.inputs[1]:
        given, made = op.inputs[0].shape, op.outputs[0].shape
        if made.is_fully_defined() and 0 not in given:
            return [after // before for before, after in zip(given, made, strict=True)]
    return value


def signature(op: tf.Operation) -> Any:
    """Return what ops have in common that take the same time."""
    attributes = {
        name: value.SerializeToString()
        for name, value in op.node_def.attr.items()
        if not name.startswith("_")
    }
    # Of some, such as the time at which something was done, not even the rank is known.
    inputs = [(one.dtype, str(one.shape)) for one in op.inputs]
    # It may be a number among the inputs that says how much is made of them, as of a Tile.
    outputs = [str(one.shape) for one in op.outputs]
    return op.type, tuple(sorted(attributes.items())), tuple(inputs), tuple(outputs)


def _like(op: tf.Operation, inputs: Sequence[tf.Tensor], name: str) -> tf.Operation:
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        op.type,
        list(inputs),
        [one.dtype for one in op.outputs],
        attrs={k: v for k, v in op.node_def.attr.items() if not k.startswith("_")},
        op_def=op.op_def,
        name=name,
    )


@contextlib.contextmanager
def _profiled(folder: str) -> Iterator[None]:
    """Profile what the allocator hands out, but where a profile is being taken already."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    with contextlib.ExitStack() as profile:
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            tf.profiler.experimental.start(folder, options)
            profile.callback(tf.profiler.experimental.stop)
        yield


def _scratch(folder: str, ops: Sequence[tf.Operation]) -> dict[str, int]:
    """Return the most that each op held at once beyond its outputs, by the name it ran under."""
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    owners: dict[int, tuple[str, int]] = {}
    for path in Path(folder).glob("**/*.xplane.pb"):
        for one in read_allocations(path):
            if one.begins:
                owners[one.address] = one.op, one.num_bytes
                held[one.op] = held.get(one.op, 0) + one.num_bytes
                most[one.op] = max(most.get(one.op, 0), held[one.op])
            elif one.address in owners:
                name, size = owners.pop(one.address)
                held[name] -= size
    outputs = {f"alone_{index}": sum(map(num_bytes, op.outputs)) for index, op in enumerate(ops)}
    return {name: max(0, most.get(name, 0) - size) for name, size in outputs.items()}
