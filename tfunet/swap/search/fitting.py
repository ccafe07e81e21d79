"""How much of a budget a plan may use for TensorFlow's allocator to find it in pieces. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tfunet.graph.step import Trace
from tfunet.swap.arena.arena import Arena, Request, at_start, in_pieces, plays, requests
from tfunet.swap.arena.detours import find, with_detours
from tfunet.swap.arena.memory import Memory
from tfunet.swap.plan.chains import blocks_of_slab
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.peak import at_peak
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import Action, is_on_host
from tfunet.swap.plan.schedule import memory as memory_of
from tfunet.swap.plan.split import Cut
from tfunet.swap.plan.timeline import curve, timeline
from tfunet.swap.search.applied import as_planned, cut, scheduled

# So many plans are tried at most: to make one takes seconds where there are thousands of ops.
MOST_TRIALS = 10
# The budget of a plan is less than that of the one before by so much at least, and at most.
LEAST_STEP, MOST_STEP = 1.04, 1.6
# Of the budget: how far in things may lie that nobody knows of, such as what timing the ops left
# behind. Where a tensor comes to lie hangs on them: a plan has room if it has with each.
HOLES = (0.0, 0.01, 0.02, 0.035, 0.05, 0.07)
# How large they may be, beside what is there as often again, the next batch say: of that, so much.
UNKNOWN, MOST_AGAIN = 0.05, 0.1
# Of that: all and nothing. Detours are looked for with more shares, and with less of what is known.
SHARES = (1.0, 0.0)
MORE_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0, -0.15, -0.3, -0.45, -0.6, -0.75)
# And with scalars at the edge of what is free.
CUT_BYTES = 2**10
# Where it is known what is free: of the budget, what the step may find in use of the largest piece.
TAKEN = (0.0, 0.0005, 0.002, 0.005, 0.01)


def fitted(
    step: Trace,
    memory: Memory,
    make: Callable[[int], Plan],
    scratch: Mapping[int, int],
    costs: Costs,
    *,
    most_bytes: int | None = None,
) -> Plan:
    """Return the plan with the largest budget for which TensorFlow's allocator finds room.

    The allocator hands out blocks of up to twice the size that is asked for, and leaves gaps
    between them. It is played through the step under one plan after the other, each for a smaller
    budget. Where none has room, what is in the way takes detours (`arena.detours`), under the
    plan with the smallest budget first. Where none has room even so, that which has it most often,
    with the lowest peak.

    Args:
        step: That is planned.
        memory: Of the device.
        make: Returns the plan for so many bytes.
        scratch: See `tfunet.swap.plan.schedule.memory`.
        costs: Of the step.
        most_bytes: Budget to begin with instead of all that a step has.
    """
    tried: list[Plan] = []
    budget_bytes = memory.step_bytes if most_bytes is None else most_bytes
    while len(tried) < MOST_TRIALS:
        plan = make(budget_bytes)
        is_over = plan.peak_bytes > plan.budget_bytes
        if is_over and tried and plan.peak_bytes >= tried[-1].peak_bytes:
            break  # There is nothing less.
        asked = _asked(step, plan, scratch)
        plan = replace(plan, finds_room=_had_room(memory, asked))
        tried.append(plan)
        # Of a step that is not cut there is nothing less; slabs may be lower.
        if plan.finds_room == 1 or (is_over and not plan.split):
            break
        budget_bytes = int(min(budget_bytes, plan.peak_bytes) / _short(memory, asked))
    for one in reversed(tried):
        if any(one.finds_room == 1 for one in tried):
            break
        tried += _with_detours(step, memory, one, scratch, costs)
    best = max(tried, key=lambda one: (one.finds_room, -one.peak_bytes))
    best = replace(best, is_placed=best.gives_up and not step.is_forward)
    most = tried[0].budget_bytes
    if best.finds_room == 1 and best.peak_bytes <= best.budget_bytes:
        return best
    # The budget that it was made for was smaller than that of the step.
    if best.peak_bytes <= most:
        best = replace(best, obstacles={}, advice=(), wanted_host_bytes=0, wanted_peak_bytes=0)
    return replace(best, budget_bytes=most)


def _with_detours(
    step: Trace, memory: Memory, plan: Plan, scratch: Mapping[int, int], costs: Costs
) -> Iterator[Plan]:
    """Yield a plan with detours with which it finds room, or more often."""
    step = as_planned(step, plan)
    found = cut(step, plan)
    # Of a forward pass alone some ops would be computed apart, in other last bits.
    if found.chains or plan.rule or plan.detours or step.is_forward:
        return
    trace, actions = found.trace, scheduled(found.trace, plan)
    blocks = _blocks(step, found, scratch)
    on_disk = {at for at, one in enumerate(trace.tensors) if one.name in plan.on_disk}
    costs = replace(costs, on_disk=frozenset(on_disk))
    for arenas in (_as_found(memory), _more_arenas(memory)):
        detours = find(trace, actions, blocks, arenas, limit_bytes=memory.limit_bytes)
        changed = with_detours(trace, actions, detours)
        room = _had_room(memory, requests(trace, changed, blocks))
        if detours and room > plan.finds_room:
            with_them = _described(plan, trace, changed, scratch, costs)
            detoured = tuple((trace.tensors[one.tensor].name, *one[1:]) for one in detours)
            host = costs.tiers.host_bytes
            if host is None or with_them.host_bytes <= host:
                yield replace(with_them, detours=detoured, finds_room=room)


def _described(
    plan: Plan,
    trace: Trace,
    actions: Sequence[Action],
    scratch: Mapping[int, int],
    costs: Costs,
) -> Plan:
    """Return a plan with what it comes to when tensors leave as these actions say."""
    swapped = {one.index for one in actions if one.kind == "out"}
    leaving = [one for one in actions if one.kind == "leave"]
    sizes = [
        0 if is_on_host(trace, one.inputs[0], swapped) else trace.tensors[one.index].num_bytes
        for one in leaving
    ]
    in_use, times = memory_of(trace, actions, scratch), timeline(trace, actions, costs)
    peak_op, peak_tensors = at_peak(trace, actions, in_use, scratch)
    return replace(
        plan,
        peak_bytes=int(in_use.max(initial=0)),
        peak_op=peak_op,
        peak_tensors=peak_tensors,
        host_bytes=plan.host_bytes + sum(sizes),
        out_bytes=plan.out_bytes + sum(sizes),
        in_bytes=plan.in_bytes + sum(trace.tensors[one.index].num_bytes for one in leaving),
        step_seconds=times.step_seconds,
        copy_seconds=times.copy_seconds,
        exposed_seconds=times.exposed_seconds,
        curve=curve(times.ends, in_use.tolist()),
    )


def finds_room(step: Trace, memory: Memory, plan: Plan, scratch: Mapping[int, int]) -> float:
    """Return how often, of the times it was played through, the allocator had room for a plan.

    Where it is known what is free, half of it is how often it had room in that.
    """
    return _had_room(memory, _asked(step, plan, scratch))


def _had_room(memory: Memory, asked: Sequence[Request]) -> float:
    def share(arenas: Sequence[Callable[[], Arena]]) -> float:
        return sum(plays(make(), asked) for make in arenas) / len(arenas)

    any_that_may_be = share(list(_arenas(memory)))
    as_found = _as_found(memory)
    return (any_that_may_be + share(as_found)) / 2 if as_found else any_that_may_be


def _short(memory: Memory, asked: Sequence[Request]) -> float:
    """Return how many times its memory a plan wants, to have room in it."""
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


def _as_found(memory: Memory) -> list[Callable[[], Arena]]:
    """Return what makes what the step will find if it is as now, or a little less."""
    found: list[Callable[[], Arena]] = []
    for taken in TAKEN if memory.pieces else ():
        *small, largest = memory.pieces
        left = max(0, largest - int(taken * memory.limit_bytes))
        found += [partial(in_pieces, [*small, left], cut_bytes=one) for one in (0, CUT_BYTES)]
    return found


def _more_arenas(memory: Memory) -> list[Callable[[], Arena]]:
    """Return what makes more of what a step may find, of which detours have to make the best."""
    return [
        make for cut_bytes in (0, CUT_BYTES) for make in _arenas(memory, MORE_SHARES, cut_bytes)
    ]


def _arenas(
    memory: Memory, shares: Sequence[float] = SHARES, cut_bytes: int = 0
) -> Iterator[Callable[[], Arena]]:
    """Yield what makes what a step may find, as `HOLES` has it.

    `shares` are of what nobody knows of, and below 0 of what is known and may be gone. See `Arena`
    for `cut_bytes`.
    """
    again = min(memory.more_bytes, int(MOST_AGAIN * memory.limit_bytes))
    unknown = again + int(UNKNOWN * memory.limit_bytes)
    for hole in HOLES:
        for share in shares:
            changed = share * (unknown if share > 0 else memory.more_bytes)
            yield partial(
                at_start,
                memory.limit_bytes,
                first_bytes=memory.first_bytes,
                resident=memory.resident,
                more_bytes=memory.more_bytes + int(changed),
                hole_bytes=int(hole * memory.limit_bytes),
                cut_bytes=cut_bytes,
            )


def _asked(step: Trace, plan: Plan, scratch: Mapping[int, int]) -> list[Request]:
    """Return what a step asks of the allocator under a plan."""
    step = as_planned(step, plan)
    found = cut(step, plan)
    return requests(found.trace, scheduled(found.trace, plan), _blocks(step, found, scratch))


def _blocks(step: Trace, found: Cut, scratch: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """Return the bytes of the blocks that ops of a cut step need and no tensor shows."""
    own = found.scratch_with(scratch)
    blocks: dict[int, Sequence[int]] = {one: [size] for one, size in own.items()}
    for last, chain in found.chains.items():
        of_slab = blocks_of_slab(step, chain.ops, chain.height)
        blocks[last] = [*of_slab, own[last] - sum(of_slab)]
    return blocks
