"""Ops that run in slabs, so that the tensors between them are never whole on the device. Pure.

A tensor that is split lies on the host. Each op that reads or makes it takes a slab of rows of its
inputs, makes a slab of its outputs, and hands that to the host before it takes the next. Ops that
follow each other on the same rows form a chain, and pass a slab on without the host.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from tfunet.swap.costs import Costs
from tfunet.swap.steps import IN_PLACE, Op, Reach, Slabs, Trace
from tfunet.swap.tiers import total_bytes

# More slabs cost more copies of the rows that two of them share.
MOST_SLABS = 64
# Of the budget: what the slab of one chain may take.
SLAB_SHARE = 1 / 8
# How many sets of tensors are tried, from the largest tensors on.
MOST_TRIALS = 6


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


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A step some of whose tensors are split.

    Args:
        trace: The step in which each chain is one op, at the place of its last; the others of the
            chain do nothing. Split tensors, and those inside of a chain, take no memory.
        chains: By the index of their last op.
        split: Tensors that are never whole on the device, by index.
        on_host: Those, and others that are put together on the host from the slabs of a chain.
        scratch: What a slab takes on the device, by the index of the chain.
    """

    trace: Trace
    chains: Mapping[int, Chain]
    split: frozenset[int]
    on_host: frozenset[int]
    scratch: Mapping[int, int]

    def scratch_with(self, scratch: Mapping[int, int]) -> dict[int, int]:
        """Return the scratch of the cut step from that of the ops of the whole one."""
        found = dict(scratch)
        for last, chain in self.chains.items():
            # In slabs, what an op needs beside its tensors shrinks with them.
            parts = [found.pop(one, 0) * chain.height // chain.rows for one in chain.ops]
            found[last] = self.scratch[last] + max(parts)
        return found

    def costs(self, whole: Trace, costs: Costs) -> Costs:
        """Return what the ops of the cut step cost, copies to and from the host included."""
        seconds = list(costs.op_seconds)
        for last, chain in self.chains.items():
            seconds[last] = sum(_op_seconds(whole, one, chain, costs) for one in chain.ops)
            seconds[last] += sum(_copies(whole, self, chain, costs))
            for one in chain.ops[:-1]:
                seconds[one] = 0.0
        tiers = costs.tiers.without(total_bytes(whole, self.on_host))
        return replace(costs, op_seconds=seconds, tiers=tiers)


def splittable(trace: Trace) -> set[int]:
    """Return the tensors that may be split: all that make or read them can run in slabs."""
    found = set()
    readers = _readers(trace)
    for index, tensor in enumerate(trace.tensors):
        slabs = _slabs_of(trace, tensor.producer)
        if slabs is None or not tensor.num_bytes or tensor.is_result:
            continue
        made = slabs.outputs[trace.ops[tensor.producer].outputs.index(index)]
        ends = (*readers.get(index, ()), tensor.producer)
        if made is not None and all(_takes_rows(trace, one, index, readers) for one in ends):
            found.add(index)
    return found


def _takes_rows(trace: Trace, op: int, tensor: int, readers: Mapping[int, Sequence[int]]) -> bool:
    """Whether an op, and the one it is fused with, runs in slabs of a tensor that it touches."""
    described = trace.ops[op]
    if described.slabs is None:
        return False
    for one, reach in zip(described.inputs, described.slabs.inputs, strict=True):
        if one == tensor and reach is None:
            return False
        producer = trace.tensors[one].producer
        if trace.tensors[one].is_inner and not _runs_with(trace, producer, op):
            return False
    for one in described.outputs:
        together = all(_runs_with(trace, op, reader) for reader in readers.get(one, ()))
        if trace.tensors[one].is_inner and not together:
            return False
    return True


def _runs_with(trace: Trace, op: int, reader: int) -> bool:
    """Whether an op and the one it is fused with can be in one chain: nothing lies between."""
    both = trace.ops[op].slabs, trace.ops[reader].slabs
    between = trace.ops[op + 1 : reader]
    return None not in both and all(one.slabs is None for one in between)


def trials(trace: Trace, *, budget_bytes: int, threshold_bytes: int) -> Iterator[frozenset[int]]:
    """Yield sets of tensors to split, each larger than the one before.

    First those of the ops that are larger than the budget, without which nothing fits, then all
    from a size on.
    """
    may = {one for one in splittable(trace) if trace.tensors[one].num_bytes >= threshold_bytes}
    sizes = sorted({trace.tensors[one].num_bytes for one in may}, reverse=True)
    needed: set[int] = set()
    for op in trace.ops:
        touched = {*op.inputs, *op.outputs}
        if sum(trace.tensors[one].num_bytes for one in touched) > budget_bytes:
            needed |= touched & may
    seen = set()
    for least in [None, *sizes][: MOST_TRIALS + 1]:
        found = set(needed)
        if least is not None:
            found |= {one for one in may if trace.tensors[one].num_bytes >= least}
        if found and frozenset(found) not in seen:
            seen.add(frozenset(found))
            yield frozenset(found)


def cut(
    trace: Trace,
    split: Collection[int],
    *,
    slab_bytes: int | Mapping[int, int] = 0,
    heights: Mapping[int, int] | None = None,
) -> Cut:
    """Return the step with some tensors split.

    Args:
        trace: The whole step.
        split: Of `splittable`.
        slab_bytes: What a slab may take, if that can be; or of each chain, by its last op.
        heights: Rows of a slab of each chain, by its last op, instead.
    """
    split = frozenset(split)
    chains, scratch = {}, {}
    for ops in _chains(trace, split):
        last, rows = ops[-1], _rows(trace, ops[0])
        most = slab_bytes if isinstance(slab_bytes, int) else slab_bytes[last]
        height = (heights or {}).get(last) or _height(trace, ops, most)
        if {_rows(trace, one) for one in ops} != {rows} or height % _slabs(trace.ops[last]).unit:
            raise ValueError(f"{trace.ops[last].name} cannot run in slabs of {height} rows.")
        chains[last] = Chain(ops=ops, rows=rows, height=height)
        scratch[last] = _slab_bytes(trace, ops, height)
    kept = {one for chain in chains.values() for one in kept_rows(trace, chain)}
    return Cut(
        trace=_cut(trace, split, chains, split | kept),
        chains=chains,
        split=split,
        on_host=split | kept,
        scratch=scratch,
    )


def _readers(trace: Trace) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for index, op in enumerate(trace.ops):
        for one in op.inputs:
            readers.setdefault(one, []).append(index)
    return readers


def _slabs_of(trace: Trace, op: int) -> Slabs | None:
    return trace.ops[op].slabs if op >= 0 else None


def _rows(trace: Trace, op: int) -> int:
    return _slabs(trace.ops[op]).rows


def touched(trace: Trace, split: Collection[int]) -> set[int]:
    """Return the ops that must run in slabs: those that touch a tensor that is split, and with
    them what TensorFlow runs as one op with them."""
    found = {
        index
        for index, op in enumerate(trace.ops)
        if any(one in split for one in (*op.inputs, *op.outputs))
    }
    for index, op in enumerate(trace.ops):
        for one in op.inputs:
            tensor = trace.tensors[one]
            if tensor.is_inner and (index in found or tensor.producer in found):
                found |= {index, tensor.producer}
    return found


def _chains(trace: Trace, split: frozenset[int]) -> list[tuple[int, ...]]:
    in_slabs = touched(trace, split)
    found: list[list[int]] = []
    made: set[int] = set()  # by the last chain
    is_open = False
    for index, op in enumerate(trace.ops):
        if index not in in_slabs:
            if is_open and any(one in made for one in op.inputs):
                is_open = False
            continue
        fused = any(trace.tensors[one].is_inner and one in made for one in op.inputs)
        if fused or (is_open and _joins(trace, found[-1], made, op)):
            found[-1].append(index)
        else:
            found.append([index])
            made = set()
        made |= set(op.outputs)
        # What is not of the step may wait for these, and later ops of the chain for that.
        is_open = not any(trace.tensors[one].is_result for one in op.outputs)
    return [tuple(one) for one in found]


def _joins(trace: Trace, chain: list[int], made: set[int], op: Op) -> bool:
    """Whether an op can pass on the slabs of a chain."""
    slabs, first = op.slabs, trace.ops[chain[0]].slabs
    if slabs is None or first is None or (slabs.rows, slabs.unit) != (first.rows, first.unit):
        return False
    follows = False
    for one, reach in zip(op.inputs, slabs.inputs, strict=True):
        producer = trace.tensors[one].producer
        if one in made:
            if reach is None or not reach.is_same or not _gives_rows(trace, producer, one):
                return False
            follows = True
        elif producer > chain[0] and trace.tensors[one].num_bytes:
            return False
    return follows


def _gives_rows(trace: Trace, op: int, tensor: int) -> bool:
    slabs = _slabs_of(trace, op)
    given = slabs.outputs[trace.ops[op].outputs.index(tensor)] if slabs else None
    return given is not None and given.is_same


def _height(trace: Trace, ops: tuple[int, ...], slab_bytes: int) -> int:
    """Return the rows of the fewest slabs that take no more than is allowed."""
    slabs = _slabs(trace.ops[ops[0]])
    units = ceil(slabs.rows / slabs.unit)
    for count in range(2, min(units, MOST_SLABS) + 1):
        height = ceil(units / count) * slabs.unit
        if _slab_bytes(trace, ops, height) <= slab_bytes:
            return height
    return ceil(units / min(units, MOST_SLABS)) * slabs.unit


def _slab_bytes(trace: Trace, ops: tuple[int, ...], height: int) -> int:
    """Return what a slab takes at most: all that is read is there from its start on."""
    last_use = {one: index for index in ops for one in trace.ops[index].inputs}
    inside = {one for index in ops for one in trace.ops[index].outputs}
    sizes: dict[int, int] = {}
    for index in ops:
        op = trace.ops[index]
        for one, reach in zip(op.inputs, _slabs(op).inputs, strict=True):
            if one not in inside and reach is not None:
                sizes[one] = max(sizes.get(one, 0), _reach_bytes(reach, height))
    most = 0
    sums = 0
    for index in ops:
        op, slabs = trace.ops[index], _slabs(trace.ops[index])
        copied = sum(
            (reach.copies - 1) * (_reach_bytes(reach, height) + reach.more_rows * reach.row_bytes)
            for reach in (*slabs.inputs, *slabs.outputs)
            if reach is not None
        )
        taken_over = op.kind in IN_PLACE and any(
            one in sizes and last_use[one] == index for one in op.inputs
        )
        for one, reach in zip(op.outputs, slabs.outputs, strict=True):
            if reach is None:
                # The sum so far, and what a slab adds to it.
                sums += trace.tensors[one].num_bytes
            else:
                sizes[one] = _reach_bytes(reach, height)
        made = sum(sizes.get(one, 0) for one in op.outputs) if taken_over else 0
        most = max(most, sum(sizes.values()) + copied + sums - made)
        for one in (*op.inputs, *op.outputs):
            if last_use.get(one, index) == index:
                sizes.pop(one, None)
    return most


def _slabs(op: Op) -> Slabs:
    if op.slabs is None:
        raise ValueError(f"{op.name} cannot run in slabs.")
    return op.slabs


def _reach_bytes(reach: Reach, height: int) -> int:
    first, last = reach.wanted(0, height)
    return reach.row_bytes * min(last - first, reach.extent)


def kept_rows(whole: Trace, chain: Chain) -> list[int]:
    """Return the outputs of a chain, other than sums, that are read outside of it."""
    inside = set(chain.ops)
    readers = _readers(whole)
    return [
        one
        for index in chain.ops
        for one in whole.ops[index].outputs
        if _gives_any_rows(whole, index, one)
        and (
            whole.tensors[one].is_result
            or any(reader not in inside for reader in readers.get(one, ()))
        )
    ]


def _gives_any_rows(trace: Trace, op: int, tensor: int) -> bool:
    slabs = _slabs_of(trace, op)
    return slabs is not None and slabs.outputs[trace.ops[op].outputs.index(tensor)] is not None


def _cut(
    trace: Trace, split: frozenset[int], chains: Mapping[int, Chain], on_host: Collection[int]
) -> Trace:
    ops, tensors = list(trace.ops), list(trace.tensors)
    readers = _readers(trace)
    for one in on_host:
        tensors[one] = replace(tensors[one], compressed_bytes=0)
    for one in split:
        tensors[one] = replace(tensors[one], num_bytes=0)
    for last, chain in chains.items():
        inside = {one for index in chain.ops for one in trace.ops[index].outputs}
        inputs: dict[int, None] = {}
        outputs: dict[int, None] = {}
        for index in chain.ops:
            op = trace.ops[index]
            inputs |= dict.fromkeys(one for one in op.inputs if one not in inside)
            outputs |= dict.fromkeys(op.outputs)
            ops[index] = replace(
                op, kind="NoOp", inputs=(), outputs=(), is_repeatable=False, flops=0.0, slabs=None
            )
        for one in outputs:
            alone = all(reader in chain.ops for reader in readers.get(one, ()))
            inner = alone and not trace.tensors[one].is_result
            tensors[one] = replace(
                tensors[one],
                producer=last,
                is_inner=False,
                num_bytes=0 if inner else tensors[one].num_bytes,
            )
        ops[last] = replace(
            trace.ops[last],
            kind="Slabs",
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            is_repeatable=False,
            slabs=None,
        )
    return replace(trace, ops=tuple(ops), tensors=tuple(tensors))


def _op_seconds(trace: Trace, index: int, chain: Chain, costs: Costs) -> float:
    """Return the time of an op in slabs: rows that two slabs reach are computed with twice."""
    slabs = trace.ops[index].slabs
    more = 1.0
    if slabs is not None:
        for reach in slabs.inputs:
            if reach is not None and reach.transposed:
                rows = [reach.rows(*one) for one in chain.slabs]
                more = max(more, sum(last - first for first, last in rows) / reach.extent)
    return costs.op_seconds[index] * more


def _copies(trace: Trace, found: Cut, chain: Chain, costs: Costs) -> Iterator[float]:
    """Yield the seconds of each copy of a chain to or from the host."""
    inside = {one for index in chain.ops for one in trace.ops[index].outputs}
    for index in chain.ops:
        op = trace.ops[index]
        if op.slabs is None:
            continue
        for one, reach in zip(op.inputs, op.slabs.inputs, strict=True):
            if reach is not None and one in found.split and one not in inside:
                for begin, end in chain.slabs:
                    first, last = reach.rows(begin, end)
                    yield costs.in_seconds((last - first) * reach.row_bytes)
    for one in kept_rows(trace, chain):
        num_bytes = trace.tensors[one].num_bytes
        yield costs.out_seconds(num_bytes) + costs.copy_seconds * (len(chain.slabs) - 1)
        if one not in found.split:
            yield costs.in_seconds(num_bytes)
