"""Ops that run in slabs, so that the tensors between them are never whole on the device. Pure.

A tensor that is split lies on the host. Each op that reads or makes it takes a slab of rows of its
inputs, makes a slab of its outputs, and hands that to the host before it takes the next. Ops that
follow each other on the same rows form a chain, and pass a slab on without the host.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfunet.graph.slabs import Slabs
from tfunet.graph.step import Op, Trace
from tfunet.swap.plan.chains import (
    Chain,
    bytes_of_slab,
    height_of,
    kept_rows,
    readers_of,
    seconds_of,
    slabs_of,
)
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.placement import total_bytes

# Of the budget: what the slab of one chain may take.
SLAB_SHARE = 1 / 8
# How many sets of tensors are tried, from the largest tensors on.
MOST_TRIALS = 6


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A step some of whose tensors are split.

    Args:
        trace: The step in which each chain is one op, at the place of its last; the others of the
            chain do nothing. Split tensors, and those inside of a chain, take no memory.
        chains: By the index of their last op.
        kept: The outputs of each that are put together on the host, by the index of the chain.
        split: Tensors that are never whole on the device, by index.
        on_host: Those, and others that are put together on the host from the slabs of a chain.
        scratch: What a slab takes on the device, by the index of the chain.
    """

    trace: Trace
    chains: Mapping[int, Chain]
    kept: Mapping[int, Sequence[int]]
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
            seconds[last] = seconds_of(whole, chain, self.kept[last], self.split, costs)
            for one in chain.ops[:-1]:
                seconds[one] = 0.0
        tiers = costs.tiers.without(total_bytes(whole, self.on_host))
        return replace(costs, op_seconds=seconds, tiers=tiers)


def splittable(trace: Trace) -> set[int]:
    """Return the tensors that may be split: all that make or read them can run in slabs."""
    found = set()
    readers = readers_of(trace)
    for index, tensor in enumerate(trace.tensors):
        slabs = _slabs_of(trace, tensor.producer)
        if slabs is None or not tensor.num_bytes or tensor.is_result or tensor.is_passed_on:
            continue
        made = slabs.outputs[trace.ops[tensor.producer].outputs.index(index)]
        ends = (*readers.get(index, ()), tensor.producer)
        if made is not None and all(_takes_rows(trace, one, index, readers) for one in ends):
            found.add(index)
    return found


def _takes_rows(trace: Trace, op: int, tensor: int, readers: Mapping[int, Sequence[int]]) -> bool:
    """Whether an op, and those it must run with, runs in slabs of a tensor that it touches."""
    described = trace.ops[op]
    if described.slabs is None:
        return False
    for one, reach in zip(described.inputs, described.slabs.inputs, strict=True):
        if one == tensor and reach is None:
            return False
    return all(_runs_with(trace, *pair) for pair in _passing_on(trace, op, readers))


def _passing_on(
    trace: Trace, op: int, readers: Mapping[int, Sequence[int]]
) -> set[tuple[int, int]]:
    """Return what an op must run with in slabs: pairs, of which one passes a tensor on to the
    other."""
    found: set[tuple[int, int]] = set()
    seen, following = {op}, [op]
    while following:
        one = following.pop()
        inputs, outputs = (
            [tensor for tensor in some if trace.tensors[tensor].is_passed_on]
            for some in (trace.ops[one].inputs, trace.ops[one].outputs)
        )
        pairs = {(trace.tensors[tensor].producer, one) for tensor in inputs}
        pairs |= {(one, reader) for tensor in outputs for reader in readers.get(tensor, ())}
        new = {other for pair in pairs for other in pair} - seen
        following += new
        seen |= new
        found |= pairs
    return found


def _runs_with(trace: Trace, op: int, reader: int) -> bool:
    """Whether an op and one that it passes a tensor on to can be in one chain: they have as many
    rows, and nothing lies between."""
    one, other = trace.ops[op].slabs, trace.ops[reader].slabs
    if one is None or other is None or one.rows != other.rows:
        return False
    return all(between.slabs is None for between in trace.ops[op + 1 : reader])


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
    readers = readers_of(trace)
    chains, kept, scratch = {}, {}, {}
    for ops in _chains(trace, split):
        last, rows = ops[-1], _rows(trace, ops[0])
        most = slab_bytes if isinstance(slab_bytes, int) else slab_bytes[last]
        height = (heights or {}).get(last) or height_of(trace, ops, most)
        if {_rows(trace, one) for one in ops} != {rows} or height % slabs_of(trace.ops[last]).unit:
            raise ValueError(f"{trace.ops[last].name} cannot run in slabs of {height} rows.")
        chains[last] = Chain(ops=ops, rows=rows, height=height)
        kept[last] = kept_rows(trace, ops, readers)
        scratch[last] = bytes_of_slab(trace, ops, height)
    on_host = split.union(*kept.values())
    return Cut(
        trace=_cut(trace, split, chains, on_host),
        chains=chains,
        kept=kept,
        split=split,
        on_host=on_host,
        scratch=scratch,
    )


def _slabs_of(trace: Trace, op: int) -> Slabs | None:
    return trace.ops[op].slabs if op >= 0 else None


def _rows(trace: Trace, op: int) -> int:
    return slabs_of(trace.ops[op]).rows


def touched(trace: Trace, split: Collection[int]) -> set[int]:
    """Return the ops that must run in slabs: those that touch a tensor that is split, and those
    that must run with them."""
    found = {
        index
        for index, op in enumerate(trace.ops)
        if any(one in split for one in (*op.inputs, *op.outputs))
    }
    readers = readers_of(trace)
    for index in tuple(found):
        found.update(*_passing_on(trace, index, readers))
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
        fused = any(trace.tensors[one].is_passed_on and one in made for one in op.inputs)
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
            if reach is None or not reach.reach.is_same or not _gives_rows(trace, producer, one):
                return False
            follows = True
        elif producer > chain[0] and trace.tensors[one].num_bytes:
            return False
    return follows


def _gives_rows(trace: Trace, op: int, tensor: int) -> bool:
    slabs = _slabs_of(trace, op)
    given = slabs.outputs[trace.ops[op].outputs.index(tensor)] if slabs else None
    return given is not None and given.reach.is_same


def _cut(
    trace: Trace, split: frozenset[int], chains: Mapping[int, Chain], on_host: Collection[int]
) -> Trace:
    ops, tensors = list(trace.ops), list(trace.tensors)
    readers = readers_of(trace)
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
