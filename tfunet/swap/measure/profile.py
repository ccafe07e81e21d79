"""Measures the time of a step's ops, and of copies between device and host."""

import functools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import tensorflow as tf

from tfunet.graph import op_times
from tfunet.graph.clock import Clock
from tfunet.graph.reader import num_bytes
from tfunet.graph.slabs import Slabs
from tfunet.graph.step import (
    ALIASES,
    FUSED_WITH_BIAS,
    HOST_UPDATE,
    IN_PLACE,
    SHAPE_READERS,
    Trace,
    root,
)
from tfunet.graph.unrolled import unrolled
from tfunet.machine.device import free_bytes, own_gpus
from tfunet.swap.measure import slab_times
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.slab_chains import SlabChain, copied_seconds
from tfunet.swap.plan.split import Cut
from tfunet.swap.storage.host import Tier

# An op that moves fewer bytes, and computes little with them, is not timed: it takes as long as any
# op takes to start, and the time of its bytes.
SMALL_BYTES = 2**18
SMALL_FLOPS = 1e6
# A copy this large shows the speed of the link. On a GPU, reading the clock takes as long as a copy
# of some ten MiB.
LINK_BYTES, GPU_LINK_BYTES = 2**25, 2**28
COPIES = 4
# A copy this small shows how long one takes to start, as one of many that follow each other, as the
# copies of slabs do.
TINY_BYTES, TINY_COPIES = 2**12, 16
# An input may still be in a cache if no more bytes than these were moved since its last use.
NEAR = 2**22
# An op may need so many times the bytes that it moves, its scratch included.
SAFELY = 6
# The same of what stays whole where only a slab of the op is run.
WHOLE_SAFELY = 3
# The host's update takes as long as so many copies of what it moves: benchmarks/state.py.
UPDATE_COPIES = 2.5
# An op is run alone if what it surely needs takes no larger share of the free memory: the rest is
# for the inputs of the next ops, and for gaps between them.
SURE_SHARE = 1 / 2
# Ops that are computed before the first step, or only show a tensor that is there.
FREE = ALIASES | SHAPE_READERS | {"Const", "IdentityN", "NoOp", "Placeholder", "VarHandleOp"}


def measure(
    trace: Trace,
    ops: Sequence[tf.Operation],
    tier: Tier,
    known: dict[Any, Any] | None = None,
) -> tuple[Costs, dict[int, int]]:
    """Return the costs of a step, and the scratch of its ops by index: bytes that no tensor shows.

    Times each kind of large op, and copies in both directions; ops of equal type, attributes and
    shapes once. A bias added to a convolution costs nothing, as TensorFlow runs both as one op.
    There is no scratch where the allocator keeps no account. Ops in `known` are not timed again;
    those that are timed are added to it. Call it where ops run at once (`tf.init_scope`).
    """
    known = {} if known is None else known
    keys, kinds = _kinds(trace, ops)
    able = {key: kind for key, kind in kinds.items() if kind is not None and key[0] not in known}
    timed = dict(zip(able, op_times.take(list(able.values())), strict=True))
    for key, taken in timed.items():
        if taken is not None:
            known.setdefault(key[0], taken)
    timed |= {key: known[key[0]] for key in kinds if key not in able and key[0] in known}
    tiny, rate = _tiny_seconds(), _bytes_per_second()
    seconds, scratch = [], {}
    updates = dict(ops[0].graph.get_collection(HOST_UPDATE)) if ops else {}
    is_limited = free_bytes() is not None
    for index, (op, key) in enumerate(zip(ops, keys, strict=True)):
        taken = timed.get(key) or op_times.OpCost(seconds=tiny + _moved(op) / rate)
        if op.name in updates:
            taken = op_times.OpCost(seconds=UPDATE_COPIES * updates[op.name] / rate)
        seconds.append(0.0 if _is_free(op) else max(taken.seconds, tiny))
        columns = trace.ops[index].unrolled if is_limited else None
        # Where only a slab of the op was run, all of it takes more.
        scratch_bytes = max(taken.scratch_bytes, columns.num_bytes() if columns else 0)
        if scratch_bytes:
            scratch[index] = scratch_bytes
    start, out, back = _link(type(tier))
    costs = Costs(
        op_seconds=seconds,
        out_bytes_per_second=out,
        in_bytes_per_second=back,
        bytes_per_second=rate,
        copy_seconds=start,
        copies_overlap=tier.copies_overlap,
    )
    return costs, scratch


def _kinds(
    trace: Trace, ops: Sequence[tf.Operation]
) -> tuple[list[Any], dict[Any, op_times.OpKind | None]]:
    """Return a key for each op, None where it is not timed, and by key the kind of op to time, None
    where it does not fit."""
    keys: list[Any] = []
    kinds: dict[Any, tuple[op_times.OpKind, Slabs | None]] = {}
    readers = _last_readers(trace)
    for index, (op, described, fresh) in enumerate(
        zip(ops, trace.ops, _fresh(trace, ops), strict=True)
    ):
        is_small = _moved(op) < SMALL_BYTES and described.flops < SMALL_FLOPS
        if is_small or _is_free(op):
            keys.append(None)
            continue
        # The output of other ops never takes over the memory of an input.
        is_held = op.type in IN_PLACE and not any(
            readers[root(trace, tensor)] == index for tensor in described.inputs
        )
        key = (op_times.signature(op), is_held, fresh)
        keys.append(key)
        kinds.setdefault(key, (op_times.OpKind(op, is_held=is_held, fresh=fresh), described.slabs))
    counts = Counter(keys)
    free = free_bytes()
    free = None if free is None else int(free * (1 - op_times.AHEAD_SHARE))
    return keys, {
        key: _that_fits(kind._replace(times=counts[key]), slabs, free)
        for key, (kind, slabs) in kinds.items()
    }


def with_slabs(
    cut: Cut,
    ops: Sequence[tf.Operation],
    tier: Tier,
    costs: Costs,
    known: dict[Any, Any] | None = None,
) -> Costs:
    """Return the costs with measured times of the ops that run in slabs.

    Times some slabs of each chain with all that they do (see `slab_times`). What is left of that
    without the copies is shared out among the ops, in the proportion of their times outside of
    slabs. For `known` see `measure`. Call it where ops run at once (`tf.init_scope`).
    """
    known = {} if known is None else known
    keys = {last: slab_times.signature_of(cut, ops, last) for last in cut.chains}
    free = free_bytes()
    wanted = {
        key: last
        for last, key in keys.items()
        if key not in known and (free is None or _chain_fits(cut.chains[last], ops, free))
    }
    timed = slab_times.seconds_of_slabs(cut, ops, type(tier), list(wanted.values()))
    known |= {key: timed[last] for key, last in wanted.items() if last in timed}
    seconds: dict[int, float] = {}
    for last, chain in cut.chains.items():
        if keys[last] in known:
            kept = cut.kept[last]
            # Tensors that come back whole do so after the slabs.
            copied = copied_seconds(cut.whole, chain, kept, cut.split.union(kept), costs)
            parts = [0.0 if _is_free(ops[at]) else costs.op_seconds[at] for at in chain.ops]
            rest = max(0.0, known[keys[last]] - copied) / (sum(parts) or 1.0)
            seconds |= {at: rest * part for at, part in zip(chain.ops, parts, strict=True)}
    return replace(costs, slab_seconds=seconds)


def _that_fits(
    kind: op_times.OpKind, slabs: Slabs | None, free: int | None
) -> op_times.OpKind | None:
    """Return a slab of an op that does not fit in the device's free memory; None where it has none.

    Trying and catching TensorFlow's error is not safe: oneDNN ends the process.
    """
    if free is None or (SAFELY * _moved(kind.op) <= free and _fits_surely(kind.op, free)):
        return kind
    if slabs is None:
        return None
    # What a slab has whole, as a filter and what oneDNN makes of it.
    rows = zip((*kind.op.inputs, *kind.op.outputs), (*slabs.inputs, *slabs.outputs), strict=True)
    if WHOLE_SAFELY * sum(num_bytes(tensor) for tensor, cut in rows if cut is None) > free:
        return None
    parts = min(slabs.rows // slabs.unit, ceil(2 * SAFELY * _moved(kind.op) / max(free, 1)))
    height = slabs.rows // slabs.unit // parts * slabs.unit
    middle = height if slabs.rows >= 3 * height else 0
    if not _fits_surely(kind.op, free, height / slabs.rows):
        return None
    return kind._replace(slab=(slabs, middle, middle + height))


def _fits_surely(op: tf.Operation, free: int, share: float = 1.0) -> bool:
    """Return whether a share of an op's rows fits with the scratch that is known."""
    columns = unrolled(op)
    scratch_bytes = columns.num_bytes(share) if columns else 0
    return share * _moved(op) + scratch_bytes <= SURE_SHARE * free


def _chain_fits(chain: SlabChain, ops: Sequence[tf.Operation], free: int) -> bool:
    share = min(1.0, chain.height / chain.rows)
    return all(_fits_surely(ops[at], free, share) for at in chain.ops)


def _last_readers(trace: Trace) -> dict[int, int]:
    """Return the last op that reads each tensor or a view of it; -1 for tensors without memory of
    the step's own."""
    last = {}
    for index, op in enumerate(trace.ops):
        for tensor in op.inputs:
            source = root(trace, tensor)
            last[source] = index if trace.tensors[source].num_bytes > 0 else -1
    return last


def _fresh(trace: Trace, ops: Sequence[tf.Operation]) -> list[frozenset[int]]:
    """Return, for each op, the positions of the inputs that were in use shortly before."""
    fresh = []
    used: dict[int, int] = {}  # by tensor: the bytes moved up to its last use
    moved = 0
    for op, described in zip(ops, trace.ops, strict=True):
        inputs, outputs = (
            [root(trace, tensor) for tensor in tensors]
            for tensors in (described.inputs, described.outputs)
        )
        near = {at for at, source in enumerate(inputs) if moved - used.get(source, -NEAR) < NEAR}
        fresh.append(frozenset(near))
        moved += 0 if _is_free(op) else _moved(op)
        used.update(dict.fromkeys([*inputs, *outputs], moved))
    return fresh


def _is_free(op: tf.Operation) -> bool:
    fused = op.type == "BiasAdd" and op.inputs[0].op.type in FUSED_WITH_BIAS
    return fused or op.type in FREE


def _moved(op: tf.Operation) -> int:
    """Return the bytes that an op reads and writes, also of a variable that it assigns."""
    if op.type == "ReadVariableOp":
        return 0  # Its output is the variable's own memory.
    moved = sum(num_bytes(tensor) for tensor in (*op.inputs, *op.outputs))
    return moved * (2 if op.type.startswith("Assign") else 1)


def _large_bytes() -> int:
    """Return the size of a copy that shows the speed of the link, and fits with the others."""
    free = free_bytes()
    wanted = GPU_LINK_BYTES if own_gpus() else LINK_BYTES
    most = wanted if free is None else min(wanted, free // (4 * COPIES))
    return max(2 * TINY_BYTES, most)


@functools.cache
def _tiny_seconds() -> float:
    return op_times.tiny_seconds()


@functools.cache
def _bytes_per_second() -> float:
    """Return how fast an op that only moves numbers reads and writes them."""
    clock = Clock()

    @tf.function(jit_compile=False, autograph=False)
    def add(numbers: tf.Tensor, half: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([clock.time("add", [], lambda: numbers + half)]):
            return tf.zeros(())

    size = _large_bytes()
    numbers = tf.fill([size // 4], 0.5)
    return 2 * size / clock.seconds(lambda: add(numbers, tf.constant(0.5)))["add"]


@functools.cache
def _link(kind: type[Tier]) -> tuple[float, float, float]:
    """Return the seconds that a copy takes to start, and bytes per second to the host and back."""
    tier, clock = kind(), Clock()

    def copies(
        way: str, tensors: Sequence[tf.Tensor], back: list[tf.Tensor]
    ) -> tf.Tensor | tf.Operation:
        previous: list[tf.Operation] = []
        for tensor in tensors:
            with tf.control_dependencies(previous):
                if way == "out":
                    previous = [tier.out(tensor)]
                else:
                    back.append(tier.back(tensor))
                    previous = [back[-1].op]
        return back[-1] if back else previous[0]

    @tf.function(jit_compile=False, autograph=False)
    def both(*tensors: tf.Tensor) -> tf.Tensor:
        parts = [tensors[:TINY_COPIES], *((large,) for large in tensors[TINY_COPIES:])]
        previous = clock.warm(tensors[0])
        for way in ("out", "back"):
            for at, part in enumerate(parts):
                back: list[tf.Tensor] = []
                copy = functools.partial(copies, way, part, back)
                previous = clock.time(f"{way} {at}", [previous], copy)
                # TensorFlow leaves out copies that nothing reads.
                previous = clock.read([previous], back[:-1]) if back[:-1] else previous
        with tf.control_dependencies([previous]):
            return tf.zeros(())

    large = _large_bytes()
    # As in a step, tensors come back a while after they went out, when no cache has them any more.
    sizes = [*[TINY_BYTES] * TINY_COPIES, *[large] * COPIES]
    timed = clock.seconds(lambda: both(*(tf.fill([size // 4], 0.5) for size in sizes)))
    tiny = {way: timed[f"{way} 0"] / TINY_COPIES for way in ("out", "back")}
    speeds = []
    for way, start in tiny.items():
        seconds = statistics.median(timed[f"{way} {at}"] for at in range(1, COPIES + 1))
        # A copy that seems to take no time was not measured: it takes longer than a small one.
        speeds.append(large / max(seconds - start, seconds / 10, start, 1e-6))
    return statistics.mean(tiny.values()), speeds[0], speeds[1]
