"""Which tensors can be split, and the step in which the ops around them run in slabs. Pure.

A split tensor lies on the host. Each op that reads or makes it takes a slab of rows of its inputs,
makes a slab of its outputs, and copies that to the host before it takes the next. Ops that follow
each other on the same rows form a chain, and pass a slab on without the host.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tfunet.graph.slabs import SlabRows
from tfunet.graph.step import Op, Trace, readers_of
from tfunet.swap.plan import slab_chains
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.placement import swapped_in, total_bytes
from tfunet.swap.plan.plan import Decision

# The share of the budget that the slab of one chain may take.
SLAB_SHARE = 1 / 8
# How many sets of tensors are tried, from the largest tensors on.
MOST_TRIALS = 6


class Traffic(NamedTuple):
    """The copies of a step, and the time of those that ops in slabs wait for."""

    out_bytes: int
    in_bytes: int
    slab_seconds: float


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A step some of whose tensors are split.

    Args:
        whole: The step before it was cut.
        trace: The step in which each chain is one op, at the place of its last; its other ops do
            nothing. Split tensors, and those inside a chain, take no memory.
        chains: By the index of their last op.
        kept: Outputs of each chain that are put together on the host, by the chain's last op.
        on_host: The split tensors, and others that slabs put together on the host.
        scratch: Bytes that a slab takes on the device, by the chain's last op.
    """

    whole: Trace
    trace: Trace
    chains: Mapping[int, slab_chains.SlabChain]
    kept: Mapping[int, Sequence[int]]
    split: frozenset[int]
    on_host: frozenset[int]
    scratch: Mapping[int, int]

    def scratch_with(self, scratch: Mapping[int, int]) -> dict[int, int]:
        """Return the scratch of the cut step's ops from that of the ops before the cut."""
        scratch = dict(scratch)
        for last, chain in self.chains.items():
            parts = [
                _scratch_of_slab(self.whole.ops[index], scratch.pop(index, 0), chain)
                for index in chain.ops
            ]
            scratch[last] = self.scratch[last] + max(parts)
        return scratch

    def costs(self, costs: Costs) -> Costs:
        """Return the costs of the cut step's ops, with their copies to and from the host, from
        those of the step before it was cut."""
        seconds = list(costs.op_seconds)
        for last, chain in self.chains.items():
            seconds[last] = slab_chains.seconds_of(
                self.whole, chain, self.kept[last], self.split, costs
            )
            for index in chain.ops[:-1]:
                seconds[index] = 0.0
        tiers = costs.tiers.without(total_bytes(self.whole, self.on_host))
        return replace(costs, op_seconds=seconds, tiers=tiers)

    def traffic(self, decisions: Mapping[int, Decision], costs: Costs) -> Traffic:
        """Return what is copied: swapped tensors once each way, rows that slabs share twice."""
        slabs = [
            copy
            for last, chain in self.chains.items()
            for copy in slab_chains.copies(self.whole, chain, self.kept[last], self.split)
        ]
        swapped = swapped_in(decisions)
        return Traffic(
            # Tensors that slabs put together on the host are there already.
            out_bytes=total_bytes(self.trace, swapped - self.on_host)
            + sum(num_bytes for is_out, num_bytes, _ in slabs if is_out),
            in_bytes=total_bytes(self.trace, swapped)
            + sum(num_bytes for is_out, num_bytes, _ in slabs if not is_out),
            slab_seconds=sum(slab_chains.copy_seconds(*copy, costs) for copy in slabs),
        )


def splittable(trace: Trace) -> set[int]:
    """Return the tensors that can be split: all ops that make or read them can run in slabs."""
    tensors = set()
    readers = readers_of(trace)
    for index, tensor in enumerate(trace.tensors):
        if not tensor.num_bytes or tensor.is_result or tensor.is_passed_on:
            continue
        touching = (*readers.get(index, ()), tensor.producer)
        is_made_in_rows = _made_rows(trace, index) is not None
        if is_made_in_rows and all(_takes_rows(trace, op, index, readers) for op in touching):
            tensors.add(index)
    return tensors


def _made_rows(trace: Trace, tensor: int) -> SlabRows | None:
    """Return the rows of a tensor that a slab of its op makes; None where it makes none."""
    producer = trace.tensors[tensor].producer
    slabs = trace.ops[producer].slabs if producer >= 0 else None
    return slabs.outputs[trace.ops[producer].outputs.index(tensor)] if slabs else None


def _takes_rows(trace: Trace, op: int, tensor: int, readers: Mapping[int, Sequence[int]]) -> bool:
    """Whether an op that touches a tensor, and the ops it must run with, can run in slabs of it."""
    described = trace.ops[op]
    if described.slabs is None or (tensor, None) in slab_chains.reached_inputs(described):
        return False
    return all(_runs_with(trace, *pair) for pair in _passing_on(trace, op, readers))


def _passing_on(
    trace: Trace, op: int, readers: Mapping[int, Sequence[int]]
) -> set[tuple[int, int]]:
    """Return the ops that an op must run in slabs with: pairs of an op and one that it passes a
    tensor on to."""
    all_pairs: set[tuple[int, int]] = set()
    seen, following = {op}, [op]
    while following:
        index = following.pop()
        inputs, outputs = (
            [tensor for tensor in tensors if trace.tensors[tensor].is_passed_on]
            for tensors in (trace.ops[index].inputs, trace.ops[index].outputs)
        )
        pairs = {(trace.tensors[tensor].producer, index) for tensor in inputs}
        pairs |= {(index, reader) for tensor in outputs for reader in readers.get(tensor, ())}
        new = {end for pair in pairs for end in pair} - seen
        following += new
        seen |= new
        all_pairs |= pairs
    return all_pairs


def _runs_with(trace: Trace, op: int, reader: int) -> bool:
    """Whether an op and one that it passes a tensor on to can be in one chain: both have the same
    rows, and no op between them runs in slabs."""
    made, read = trace.ops[op].slabs, trace.ops[reader].slabs
    if made is None or read is None or made.rows != read.rows:
        return False
    return all(between.slabs is None for between in trace.ops[op + 1 : reader])


def trials(trace: Trace, *, budget_bytes: int, threshold_bytes: int) -> Iterator[frozenset[int]]:
    """Yield sets of tensors to split, each larger than the one before.

    First come the tensors of ops that alone exceed the budget, without which nothing fits, then
    all tensors from a size on.
    """
    able = {at for at in splittable(trace) if trace.tensors[at].num_bytes >= threshold_bytes}
    sizes = sorted({trace.tensors[tensor].num_bytes for tensor in able}, reverse=True)
    needed: set[int] = set()
    for op in trace.ops:
        tensors = {*op.inputs, *op.outputs}
        if total_bytes(trace, tensors) > budget_bytes:
            needed |= tensors & able
    seen = set()
    for least in [None, *sizes][: MOST_TRIALS + 1]:
        trial = set(needed)
        if least is not None:
            trial |= {tensor for tensor in able if trace.tensors[tensor].num_bytes >= least}
        if trial and frozenset(trial) not in seen:
            seen.add(frozenset(trial))
            yield frozenset(trial)


def cut(
    trace: Trace,
    split: Collection[int],
    *,
    slab_bytes: int | Mapping[int, int] = 0,
    heights: Mapping[int, int] | None = None,
) -> Cut:
    """Return the step with some tensors split.

    Args:
        slab_bytes: What a slab may take, if that is possible; or of each chain, by its last op.
        heights: Instead, the height of the slabs of each chain, by its last op.
    """
    split = frozenset(split)
    readers = readers_of(trace)
    chains, kept, scratch = {}, {}, {}
    for ops in _chains(trace, split):
        last, rows = ops[-1], slab_chains.slabs_of(trace.ops[ops[0]]).rows
        most = slab_bytes if isinstance(slab_bytes, int) else slab_bytes[last]
        height = (heights or {}).get(last) or slab_chains.height_of(trace, ops, most)
        all_slabs = [slab_chains.slabs_of(trace.ops[index]) for index in ops]
        if {slabs.rows for slabs in all_slabs} != {rows} or height % all_slabs[-1].unit:
            raise ValueError(f"{trace.ops[last].name} cannot run in slabs of {height} rows.")
        chains[last] = slab_chains.SlabChain(ops=ops, rows=rows, height=height)
        kept[last] = slab_chains.kept_rows(trace, ops, readers)
        scratch[last] = slab_chains.bytes_of_slab(trace, ops, height)
    on_host = split.union(*kept.values())
    return Cut(
        whole=trace,
        trace=_cut(trace, split, chains, on_host),
        chains=chains,
        kept=kept,
        split=split,
        on_host=on_host,
        scratch=scratch,
    )


def touched(trace: Trace, split: Collection[int]) -> set[int]:
    """Return the ops that must run in slabs: those that touch a split tensor, and those that must
    run with them."""
    ops = {
        index
        for index, op in enumerate(trace.ops)
        if any(tensor in split for tensor in (*op.inputs, *op.outputs))
    }
    readers = readers_of(trace)
    for index in tuple(ops):
        ops.update(*_passing_on(trace, index, readers))
    return ops


def _chains(trace: Trace, split: frozenset[int]) -> list[tuple[int, ...]]:
    in_slabs = touched(trace, split)
    chains: list[list[int]] = []
    made: set[int] = set()  # by the last chain
    is_open = False
    for index, op in enumerate(trace.ops):
        if index not in in_slabs:
            if is_open and any(tensor in made for tensor in op.inputs):
                is_open = False
            continue
        passed_on = any(
            trace.tensors[tensor].is_passed_on and tensor in made for tensor in op.inputs
        )
        if passed_on or (is_open and _joins(trace, chains[-1], made, op)):
            chains[-1].append(index)
        else:
            chains.append([index])
            made = set()
        made |= set(op.outputs)
        # An op outside of the step may wait for a result, and later ops of the chain for that op.
        is_open = not any(trace.tensors[tensor].is_result for tensor in op.outputs)
    return [tuple(chain) for chain in chains]


def _joins(trace: Trace, chain: list[int], made: set[int], op: Op) -> bool:
    """Whether an op can pass on the slabs of a chain."""
    slabs, first = op.slabs, trace.ops[chain[0]].slabs
    if slabs is None or first is None or (slabs.rows, slabs.unit) != (first.rows, first.unit):
        return False
    follows = False
    for tensor, reach in slab_chains.reached_inputs(op):
        if tensor in made:
            made_rows = _made_rows(trace, tensor)
            if not (reach and reach.reach.is_same and made_rows and made_rows.reach.is_same):
                return False
            follows = True
        elif trace.tensors[tensor].producer > chain[0] and trace.tensors[tensor].num_bytes:
            return False
    return follows


def _cut(
    trace: Trace,
    split: frozenset[int],
    chains: Mapping[int, slab_chains.SlabChain],
    on_host: Collection[int],
) -> Trace:
    ops, tensors = list(trace.ops), list(trace.tensors)
    readers = readers_of(trace)
    for tensor in split:
        tensors[tensor] = replace(tensors[tensor], num_bytes=0)
    for last, chain in chains.items():
        inside = slab_chains.outputs_of(trace, chain.ops)
        inputs: dict[int, None] = {}
        outputs: dict[int, None] = {}
        for index in chain.ops:
            op = trace.ops[index]
            inputs |= dict.fromkeys(tensor for tensor in op.inputs if tensor not in inside)
            outputs |= dict.fromkeys(op.outputs)
            ops[index] = replace(
                op, kind="NoOp", inputs=(), outputs=(), is_repeatable=False, flops=0.0, slabs=None
            )
        for tensor in outputs:
            is_read_outside = any(reader not in chain.ops for reader in readers.get(tensor, ()))
            is_needed = is_read_outside or trace.tensors[tensor].is_result
            tensors[tensor] = replace(
                tensors[tensor],
                producer=last,
                is_inner=False,
                num_bytes=tensors[tensor].num_bytes if is_needed else 0,
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


def _scratch_of_slab(op: Op, scratch_bytes: int, chain: slab_chains.SlabChain) -> int:
    if scratch_bytes and op.unrolled is not None:
        return op.unrolled.num_bytes(min(1.0, chain.height / chain.rows))
    # What else an op needs beside its tensors shrinks with them.
    return scratch_bytes * chain.height // chain.rows
