"""Chooses, for each tensor that the backward pass needs, to keep, swap or recompute it. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfunet.graph.step import Trace, without_small
from tfunet.swap.plan import split
from tfunet.swap.plan.activations import from_outputs, reading_outputs
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.exact import compared, uncompressed, without_compared
from tfunet.swap.plan.obstacles import in_the_way, working_sets
from tfunet.swap.plan.peak import at_peak
from tfunet.swap.plan.placement import swapped_bytes, total_bytes
from tfunet.swap.plan.plan import WAYS, Decision, Plan, Way
from tfunet.swap.plan.schedule import Action, memory, schedule
from tfunet.swap.plan.timeline import Moves, Timeline, curve, moved, overlap, timeline
from tfunet.swap.plan.traffic import Traffic, traffic
from tfunet.swap.search.search import Search

# A step of thousands of ops is not searched to the end: so many actions are weighed at the most.
SEARCHED_ACTIONS = 300_000


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What may be done in a step, and what it comes to.

    Args:
        decisions: For tensors, by index; what is not named is kept.
        moves: Where the copies stand.
        in_use: Bytes in use while each action runs.
        times: How long the step takes.
        on_disk: Swapped tensors for which host memory has no room.
    """

    decisions: Mapping[int, Decision]
    moves: Moves
    in_use: np.ndarray
    times: Timeline
    on_disk: frozenset[int] = frozenset()

    @property
    def peak_bytes(self) -> int:
        """Most memory in use at once."""
        return int(self.in_use.max(initial=0))

    def badness(self, budget_bytes: int) -> tuple[int, float]:
        """Return what to make small: bytes over the budget first, then time."""
        return max(0, self.peak_bytes - budget_bytes), self.times.step_seconds


def make_plan(
    trace: Trace,
    *,
    budget_bytes: int,
    costs: Costs,
    threshold_bytes: int,
    scratch: Mapping[int, int] | None = None,
    allowed: Sequence[Way] = WAYS,
) -> Plan:
    """Return the plan with the shortest step found whose predicted peak is within the budget.

    Where no plan is, the one with the lowest peak; compare `peak_bytes` with `budget_bytes`.
    Where not everything can be kept, gradients of activations read the activation's output, which
    costs nothing (`plan.activations`), or the input where that is not enough. Tensors are
    split only where nothing else is enough: first those of the ops that are larger than the budget,
    then more, from the largest on.

    Args:
        trace: The step.
        budget_bytes: For what the step itself holds: not variables, not the batch.
        costs: Of its ops and copies, with the room for swapped tensors, which is never passed.
        threshold_bytes: Smaller tensors are kept.
        scratch: See `tfunet.swap.plan.schedule.memory`.
        allowed: What may be done beside keeping.
    """
    trace = without_compared(trace)
    unlimited = weigh(trace, {}, costs, budget_bytes=budget_bytes, scratch=scratch)
    ways: list[list[str]] = [[]]
    if unlimited.peak_bytes > budget_bytes and not trace.is_forward:
        # An output that is read twice stays in between, where its input would not have to.
        freeing = from_outputs(trace, threshold_bytes)
        ways = [freeing, []] if freeing else ways

    def planned(tensors: Collection[int], slab_bytes: int = 0) -> Plan:
        plans: list[Plan] = []
        for gradients in ways:
            whole = reading_outputs(trace, gradients)
            plan = of_way(whole, split.cut(whole, tensors, slab_bytes=slab_bytes))
            plans.append(replace(plan, from_outputs=tuple(gradients)))
            if plan.peak_bytes <= budget_bytes:
                break
        return min(plans, key=lambda one: one.peak_bytes)

    def of_way(whole: Trace, found: split.Cut) -> Plan:
        while True:
            best = _planned(
                found.trace,
                budget_bytes=budget_bytes,
                costs=found.costs(whole, costs),
                threshold_bytes=threshold_bytes,
                scratch=found.scratch_with(scratch or {}),
                allowed=[one for one in allowed if one != "split"],
            )
            as_they_are = compared(whole, found, best.decisions)
            if not as_they_are:
                break
            whole = uncompressed(whole, as_they_are)
            found = replace(found, trace=uncompressed(found.trace, as_they_are))
        if found.chains:
            found, best = _taller(whole, found, best, costs, scratch or {}, budget_bytes)
        own = found.scratch_with(scratch or {})
        copied = traffic(whole, found, best.decisions, costs)
        plan = described(whole, found, best, unlimited, budget_bytes, own, copied)
        if plan.peak_bytes > budget_bytes:
            ops, advice = in_the_way(
                found.trace,
                budget_bytes=budget_bytes,
                scratch=own,
                held=plan.peak_tensors,
                allowed=allowed,
            )
            plan = replace(plan, obstacles=ops, advice=advice)
        return replace(
            plan,
            host_budget_bytes=costs.tiers.host_bytes,
            disk_budget_bytes=costs.tiers.disk_bytes,
        )

    best = planned(())
    if "split" not in allowed:
        return best
    for tensors in split.trials(trace, budget_bytes=budget_bytes, threshold_bytes=threshold_bytes):
        # Slabs come from and go to host memory.
        room = costs.tiers.host_bytes
        has_room = room is None or total_bytes(trace, tensors) <= room
        if best.peak_bytes <= budget_bytes or not has_room:
            break
        slab_bytes = int(budget_bytes * split.SLAB_SHARE)
        plan = planned(tensors, slab_bytes)
        if plan.peak_bytes < best.peak_bytes:
            best = plan
    return best


def _taller(
    trace: Trace,
    found: split.Cut,
    best: Candidate,
    costs: Costs,
    scratch: Mapping[int, int],
    budget_bytes: int,
) -> tuple[split.Cut, Candidate]:
    """Return the step in slabs as tall as there is room for, if it is shorter so."""
    actions = moved(schedule(found.trace, best.decisions), best.moves)
    own = found.scratch_with(scratch)
    room = {
        action.index: budget_bytes - int(in_use) + own[action.index]
        for action, in_use in zip(actions, best.in_use, strict=True)
        if action.kind == "op" and action.index in found.chains
    }
    taller = split.cut(trace, found.split, slab_bytes=room)
    trial = weigh(
        taller.trace,
        best.decisions,
        taller.costs(trace, costs),
        budget_bytes=budget_bytes,
        scratch=taller.scratch_with(scratch),
    )
    if trial.badness(budget_bytes) < best.badness(budget_bytes):
        return taller, trial
    return found, best


def _planned(
    trace: Trace,
    *,
    budget_bytes: int,
    costs: Costs,
    threshold_bytes: int,
    scratch: Mapping[int, int],
    allowed: Sequence[Decision],
) -> Candidate:
    """Return the best that is found without splitting.

    It begins several times: with each way alone, and with all of them, copies counted in full or
    as hidden behind computation. Each time it gives up one tensor after another, the one first
    that frees the most bytes for a second at the points where the budget is exceeded, until it is
    exceeded nowhere, and keeps again whatever turns out to fit. The best of these is then changed
    tensor by tensor while that makes the step shorter.
    """
    unlimited = weigh(trace, {}, costs, budget_bytes=budget_bytes, scratch=scratch)
    best = unlimited
    # Most ops of a step touch small tensors only, and would take most of the time of a search.
    large, stays = without_small(trace, threshold_bytes, scratch)
    if large.ops and unlimited.peak_bytes > budget_bytes:
        places = {index: place for place, index in enumerate(stays)}
        more = {places[one]: size for one, size in (scratch or {}).items() if one in places}
        in_use = memory(large, schedule(large, {}), more)
        small_bytes = unlimited.peak_bytes - int(in_use.max(initial=0))
        decisions = _search(
            large,
            costs=costs.of(stays),
            budget_bytes=budget_bytes - small_bytes,
            scratch=more,
            threshold_bytes=threshold_bytes,
            allowed=allowed,
        )
        best = weigh(trace, decisions, costs, budget_bytes=budget_bytes, scratch=scratch)
    return best


def _search(
    trace: Trace,
    *,
    costs: Costs,
    budget_bytes: int,
    scratch: Mapping[int, int],
    threshold_bytes: int,
    allowed: Sequence[Decision],
) -> Mapping[int, Decision]:
    """Return the best decisions found."""

    def weighed(decisions: Mapping[int, Decision]) -> Candidate:
        return weigh(trace, decisions, costs, budget_bytes=budget_bytes, scratch=scratch)

    found = []
    for ways, exposed in _beginnings(allowed, costs):
        search = Search(trace, costs, ways, threshold_bytes, exposed)
        found.append(weighed(_enough(search, budget_bytes, scratch)))
    best = min(found, key=lambda one: one.badness(budget_bytes))
    return _improved(Search(trace, costs, allowed, threshold_bytes), best, weighed, budget_bytes)


def _improved(
    search: Search,
    best: Candidate,
    weighed: Callable[[Mapping[int, Decision]], Candidate],
    budget_bytes: int,
) -> Mapping[int, Decision]:
    """Return the decisions changed tensor by tensor while that is better, the dearest first."""
    costs = {
        one: search.cost(one, what, best.decisions) or 0.0 for one, what in best.decisions.items()
    }
    trials_left = SEARCHED_ACTIONS // len(best.in_use)
    for tensor in sorted(costs, key=lambda one: -costs[one]):
        for decision in ("keep", *search.allowed):
            trial = {one: what for one, what in best.decisions.items() if one != tensor}
            if decision == best.decisions.get(tensor, "keep") or trials_left == 0:
                continue
            if decision != "keep":
                if search.cost(tensor, decision, trial) is None:
                    continue
                trial[tensor] = decision
            trials_left -= 1
            candidate = weighed(trial)
            if candidate.badness(budget_bytes) < best.badness(budget_bytes):
                best = candidate
    return best.decisions


def weigh(
    trace: Trace,
    decisions: Mapping[int, Decision],
    costs: Costs,
    *,
    budget_bytes: int,
    scratch: Mapping[int, int] | None = None,
) -> Candidate:
    """Return what decisions come to, with the copies moved as far as the budget allows."""
    costs = costs.placed(trace, decisions)
    actions = schedule(trace, decisions)
    moves = overlap(trace, actions, costs, budget_bytes=budget_bytes, scratch=scratch)
    actions = moved(actions, moves)
    return Candidate(
        decisions=decisions,
        moves=moves,
        in_use=memory(trace, actions, scratch),
        times=timeline(trace, actions, costs),
        on_disk=costs.on_disk,
    )


def _beginnings(
    allowed: Sequence[Decision], costs: Costs
) -> list[tuple[tuple[Decision, ...], float]]:
    """Return (what may be done, share of a copy's time that counts)."""
    shares = (1.0, 0.05) if costs.copies_overlap and "swap" in allowed else (1.0,)
    found: list[tuple[tuple[Decision, ...], float]] = [(tuple(allowed), one) for one in shares]
    if len(allowed) > 1:
        found += [((one,), 1.0) for one in allowed]
    return found


def _enough(
    search: Search, budget_bytes: int, scratch: Mapping[int, int] | None
) -> dict[int, Decision]:
    """Return decisions that keep the step within the budget, or come as near as can be."""
    trace = search.trace
    decisions: dict[int, Decision] = {}
    actions = schedule(trace, decisions)
    in_use = memory(trace, actions, scratch)
    refused: set[tuple[int, Decision]] = set()
    while (excess := _excess(actions, in_use, budget_bytes)) > 0:
        choices = [
            one
            for one in search.best_first(actions, in_use, budget_bytes, decisions)
            if one not in refused
        ]
        found = None
        trials: list[dict[int, Decision]] = [{tensor: what} for tensor, what in choices]
        several = search.first_of(choices, decisions, int(in_use.max()) - budget_bytes)
        for trial in ([several] if len(several) > 1 else []) + trials:
            trial_decisions = {**decisions, **trial}
            trial_actions = schedule(trace, trial_decisions)
            trial_use = memory(trace, trial_actions, scratch)
            if _excess(trial_actions, trial_use, budget_bytes) < excess:
                found = trial_decisions, trial_actions, trial_use
                break
            if len(trial) == 1:
                refused.update(trial.items())
        if found is None:
            break
        decisions, actions, in_use = found
    limit = max(budget_bytes, int(in_use.max(initial=0)))
    room = search.room(actions, in_use, limit, decisions)
    for tensor in list(decisions):
        if room[tensor] < trace.tensors[tensor].num_bytes:
            continue
        trial = {one: what for one, what in decisions.items() if one != tensor}
        trial_actions = schedule(trace, trial)
        trial_use = memory(trace, trial_actions, scratch)
        if trial_use.max(initial=0) <= limit:
            decisions = trial
            room = search.room(trial_actions, trial_use, limit, decisions)
    return decisions


def described(
    whole: Trace,
    found: split.Cut,
    best: Candidate,
    unlimited: Candidate,
    budget_bytes: int,
    scratch: Mapping[int, int],
    copied: Traffic,
    actions: Sequence[Action] | None = None,
) -> Plan:
    """Return what is done in a cut step as a plan; its actions, where decisions are not enough."""
    trace = found.trace
    floor, floor_op = largest_op(trace, scratch)
    if actions is None:
        actions = moved(schedule(trace, best.decisions), best.moves)
    peak_op, peak_tensors = at_peak(trace, actions, best.in_use, scratch)
    given_up = [*sorted(found.on_host), *sorted(best.decisions.keys() - found.on_host)]
    away = {one for one in given_up if best.decisions.get(one, "swap") == "swap"}
    compressed = [one for one in sorted(away) if trace.tensors[one].compressed_bytes]
    on_host = away - best.on_disk

    def named(places: Mapping[int, int]) -> dict[str, str]:
        return {trace.tensors[one].name: trace.ops[op].name for one, op in sorted(places.items())}

    return Plan(
        decisions={trace.tensors[one].name: what for one, what in sorted(best.decisions.items())},
        awaited=named(best.moves.awaited),
        fetched=named(best.moves.fetched),
        split=tuple(trace.tensors[one].name for one in sorted(found.split)),
        slab_rows={
            trace.ops[last].name: chain.height for last, chain in sorted(found.chains.items())
        },
        budget_bytes=budget_bytes,
        peak_bytes=best.peak_bytes,
        unlimited_peak_bytes=unlimited.peak_bytes,
        floor_bytes=floor,
        floor_op=floor_op,
        peak_op=peak_op,
        peak_tensors=peak_tensors,
        on_disk=tuple(trace.tensors[one].name for one in sorted(best.on_disk)),
        compression=whole.compression if compressed else None,
        compressed_bytes={
            trace.tensors[one].name: trace.tensors[one].compressed_bytes for one in compressed
        },
        host_bytes=total_bytes(whole, on_host & found.on_host)
        + swapped_bytes(trace, on_host - found.on_host),
        disk_bytes=swapped_bytes(trace, best.on_disk),
        out_bytes=copied.out_bytes,
        in_bytes=copied.in_bytes,
        step_seconds=best.times.step_seconds,
        unlimited_step_seconds=unlimited.times.step_seconds,
        repeat_seconds=best.times.repeat_seconds,
        copy_seconds=best.times.copy_seconds + copied.slab_seconds,
        exposed_seconds=best.times.exposed_seconds + copied.slab_seconds,
        curve=curve(best.times.ends, best.in_use.tolist()),
        unlimited_curve=curve(unlimited.times.ends, unlimited.in_use.tolist()),
        tensor_bytes={whole.tensors[one].name: whole.tensors[one].num_bytes for one in given_up},
    )


def largest_op(trace: Trace, scratch: Mapping[int, int]) -> tuple[int, str]:
    """Return the bytes that a single op reads and writes at once, at most, and that op's name."""
    sizes = working_sets(trace, scratch)
    name = max(sizes, key=lambda one: sizes[one], default="")
    return sizes.get(name, 0), name


def _excess(actions: Sequence[Action], in_use: np.ndarray, budget_bytes: int) -> int:
    """Return by how much the budget is exceeded, summed over the ops of the step, and at most.

    Over the ops only: copies and repetitions are points of their own, and more of them would
    look like more excess.
    """
    over = np.maximum(in_use - budget_bytes, 0)
    ops = np.array([action.kind == "op" for action in actions])
    return int(over[ops].sum() + over.max(initial=0))
