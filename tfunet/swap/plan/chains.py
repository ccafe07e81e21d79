"""Ops that follow each other in slabs: what they hold of the device, and what they cost. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tfunet.graph.slabs import Slabs
from tfunet.graph.step import IN_PLACE, Op, Trace
from tfunet.swap.plan.costs import Costs

# More slabs cost more copies of the rows that two of them share.
MOST_SLABS = 64


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Ops that run in slabs together.

    Args:
        ops: Indices, in order; the chain runs where the last of them stands.
        rows: Own rows of all of them.
        height: Rows of a slab.
    """

    ops: tuple[int, ...]
    rows: int
    height: int

    @property
    def slabs(self) -> list[tuple[int, int]]:
        """First row, and the row after the last, of each slab."""
        starts = range(0, self.rows, self.height)
        return [(one, min(self.rows, one + self.height)) for one in starts]


def slabs_of(op: Op) -> Slabs:
    """Return how an op runs in slabs; ValueError if it cannot."""
    if op.slabs is None:
        raise ValueError(f"{op.name} cannot run in slabs.")
    return op.slabs


def readers_of(trace: Trace) -> dict[int, list[int]]:
    """Return the ops that read each tensor."""
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(trace.ops):
        for one in op.inputs:
            readers.setdefault(one, []).append(index)
    return readers


def height_of(trace: Trace, ops: tuple[int, ...], most_bytes: int) -> int:
    """Return the rows of the fewest slabs that take no more than is allowed."""
    slabs = slabs_of(trace.ops[ops[0]])
    units = ceil(slabs.rows / slabs.unit)
    for count in range(2, min(units, MOST_SLABS) + 1):
        height = ceil(units / count) * slabs.unit
        if bytes_of_slab(trace, ops, height) <= most_bytes:
            return height
    return ceil(units / min(units, MOST_SLABS)) * slabs.unit


def bytes_of_slab(trace: Trace, ops: tuple[int, ...], height: int) -> int:
    """Return what a slab takes at most: all that is read is there from its start on."""
    return sum(blocks_of_slab(trace, ops, height))


def blocks_of_slab(trace: Trace, ops: tuple[int, ...], height: int) -> list[int]:
    """Return the bytes of the blocks that a slab takes where it takes most."""
    last_use = {one: index for index in ops for one in trace.ops[index].inputs}
    inside = {one for index in ops for one in trace.ops[index].outputs}
    sizes: dict[int, int] = {}
    for index in ops:
        op = trace.ops[index]
        for one, reach in zip(op.inputs, slabs_of(op).inputs, strict=True):
            if one not in inside and reach is not None:
                sizes[one] = max(sizes.get(one, 0), reach.num_bytes(height))
    most: list[int] = []
    sums: list[int] = []
    for index in ops:
        op, slabs = trace.ops[index], slabs_of(trace.ops[index])
        copied = [
            (reach.copies - 1) * (reach.num_bytes(height) + reach.more_rows * reach.row_bytes)
            for reach in (*slabs.inputs, *slabs.outputs)
            if reach is not None
        ]
        taken_over = op.kind in IN_PLACE and any(
            one in sizes and last_use[one] == index for one in op.inputs
        )
        for one, reach in zip(op.outputs, slabs.outputs, strict=True):
            if reach is None:
                # The sum so far, and what a slab adds to it.
                sums.append(trace.tensors[one].num_bytes)
            else:
                sizes[one] = reach.num_bytes(height)
        gone = op.outputs if taken_over else ()
        blocks = [size for one, size in sizes.items() if one not in gone] + copied + sums
        most = max(most, blocks, key=sum)
        for one in (*op.inputs, *op.outputs):
            if last_use.get(one, index) == index:
                sizes.pop(one, None)
    return [one for one in most if one]


def kept_rows(trace: Trace, ops: Sequence[int], readers: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the outputs of a chain's ops, other than sums, that are read outside of it."""
    return [
        one
        for index in ops
        for one, reach in zip(
            trace.ops[index].outputs, slabs_of(trace.ops[index]).outputs, strict=True
        )
        if reach is not None
        and (
            trace.tensors[one].is_result
            or any(reader not in ops for reader in readers.get(one, ()))
        )
    ]


def seconds_of(
    trace: Trace, chain: Chain, kept: Sequence[int], split: Collection[int], costs: Costs
) -> float:
    """Return what a chain takes, with what it copies to the host, back, and on the device.

    Args:
        trace: The whole step.
        chain: Of it.
        kept: Of `kept_rows`.
        split: Tensors that are never whole on the device.
        costs: Of the ops of the step; in slabs where `slab_seconds` has them.
    """
    seconds = sum(_op_seconds(trace, one, chain, costs) for one in chain.ops)
    return seconds + copied_seconds(trace, chain, kept, split, costs)


def copied_seconds(
    trace: Trace, chain: Chain, kept: Sequence[int], split: Collection[int], costs: Costs
) -> float:
    """Return what a chain's copies take. See `seconds_of` for the arguments."""
    seconds = sum(copy_seconds(*one, costs) for one in copies(trace, chain, kept, split))
    return seconds + costs.moved_seconds(_moved_bytes(trace, chain, split))


def copies(
    trace: Trace, chain: Chain, kept: Sequence[int], split: Collection[int]
) -> Iterator[tuple[bool, int, int]]:
    """Yield what a chain copies: whether to the host, the bytes, and in how many parts.

    See `seconds_of` for the arguments.
    """
    for one, num_bytes in _reads(trace, chain):
        if one in split:
            yield False, num_bytes, 1
    for one in kept:
        num_bytes = trace.tensors[one].num_bytes
        yield True, num_bytes, len(chain.slabs)
        if one not in split:
            yield False, num_bytes, 1


def copy_seconds(is_out: bool, num_bytes: int, parts: int, costs: Costs) -> float:
    """Return the time of what `copies` yields."""
    seconds = costs.out_seconds(num_bytes) if is_out else costs.in_seconds(num_bytes)
    return seconds + costs.copy_seconds * (parts - 1)


def _op_seconds(trace: Trace, index: int, chain: Chain, costs: Costs) -> float:
    """Return the time of an op in slabs: rows that two slabs reach are computed with twice."""
    if index in costs.slab_seconds:
        return costs.slab_seconds[index]
    more = 1.0
    for reach in slabs_of(trace.ops[index]).inputs:
        if reach is not None and reach.reach.transposed:
            rows = [reach.rows(*one) for one in chain.slabs]
            more = max(more, sum(last - first for first, last in rows) / reach.extent)
    return costs.op_seconds[index] * more


def _reads(trace: Trace, chain: Chain) -> Iterator[tuple[int, int]]:
    """Yield the tensor and the bytes of each slab that is read of what lies outside of a chain."""
    inside = {one for index in chain.ops for one in trace.ops[index].outputs}
    seen = set()
    for index in chain.ops:
        op = trace.ops[index]
        for one, reach in zip(op.inputs, slabs_of(op).inputs, strict=True):
            if reach is None or one in inside:
                continue
            for slab in chain.slabs:
                first, last = reach.rows(*slab)
                if (one, first, last) not in seen:
                    seen.add((one, first, last))
                    yield one, (last - first) * reach.row_bytes


def _moved_bytes(trace: Trace, chain: Chain, split: Collection[int]) -> int:
    """Return what is read and written on the device to take slabs and to add up their sums."""
    taken = sum(2 * num_bytes for one, num_bytes in _reads(trace, chain) if one not in split)
    sums = sum(
        trace.tensors[one].num_bytes
        for index in chain.ops
        for one, reach in zip(
            trace.ops[index].outputs, slabs_of(trace.ops[index]).outputs, strict=True
        )
        if reach is None
    )
    return taken + 3 * sums * (len(chain.slabs) - 1)
