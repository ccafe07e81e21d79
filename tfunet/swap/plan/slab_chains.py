"""Chains of ops that run in slabs together: the device memory and the time that they take. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tfunet.graph.slabs import SlabRows, Slabs
from tfunet.graph.step import IN_PLACE, Op, Trace
from tfunet.swap.plan.costs import Costs

# Two neighbouring slabs both copy the rows that they share, so many slabs cost many copies.
MOST_SLABS = 64


@dataclass(frozen=True, kw_only=True)
class SlabChain:
    """Ops that run in slabs together, at the place of the last: by index, in order, with the rows
    that each of them has and the height of a slab.
    """

    ops: tuple[int, ...]
    rows: int
    height: int

    @property
    def slabs(self) -> list[tuple[int, int]]:
        """First row, and the row after the last, of each slab."""
        starts = range(0, self.rows, self.height)
        return [(start, min(self.rows, start + self.height)) for start in starts]


def slabs_of(op: Op) -> Slabs:
    """Return how an op runs in slabs; ValueError if it cannot."""
    if op.slabs is None:
        raise ValueError(f"{op.name} cannot run in slabs.")
    return op.slabs


def reached_inputs(op: Op) -> Iterator[tuple[int, SlabRows | None]]:
    """Yield each input of an op with the rows that a slab reads; None where it reads all."""
    return zip(op.inputs, slabs_of(op).inputs, strict=True)


def reached_outputs(op: Op) -> Iterator[tuple[int, SlabRows | None]]:
    """Yield each output of an op with the rows that a slab makes; None for a sum over slabs."""
    return zip(op.outputs, slabs_of(op).outputs, strict=True)


def outputs_of(trace: Trace, ops: Sequence[int]) -> set[int]:
    """Return the tensors that some ops make."""
    return {tensor for index in ops for tensor in trace.ops[index].outputs}


def height_of(trace: Trace, ops: tuple[int, ...], most_bytes: int) -> int:
    """Return the height of the tallest slabs that take at most `most_bytes`."""
    slabs = slabs_of(trace.ops[ops[0]])
    units = ceil(slabs.rows / slabs.unit)
    for count in range(2, min(units, MOST_SLABS) + 1):
        height = ceil(units / count) * slabs.unit
        if bytes_of_slab(trace, ops, height) <= most_bytes:
            return height
    return ceil(units / min(units, MOST_SLABS)) * slabs.unit


def bytes_of_slab(trace: Trace, ops: tuple[int, ...], height: int) -> int:
    """Return the most bytes that a slab takes; all its inputs are there from its start on."""
    return sum(blocks_of_slab(trace, ops, height))


def blocks_of_slab(trace: Trace, ops: tuple[int, ...], height: int) -> list[int]:
    """Return the bytes of each block of memory at the moment when a slab takes the most."""
    last_use = {tensor: index for index in ops for tensor in trace.ops[index].inputs}
    inside = outputs_of(trace, ops)
    sizes: dict[int, int] = {}
    for index in ops:
        for tensor, reach in reached_inputs(trace.ops[index]):
            if tensor not in inside and reach is not None:
                sizes[tensor] = max(sizes.get(tensor, 0), reach.num_bytes(height))
    most: list[int] = []
    sums: list[int] = []
    for index in ops:
        op, slabs = trace.ops[index], slabs_of(trace.ops[index])
        copied = [
            (reach.copies - 1) * (reach.num_bytes(height) + reach.more_rows * reach.row_bytes)
            for reach in (*slabs.inputs, *slabs.outputs)
            if reach is not None
        ]
        takes_over = op.kind in IN_PLACE and any(
            tensor in sizes and last_use[tensor] == index for tensor in op.inputs
        )
        for tensor, reach in reached_outputs(op):
            if reach is None:
                # The sum so far, and what a slab adds to it.
                sums.append(trace.tensors[tensor].num_bytes)
            else:
                sizes[tensor] = reach.num_bytes(height)
        without = op.outputs if takes_over else ()
        blocks = [size for tensor, size in sizes.items() if tensor not in without] + copied + sums
        most = max(most, blocks, key=sum)
        for tensor in (*op.inputs, *op.outputs):
            if last_use.get(tensor, index) == index:
                sizes.pop(tensor, None)
    return [size for size in most if size]


def kept_rows(trace: Trace, ops: Sequence[int], readers: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the outputs of a chain's ops, other than sums, that are read outside of it."""
    return [
        tensor
        for index in ops
        for tensor, reach in reached_outputs(trace.ops[index])
        if reach is not None
        and (
            trace.tensors[tensor].is_result
            or any(reader not in ops for reader in readers.get(tensor, ()))
        )
    ]


def seconds_of(
    trace: Trace, chain: SlabChain, kept: Sequence[int], split: Collection[int], costs: Costs
) -> float:
    """Return the time of a chain with its copies; `kept` is what `kept_rows` returns for it."""
    seconds = sum(_op_seconds(trace, index, chain, costs) for index in chain.ops)
    return seconds + copied_seconds(trace, chain, kept, split, costs)


def copied_seconds(
    trace: Trace, chain: SlabChain, kept: Sequence[int], split: Collection[int], costs: Costs
) -> float:
    """Return the time of a chain's copies."""
    seconds = sum(copy_seconds(*copy, costs) for copy in copies(trace, chain, kept, split))
    return seconds + _moved_bytes(trace, chain, split) / costs.bytes_per_second


def copies(
    trace: Trace, chain: SlabChain, kept: Sequence[int], split: Collection[int]
) -> Iterator[tuple[bool, int, int]]:
    """Yield each copy of a chain: whether it goes to the host, its bytes, its number of parts."""
    for tensor, num_bytes in _reads(trace, chain):
        if tensor in split:
            yield False, num_bytes, 1
    for tensor in kept:
        num_bytes = trace.tensors[tensor].num_bytes
        yield True, num_bytes, len(chain.slabs)
        if tensor not in split:
            yield False, num_bytes, 1


def copy_seconds(is_out: bool, num_bytes: int, parts: int, costs: Costs) -> float:
    """Return the time of a copy that `copies` yields."""
    seconds = costs.out_seconds(num_bytes) if is_out else costs.in_seconds(num_bytes)
    return seconds + costs.copy_seconds * (parts - 1)


def _op_seconds(trace: Trace, index: int, chain: SlabChain, costs: Costs) -> float:
    """Return the time of an op in slabs: rows that two slabs reach are computed with twice."""
    if index in costs.slab_seconds:
        return costs.slab_seconds[index]
    factor = 1.0
    for reach in slabs_of(trace.ops[index]).inputs:
        if reach is not None and reach.reach.transposed:
            rows = [reach.rows(*slab) for slab in chain.slabs]
            factor = max(factor, sum(last - first for first, last in rows) / reach.extent)
    return costs.op_seconds[index] * factor


def _reads(trace: Trace, chain: SlabChain) -> Iterator[tuple[int, int]]:
    """Yield (tensor, bytes) for each slab that a chain reads of a tensor from outside of it."""
    inside = outputs_of(trace, chain.ops)
    seen = set()
    for index in chain.ops:
        for tensor, reach in reached_inputs(trace.ops[index]):
            if reach is None or tensor in inside:
                continue
            for slab in chain.slabs:
                first, last = reach.rows(*slab)
                if (tensor, first, last) not in seen:
                    seen.add((tensor, first, last))
                    yield tensor, (last - first) * reach.row_bytes


def _moved_bytes(trace: Trace, chain: SlabChain, split: Collection[int]) -> int:
    """Return the bytes read and written on the device to take slabs and to add up their sums."""
    taken = sum(2 * num_bytes for tensor, num_bytes in _reads(trace, chain) if tensor not in split)
    sums = sum(
        trace.tensors[tensor].num_bytes
        for index in chain.ops
        for tensor, reach in reached_outputs(trace.ops[index])
        if reach is None
    )
    return taken + 3 * sums * (len(chain.slabs) - 1)
