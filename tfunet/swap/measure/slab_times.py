"""Times chains of ops in slabs on made-up numbers, with what they copy to the host and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfunet.graph.clock import Clock
from tfunet.graph.op_times import REFUSALS, made_up_numbers, repeated, signature
from tfunet.graph.static_values import known_value
from tfunet.graph.step import Trace
from tfunet.swap.plan.chains import Chain, slabs_of
from tfunet.swap.plan.split import Cut
from tfunet.swap.rewrite.slab_graph import in_slabs
from tfunet.swap.storage.host import Rows, Tier

# So many slabs of a chain are timed in a row, as they follow each other at once.
IN_A_ROW = 4


def seconds_of_slabs(
    trace: Trace,
    found: Cut,
    ops: Sequence[tf.Operation],
    tier: type[Tier],
    lasts: Sequence[int],
) -> dict[int, float]:
    """Return what all slabs of chains take, measured on a few of them.

    A slab takes more than its share of the ops, and of the bytes that it copies: it reaches rows of
    its neighbours, too, small ops are slower for what they do, and a copy that stands among them
    takes longer to start than one that follows another. Chains that cannot be run on made-up
    numbers, or find no room, are left out. Call it where ops run at once (`tf.init_scope`).

    Args:
        trace: The whole step.
        found: The step, cut.
        ops: Of the graph of the step.
        tier: Where split tensors lie.
        lasts: The last op of each chain.
    """
    if not lasts:
        return {}
    try:
        return _seconds(trace, found, ops, tier, lasts)
    except REFUSALS:
        if len(lasts) == 1:
            return {}
        half = len(lasts) // 2
        parts = (lasts[:half], lasts[half:])
        return {
            last: seconds
            for part in parts
            for last, seconds in seconds_of_slabs(trace, found, ops, tier, part).items()
        }


def told(trace: Trace, found: Cut, ops: Sequence[tf.Operation], last: int) -> Any:
    """Return what chains have in common that take the same time."""
    chain = found.chains[last]
    numbers: dict[int, int] = {}

    def number(one: int) -> int:
        return numbers.setdefault(one, len(numbers))

    each = [
        (
            signature(ops[index]),
            tuple((number(one), one in found.split) for one in trace.ops[index].inputs),
            tuple((number(one), one in found.kept[last]) for one in trace.ops[index].outputs),
        )
        for index in chain.ops
    ]
    return tuple(each), chain.rows, chain.height


def _seconds(
    trace: Trace,
    found: Cut,
    ops: Sequence[tf.Operation],
    tier: type[Tier],
    lasts: Sequence[int],
) -> dict[int, float]:
    clock = Clock()
    read = [_read(trace, found.chains[last], ops) for last in lasts]
    used = {handle.dtype for one in read for _, handle in one.values()}
    dtypes = [tf.float32, *(used - {tf.float32})]

    @tf.function(jit_compile=False, autograph=False)
    def one_after_another(*numbers: tf.Tensor) -> tf.Tensor:
        made_up = dict(zip(dtypes, numbers, strict=True))
        host = tier()
        previous = clock.warm(numbers[0])
        for last in lasts:
            previous = _timed(trace, found, ops, host, last, clock, made_up, previous)
        with tf.control_dependencies([previous]):
            return tf.zeros(())

    numbers = [made_up_numbers(one) for one in dtypes]
    timed = clock.seconds(lambda: one_after_another(*numbers))
    slabs = {last: found.chains[last].slabs for last in lasts}
    return {
        last: timed[str(last)] * len(every) / len(_in_a_row(every)) for last, every in slabs.items()
    }


def _in_a_row(slabs: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return some of all slabs, those with neighbours on both sides, if there are so many."""
    first = max(0, min(1, len(slabs) - IN_A_ROW))
    return slabs[first : first + IN_A_ROW]


def _read(
    trace: Trace, chain: Chain, ops: Sequence[tf.Operation]
) -> dict[int, tuple[tf.Operation, tf.Tensor]]:
    """Return what a chain reads that it does not make, by index, and an op that reads it."""
    made = {one for index in chain.ops for one in trace.ops[index].outputs}
    return {
        one: (ops[index], handle)
        for index in chain.ops
        for one, handle in zip(trace.ops[index].inputs, ops[index].inputs, strict=True)
        if one not in made
    }


def _timed(
    trace: Trace,
    found: Cut,
    ops: Sequence[tf.Operation],
    tier: Tier,
    last: int,
    clock: Clock,
    made_up: Mapping[tf.DType, tf.Tensor],
    previous: tf.Operation,
) -> tf.Operation:
    """Return the op after which some slabs of a chain have been timed."""
    chain = found.chains[last]
    slabs = _in_a_row(chain.slabs)
    rows: dict[int, Rows] = {}
    given: dict[int, tf.Tensor] = {}
    for one, (op, handle) in _read(trace, chain, ops).items():
        with tf.device(op.device or None), tf.control_dependencies([previous]):
            value = known_value(op, handle)
            if one in found.split:
                rows[one] = tier.rows(handle)
                previous = _filled(rows[one], handle, _reached(trace, chain, one, slabs), made_up)
            elif value is not None:
                given[one] = tf.constant(value, handle.dtype)
            else:
                given[one] = repeated(made_up[handle.dtype], handle.shape)
                previous = given[one].op
    rows_out = {
        one: tier.rows(handle)
        for index in chain.ops
        for one, handle in zip(trace.ops[index].outputs, ops[index].outputs, strict=True)
        if one in found.kept[last]
    }
    sums: dict[int, tf.Tensor] = {}

    def run() -> tf.Operation:
        after, made = in_slabs(
            trace,
            ops,
            chain,
            slabs,
            given=given.get,
            rows=rows,
            rows_out=rows_out,
            before=[],
        )
        sums.update(made)
        with tf.control_dependencies(after):
            return tf.no_op()

    previous = clock.time(str(last), [previous], run)
    # TensorFlow leaves out what nobody reads.
    return clock.read([previous], list(sums.values())) if sums else previous


def _reached(
    trace: Trace, chain: Chain, tensor: int, slabs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the rows of a tensor that each slab reads, each row once."""
    reached = {
        reach.rows(*slab)
        for index in chain.ops
        for one, reach in zip(
            trace.ops[index].inputs, slabs_of(trace.ops[index]).inputs, strict=True
        )
        if one == tensor and reach is not None
        for slab in slabs
    }
    found, end = [], 0
    for first, last in sorted(reached):
        if last > end:
            found.append((max(first, end), last))
            end = last
    return found


def _filled(
    rows: Rows,
    like: tf.Tensor,
    reached: Sequence[tuple[int, int]],
    made_up: Mapping[tf.DType, tf.Tensor],
) -> tf.Operation:
    """Return the op after which rows outside of the device are filled."""
    previous: list[tf.Operation] = []
    for first, last in reached:
        with tf.control_dependencies(previous):
            shape = [like.shape[0], last - first, *like.shape[2:]]
            previous = [rows.write(repeated(made_up[like.dtype], shape), first)]
    return previous[0]
