"""Times chains of ops in slabs on made-up numbers, with what they copy to the host and back."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfunet.graph.clock import Clock
from tfunet.graph.op_times import MOST_OUT_OF_MEMORY, REFUSALS, made_up_numbers, repeated, signature
from tfunet.graph.static_values import known_value
from tfunet.graph.step import Trace
from tfunet.swap.plan.slab_chains import SlabChain, outputs_of, reached_inputs
from tfunet.swap.plan.split import Cut
from tfunet.swap.rewrite.slab_graph import in_slabs
from tfunet.swap.storage.host import Rows, Tier

# How many slabs of a chain are timed, one right after the other, as in a step.
IN_A_ROW = 4


def seconds_of_slabs(
    cut: Cut, ops: Sequence[tf.Operation], tier: type[Tier], lasts: Sequence[int]
) -> dict[int, float]:
    """Return the time of all slabs of each chain, measured on a few of them.

    A slab takes longer than its share of the ops and of the bytes that it copies: it reaches rows
    of its neighbours, too, small ops are less efficient, and a copy among them takes longer to
    start than one that follows another. Chains that cannot be run on made-up numbers, or find no
    room, are left out. Call it where ops run at once (`tf.init_scope`).
    """
    seconds: dict[int, float] = {}
    parts = [lasts] if lasts else []
    out_of_memory = 0
    while parts and out_of_memory < MOST_OUT_OF_MEMORY:
        part = parts.pop()
        try:
            seconds |= _seconds(cut, ops, tier, part)
        except REFUSALS as error:
            out_of_memory += isinstance(error, tf.errors.ResourceExhaustedError)
            half = len(part) // 2
            parts += [part[half:], part[:half]] if half else []
    return seconds


def signature_of(cut: Cut, ops: Sequence[tf.Operation], last: int) -> Any:
    """Return a signature of a chain; chains that take the same time have the same."""
    trace, chain = cut.whole, cut.chains[last]
    numbers: dict[int, int] = {}

    def numbered(tensors: Sequence[int], marked: Collection[int]) -> tuple[tuple[int, bool], ...]:
        return tuple((numbers.setdefault(at, len(numbers)), at in marked) for at in tensors)

    each = [
        (
            signature(ops[index]),
            numbered(trace.ops[index].inputs, cut.split),
            numbered(trace.ops[index].outputs, cut.kept[last]),
        )
        for index in chain.ops
    ]
    return tuple(each), chain.rows, chain.height


def _seconds(
    cut: Cut, ops: Sequence[tf.Operation], tier: type[Tier], lasts: Sequence[int]
) -> dict[int, float]:
    clock = Clock()
    reads = [_read(cut.whole, cut.chains[last], ops) for last in lasts]
    used = {handle.dtype for read in reads for _, handle in read.values()}
    dtypes = [tf.float32, *(used - {tf.float32})]

    @tf.function(jit_compile=False, autograph=False)
    def one_after_another(*numbers: tf.Tensor) -> tf.Tensor:
        made_up = dict(zip(dtypes, numbers, strict=True))
        host = tier()
        previous = clock.warm(numbers[0])
        for last in lasts:
            previous = _timed(cut, ops, host, last, clock, made_up, previous)
        with tf.control_dependencies([previous]):
            return tf.zeros(())

    numbers = [made_up_numbers(dtype) for dtype in dtypes]
    timed = clock.seconds(lambda: one_after_another(*numbers))
    slabs = {last: cut.chains[last].slabs for last in lasts}
    return {
        last: timed[str(last)] * len(every) / len(_in_a_row(every)) for last, every in slabs.items()
    }


def _in_a_row(slabs: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return some of all slabs, those with neighbours on both sides if there are enough."""
    first = max(0, min(1, len(slabs) - IN_A_ROW))
    return slabs[first : first + IN_A_ROW]


def _read(
    trace: Trace, chain: SlabChain, ops: Sequence[tf.Operation]
) -> dict[int, tuple[tf.Operation, tf.Tensor]]:
    """Return the tensors that a chain reads and does not make, by index, each with a reader."""
    made = outputs_of(trace, chain.ops)
    return {
        tensor: (ops[index], handle)
        for index in chain.ops
        for tensor, handle in zip(trace.ops[index].inputs, ops[index].inputs, strict=True)
        if tensor not in made
    }


def _timed(
    cut: Cut,
    ops: Sequence[tf.Operation],
    tier: Tier,
    last: int,
    clock: Clock,
    made_up: Mapping[tf.DType, tf.Tensor],
    previous: tf.Operation,
) -> tf.Operation:
    trace, chain = cut.whole, cut.chains[last]
    slabs = _in_a_row(chain.slabs)
    rows: dict[int, Rows] = {}
    given: dict[int, tf.Tensor] = {}
    for tensor, (op, handle) in _read(trace, chain, ops).items():
        with tf.device(op.device or None), tf.control_dependencies([previous]):
            value = known_value(op, handle)
            if tensor in cut.split:
                rows[tensor] = tier.rows(handle)
                reached = _reached(trace, chain, tensor, slabs)
                previous = _filled(rows[tensor], handle, reached, made_up)
            elif value is not None:
                given[tensor] = tf.constant(value, handle.dtype)
            else:
                given[tensor] = repeated(made_up[handle.dtype], handle.shape)
                previous = given[tensor].op
    rows_out = {
        tensor: tier.rows(handle)
        for index in chain.ops
        for tensor, handle in zip(trace.ops[index].outputs, ops[index].outputs, strict=True)
        if tensor in cut.kept[last]
    }
    sums: dict[int, tf.Tensor] = {}

    def run() -> tf.Operation:
        after, made = in_slabs(
            trace, ops, chain, slabs, given=given.get, rows=rows, rows_out=rows_out, before=[]
        )
        sums.update(made)
        with tf.control_dependencies(after):
            return tf.no_op()

    previous = clock.time(str(last), [previous], run)
    # TensorFlow leaves out sums that nothing reads.
    return clock.read([previous], list(sums.values())) if sums else previous


def _reached(
    trace: Trace, chain: SlabChain, tensor: int, slabs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the rows of a tensor that each slab reads, each row once."""
    reached = {
        reach.rows(*slab)
        for index in chain.ops
        for read, reach in reached_inputs(trace.ops[index])
        if read == tensor and reach is not None
        for slab in slabs
    }
    apart, end = [], 0
    for first, last in sorted(reached):
        if last > end:
            apart.append((max(first, end), last))
            end = last
    return apart


def _filled(
    rows: Rows,
    like: tf.Tensor,
    reached: Sequence[tuple[int, int]],
    made_up: Mapping[tf.DType, tf.Tensor],
) -> tf.Operation:
    previous: list[tf.Operation] = []
    for first, last in reached:
        with tf.control_dependencies(previous):
            shape = [like.shape[0], last - first, *like.shape[2:]]
            previous = [rows.write(repeated(made_up[like.dtype], shape), first)]
    return previous[0]
