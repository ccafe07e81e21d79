"""Measures what the ops of a step and the copies between device and host take."""

import functools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Any

import tensorflow as tf

from tfunet.graph.clock import Clock
from tfunet.graph.op_times import AHEAD_SHARE, Kind, Taken, signature, take, tiny_seconds
from tfunet.graph.reader import num_bytes
from tfunet.graph.slabs import Slabs
from tfunet.graph.step import ALIASES, FUSED_WITH_BIAS, IN_PLACE, SHAPE_READERS, Trace, root
from tfunet.machine.device import free_bytes
from tfunet.swap.measure import slab_times
from tfunet.swap.plan.chains import copied_seconds
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.split import Cut
from tfunet.swap.storage.host import Tier

# An op that moves fewer bytes, and computes little with them, is not timed: it takes what it takes
# to start any, and the time of its bytes.
SMALL_BYTES = 2**18
SMALL_FLOPS = 1e6
# A copy this large shows the speed of the link, one this small what it takes to start.
LINK_BYTES = 2**25
COPIES = 4
# And that is what one takes of so many that follow each other, as those of slabs do.
TINY_BYTES, TINY_COPIES = 2**12, 16
# What was in use so few bytes before may still be in a cache.
NEAR = 2**22
# So many times what it moves an op may need, with what it computes in.
SAFELY = 6
# They are computed before the first step, or show what is there.
FREE = ALIASES | SHAPE_READERS | {"Const", "IdentityN", "NoOp", "Placeholder", "VarHandleOp"}


def measure(
    trace: Trace,
    ops: Sequence[tf.Operation],
    tier: Tier,
    known: dict[Any, Any] | None = None,
) -> tuple[Costs, dict[int, int]]:
    """Return the costs of a step, and the scratch of its ops: bytes that no tensor shows.

    Each kind of large op and each direction of copying is timed here; ops of equal type,
    attributes and shapes, of inputs and outputs, once. A bias that is added to a convolution costs
    nothing, as TensorFlow does both in one go. Scratch is by the index of an op; without it where
    the allocator keeps no account. Ops that are in `known` are not timed again, and it is told of
    those that are. Call it where ops run at once (`tf.init_scope`).
    """
    known = {} if known is None else known
    kinds: dict[Any, Kind] = {}
    keys = []
    readers = _last_readers(trace)
    fresh = _fresh(trace, ops)
    for index, (op, described) in enumerate(zip(ops, trace.ops, strict=True)):
        is_small = _moved(op) < SMALL_BYTES and described.flops < SMALL_FLOPS
        # Of the others the output never takes over the memory of an input.
        is_held = op.type in IN_PLACE and not any(
            readers[root(trace, one)] == index for one in described.inputs
        )
        told = (signature(op), is_held, fresh[index])
        keys.append(None if is_small or _is_free(op) else told)
        kinds.setdefault(keys[-1], Kind(op, is_held=is_held, fresh=fresh[index]))
    kinds.pop(None, None)
    counts = Counter(keys)
    slabs = {op.name: described.slabs for op, described in zip(ops, trace.ops, strict=True)}
    free = free_bytes()
    free = None if free is None else int(free * (1 - AHEAD_SHARE))
    counted = {
        key: _that_fits(kind._replace(times=counts[key]), slabs[kind.op.name], free)
        for key, kind in kinds.items()
    }
    able = {key: kind for key, kind in counted.items() if kind is not None and key[0] not in known}
    found = dict(zip(able, take(list(able.values())), strict=True))
    for key, taken in found.items():
        if taken is not None:
            known.setdefault(key[0], taken)
    found |= {key: known[key[0]] for key in kinds if key not in able and key[0] in known}
    tiny, rate = tiny_seconds(), _bytes_per_second()
    seconds, scratch = [], {}
    for index, (op, key) in enumerate(zip(ops, keys, strict=True)):
        taken = found.get(key) or Taken(seconds=tiny + _moved(op) / rate)
        seconds.append(0.0 if _is_free(op) else max(taken.seconds, tiny))
        if taken.scratch_bytes:
            scratch[index] = taken.scratch_bytes
    start, out, back = _link(type(tier))
    is_cast = any(one.compressed_bytes for one in trace.tensors)
    costs = Costs(
        op_seconds=seconds,
        out_bytes_per_second=out,
        in_bytes_per_second=back,
        bytes_per_second=rate,
        copy_seconds=start,
        copies_overlap=tier.copies_overlap,
        cast_bytes_per_second=_cast_bytes_per_second(trace.compression) if is_cast else inf,
    )
    return costs, scratch


def with_slabs(
    trace: Trace,
    found: Cut,
    ops: Sequence[tf.Operation],
    tier: Tier,
    costs: Costs,
    known: dict[Any, Any] | None = None,
) -> Costs:
    """Return the costs with those of the ops that run in slabs.

    Some slabs of each chain are timed with all that they do (see `slab_times`); what that is more
    than its copies are counted with falls on the ops, in the proportion of their times as a whole.
    Of `known` see `measure`. Call it where ops run at once (`tf.init_scope`).
    """
    known = {} if known is None else known
    keys = {last: slab_times.told(trace, found, ops, last) for last in found.chains}
    wanted = {key: last for last, key in keys.items() if key not in known}
    timed = slab_times.seconds_of_slabs(trace, found, ops, type(tier), list(wanted.values()))
    known |= {key: timed[last] for key, last in wanted.items() if last in timed}
    seconds: dict[int, float] = {}
    for last, chain in found.chains.items():
        if keys[last] in known:
            kept = found.kept[last]
            # What comes back whole does so after the slabs.
            copied = copied_seconds(trace, chain, kept, found.split.union(kept), costs)
            parts = [0.0 if _is_free(ops[one]) else costs.op_seconds[one] for one in chain.ops]
            rest = max(0.0, known[keys[last]] - copied) / (sum(parts) or 1.0)
            seconds |= {one: rest * part for one, part in zip(chain.ops, parts, strict=True)}
    return replace(costs, slab_seconds=seconds)


def _that_fits(kind: Kind, slabs: Slabs | None, free: int | None) -> Kind | None:
    """Return a slab of an op that does not fit in what is free of the device; None where that
    cannot be either. Not even TensorFlow's own error is sure: oneDNN ends the process."""
    if free is None or SAFELY * _moved(kind.op) <= free:
        return kind
    if slabs is None:
        return None
    parts = min(slabs.rows // slabs.unit, ceil(2 * SAFELY * _moved(kind.op) / max(free, 1)))
    height = slabs.rows // slabs.unit // parts * slabs.unit
    middle = height if slabs.rows >= 3 * height else 0
    return kind._replace(slab=(slabs, middle, middle + height))


def _last_readers(trace: Trace) -> dict[int, int]:
    """Return the last op that reads each tensor or a view of it; none reads what is the step's."""
    last = {}
    for index, op in enumerate(trace.ops):
        for one in op.inputs:
            own = trace.tensors[root(trace, one)].num_bytes > 0
            last[root(trace, one)] = index if own else -1
    return last


def _fresh(trace: Trace, ops: Sequence[tf.Operation]) -> list[frozenset[int]]:
    """Return, for each op, the positions of the inputs that were in use shortly before."""
    found = []
    touched: dict[int, int] = {}
    passed = 0
    for op, described in zip(ops, trace.ops, strict=True):
        roots = [root(trace, one) for one in described.inputs]
        near = {at for at, one in enumerate(roots) if passed - touched.get(one, -NEAR) < NEAR}
        found.append(frozenset(near))
        passed += 0 if _is_free(op) else _moved(op)
        touched.update(
            dict.fromkeys([*roots, *(root(trace, one) for one in described.outputs)], passed)
        )
    return found


def _is_free(op: tf.Operation) -> bool:
    fused = op.type == "BiasAdd" and op.inputs[0].op.type in FUSED_WITH_BIAS
    return fused or op.type in FREE


def _moved(op: tf.Operation) -> int:
    """Return the bytes that an op reads and writes; of a variable as many as of its new value."""
    if op.type == "ReadVariableOp":
        return 0  # It shows the variable's own memory.
    moved = sum(num_bytes(one) for one in (*op.inputs, *op.outputs))
    return moved * (2 if op.type.startswith("Assign") else 1)


def _large_bytes() -> int:
    """Return the size of a copy that shows the speed of the link, and fits with the others."""
    free = free_bytes()
    most = LINK_BYTES if free is None else min(LINK_BYTES, free // (4 * COPIES))
    return max(2 * TINY_BYTES, most)


@functools.cache
def _bytes_per_second() -> float:
    """Return how fast an op that only moves numbers reads and writes them."""
    clock = Clock()

    @tf.function(jit_compile=False, autograph=False)
    def add(numbers: tf.Tensor, one: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([clock.time("add", [], lambda: numbers + one)]):
            return tf.zeros(())

    size = _large_bytes()
    numbers = tf.fill([size // 4], 0.5)
    return 2 * size / clock.seconds(lambda: add(numbers, tf.constant(0.5)))["add"]


@functools.cache
def _cast_bytes_per_second(compression: str) -> float:
    """Return how fast float32 is cast to fewer bits and back, the mean of both ways."""
    clock = Clock()

    @tf.function(jit_compile=False, autograph=False)
    def both(numbers: tf.Tensor, narrow: tf.Tensor) -> tf.Tensor:
        cast = [functools.partial(tf.cast, one) for one in (numbers, narrow)]
        previous = clock.time("there", [clock.warm(numbers)], lambda: cast[0](compression))
        with tf.control_dependencies([clock.time("back", [previous], lambda: cast[1](tf.float32))]):
            return tf.zeros(())

    size = _large_bytes()
    numbers = tf.fill([size // 4], 0.5)
    narrow = tf.cast(numbers, compression)
    return 2 * size / sum(clock.seconds(lambda: both(numbers, narrow)).values())


@functools.cache
def _link(kind: type[Tier]) -> tuple[float, float, float]:
    """Return what a copy takes to start, and the bytes per second to the host and back.

    Measured once in a process.
    """
    tier, clock = kind(), Clock()

    def copies(
        way: str, tensors: Sequence[tf.Tensor], back: list[tf.Tensor]
    ) -> tf.Tensor | tf.Operation:
        previous: list[tf.Operation] = []
        for one in tensors:
            with tf.control_dependencies(previous):
                if way == "out":
                    previous = [tier.out(one)]
                else:
                    back.append(tier.back(one))
                    previous = [back[-1].op]
        return back[-1] if back else previous[0]

    @tf.function(jit_compile=False, autograph=False)
    def both(*tensors: tf.Tensor) -> tf.Tensor:
        parts = [tensors[:TINY_COPIES], *((one,) for one in tensors[TINY_COPIES:])]
        previous = clock.warm(tensors[0])
        for way in ("out", "back"):
            for at, part in enumerate(parts):
                back: list[tf.Tensor] = []
                copy = functools.partial(copies, way, part, back)
                previous = clock.time(f"{way} {at}", [previous], copy)
                # What nobody reads is left out.
                previous = clock.read([previous], back[:-1]) if back[:-1] else previous
        with tf.control_dependencies([previous]):
            return tf.zeros(())

    large = _large_bytes()
    # As in a step, what comes back went out a while ago, and is in no cache any more.
    sizes = [*[TINY_BYTES] * TINY_COPIES, *[large] * COPIES]
    found = clock.seconds(lambda: both(*(tf.fill([size // 4], 0.5) for size in sizes)))
    tiny = {way: found[f"{way} 0"] / TINY_COPIES for way in ("out", "back")}
    speeds = []
    for way, start in tiny.items():
        seconds = statistics.median(found[f"{way} {at}"] for at in range(1, COPIES + 1))
        speeds.append(large / max(seconds - start, seconds / 10))
    return statistics.mean(tiny.values()), speeds[0], speeds[1]
