"""How much of a budget a plan may use for TensorFlow's allocator to find it in pieces. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from tfunet.graph.step import Trace
from tfunet.swap.arena.arena import Memory, Request, plays, requests
from tfunet.swap.arena.cases import FROM_START, IN_PIECES, SEARCHED, MemoryCases
from tfunet.swap.arena.detours import find, with_detours
from tfunet.swap.plan.diagnosis import at_peak
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import Action, is_on_host
from tfunet.swap.plan.slab_chains import blocks_of_slab
from tfunet.swap.plan.split import Cut
from tfunet.swap.plan.timeline import curve, timeline
from tfunet.swap.search.applied import as_planned, cut_as_planned, scheduled
from tfunet.swap.search.strategy import Problem, Strategy

# At most so many plans are tried: to make one takes seconds where there are thousands of ops.
MOST_TRIALS = 10
# The budget of a plan is smaller than that of the one before by a factor between these.
LEAST_STEP, MOST_STEP = 1.04, 1.6


def fitted(
    problem: Problem, memory: Memory, strategy: Strategy, most_bytes: int | None = None
) -> Plan:
    """Return the plan with the largest budget for which TensorFlow's allocator finds room.

    The allocator hands out blocks of up to twice the size that is asked for, and leaves gaps
    between them. It is played through the step under one plan after the other, each for a smaller
    budget. If none has room, tensors that are in the way take detours (`arena.detours`), first
    under the plan with the smallest budget. If that does not help, the result is the plan that has
    room most often, with the lowest peak. The first budget is `most_bytes`, or all that a step has.
    """
    trace, scratch = problem.trace, problem.scratch
    tried: list[Plan] = []
    budget_bytes = memory.step_bytes if most_bytes is None else most_bytes
    while len(tried) < MOST_TRIALS:
        plan = strategy.advised(replace(problem, budget_bytes=budget_bytes))
        is_over = plan.peak_bytes > plan.budget_bytes
        if is_over and tried and plan.peak_bytes >= tried[-1].peak_bytes:
            break  # There is nothing less.
        plan = replace(plan, finds_room=finds_room(trace, memory, plan, scratch))
        tried.append(plan)
        # A plan over its budget has the least peak, unless it has slabs: they may get lower.
        if plan.finds_room == 1 or (is_over and not plan.split):
            break
        budget_bytes = min(budget_bytes, plan.peak_bytes)
        budget_bytes = int(budget_bytes / _short(memory, _asked(trace, plan, scratch)))
    # In a forward pass alone, detours part ops that TensorFlow runs as one: other last bits.
    for plan in reversed(tried) if not trace.is_forward else ():
        if any(other.finds_room == 1 for other in tried):
            break
        tried += _with_detours(problem, memory, plan)
    best = max(tried, key=lambda plan: (plan.finds_room, -plan.peak_bytes))
    best = replace(best, is_placed=best.gives_up and not trace.is_forward)
    most = tried[0].budget_bytes
    if best.finds_room == 1 and best.peak_bytes <= best.budget_bytes:
        return best
    # The budget that it was made for was smaller than that of the step.
    if best.peak_bytes <= most:
        best = replace(best, obstacles={}, advice=(), wanted_host_bytes=0, wanted_peak_bytes=0)
    return replace(best, budget_bytes=most)


def _with_detours(problem: Problem, memory: Memory, plan: Plan) -> Iterator[Plan]:
    """Yield the plan with detours with which the allocator has room more often."""
    cut = cut_as_planned(as_planned(problem.trace, plan), plan)
    if cut.chains or plan.detours:
        return
    trace, actions = cut.trace, scheduled(cut.trace, plan)
    blocks = _blocks(cut, problem.scratch)
    on_disk = {index for index, tensor in enumerate(trace.tensors) if tensor.name in plan.on_disk}
    costs = replace(problem.costs, on_disk=frozenset(on_disk))
    problem = replace(problem, trace=trace, costs=costs)
    for cases in (IN_PIECES, SEARCHED):
        arenas = list(cases.arenas(memory))
        detours = find(trace, actions, blocks, arenas, limit_bytes=memory.limit_bytes)
        changed = with_detours(trace, actions, detours)
        room = _had_room(memory, requests(trace, changed, blocks))
        if detours and room > plan.finds_room:
            with_them = _described(plan, problem, changed)
            detoured = tuple((trace.tensors[detour.tensor].name, *detour[1:]) for detour in detours)
            host_bytes = costs.tiers.host_bytes
            if host_bytes is None or with_them.host_bytes <= host_bytes:
                yield replace(with_them, detours=detoured, finds_room=room)


def _described(plan: Plan, problem: Problem, actions: Sequence[Action]) -> Plan:
    trace = problem.trace
    swapped = {action.index for action in actions if action.kind == "out"}
    leaving = [action for action in actions if action.kind == "leave"]
    out_bytes = sum(
        trace.tensors[action.index].num_bytes
        for action in leaving
        if not is_on_host(action.inputs[0], swapped)
    )
    in_bytes = sum(trace.tensors[action.index].num_bytes for action in leaving)
    in_use, times = problem.memory(actions), timeline(trace, actions, problem.costs)
    peak_op, peak_tensors = at_peak(trace, actions, in_use, problem.scratch)
    return replace(
        plan,
        peak_bytes=int(in_use.max(initial=0)),
        peak_op=peak_op,
        peak_tensors=peak_tensors,
        host_bytes=plan.host_bytes + out_bytes,
        out_bytes=plan.out_bytes + out_bytes,
        in_bytes=plan.in_bytes + in_bytes,
        step_seconds=times.step_seconds,
        copy_seconds=times.copy_seconds,
        exposed_seconds=times.exposed_seconds,
        curve=curve(times.ends, in_use.tolist()),
    )


def finds_room(trace: Trace, memory: Memory, plan: Plan, scratch: Mapping[int, int]) -> float:
    """Return the share of plays of the allocator in which it had room for a plan.

    If it is known which pieces are free, plays in those pieces make up half of it.
    """
    return _had_room(memory, _asked(trace, plan, scratch))


def _had_room(memory: Memory, asked: Sequence[Request]) -> float:
    def share(cases: MemoryCases) -> float:
        return fmean(plays(make(), asked) for make in cases.arenas(memory))

    from_start = share(FROM_START)
    return (from_start + share(IN_PIECES)) / 2 if memory.pieces else from_start


def _short(memory: Memory, asked: Sequence[Request]) -> float:
    """Return by which factor the memory would have to be larger for a plan to have room in it."""
    times = LEAST_STEP
    while times < MOST_STEP:
        larger = replace(memory, limit_bytes=int(memory.limit_bytes * times))
        if memory.pieces:
            *small, largest = memory.pieces
            largest += larger.limit_bytes - memory.limit_bytes
            larger = replace(larger, pieces=(*small, largest))
        if _had_room(larger, asked) == 1:
            break
        times *= LEAST_STEP
    return times


def _asked(trace: Trace, plan: Plan, scratch: Mapping[int, int]) -> list[Request]:
    cut = cut_as_planned(as_planned(trace, plan), plan)
    return requests(cut.trace, scheduled(cut.trace, plan), _blocks(cut, scratch))


def _blocks(cut: Cut, scratch: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """Return the sizes of the blocks that each op of a cut step needs beside its tensors."""
    cut_scratch = cut.scratch_with(scratch)
    blocks: dict[int, Sequence[int]] = {op: [size] for op, size in cut_scratch.items()}
    for last, chain in cut.chains.items():
        slab = blocks_of_slab(cut.whole, chain.ops, chain.height)
        blocks[last] = [*slab, cut_scratch[last] - sum(slab)]
    return blocks
