"""Searches for the decisions with which a step fits its budget and is shortest. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tfunet.graph.step import without_small
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.schedule import Action, schedule
from tfunet.swap.search.candidates import Candidates
from tfunet.swap.search.strategy import Outcome, Problem

# A step of thousands of ops is not searched to the end: at most so many actions are weighed.
SEARCHED_ACTIONS = 300_000


def best_outcome(problem: Problem, allowed: Sequence[Decision]) -> Outcome:
    """Return the best outcome found without splitting tensors.

    The search begins several times: with each way alone, and with all of them, where copies count
    in full or as hidden behind computation. Each time it gives up one tensor after another, first
    the one that frees the most bytes for its time at the points over the budget. When no point is
    over it, the search keeps again whatever turns out to fit. The best of these is then changed
    tensor by tensor while that makes the step shorter.
    """
    trace, scratch = problem.trace, problem.scratch
    all_kept = problem.weigh({})
    # Most ops of a step touch small tensors only, and would take most of the time of a search.
    large, stays = without_small(trace, problem.threshold_bytes, scratch)
    if not large.ops or all_kept.peak_bytes <= problem.budget_bytes:
        return all_kept
    places = {index: place for place, index in enumerate(stays)}
    large_problem = replace(
        problem,
        trace=large,
        costs=problem.costs.of(stays),
        scratch={places[op]: size for op, size in scratch.items() if op in places},
    )
    large_bytes = int(large_problem.memory(schedule(large, {})).max(initial=0))
    small_bytes = all_kept.peak_bytes - large_bytes
    large_problem = replace(large_problem, budget_bytes=problem.budget_bytes - small_bytes)
    return problem.weigh(_decisions(large_problem, allowed))


def _decisions(problem: Problem, allowed: Sequence[Decision]) -> Mapping[int, Decision]:
    outcomes = []
    for ways, exposed in _beginnings(allowed, problem.costs):
        decisions = _enough(problem, Candidates(problem, ways, exposed))
        outcomes.append(problem.weigh(decisions))
    best = min(outcomes, key=problem.badness)
    return _improved(problem, Candidates(problem, allowed), best)


def _beginnings(
    allowed: Sequence[Decision], costs: Costs
) -> list[tuple[tuple[Decision, ...], float]]:
    """Return (what may be done, share of a copy's time that counts)."""
    shares = (1.0, 0.05) if costs.copies_overlap and "swap" in allowed else (1.0,)
    beginnings: list[tuple[tuple[Decision, ...], float]] = []
    beginnings += [(tuple(allowed), share) for share in shares]
    if len(allowed) > 1:
        beginnings += [((way,), 1.0) for way in allowed]
    return beginnings


def _enough(problem: Problem, candidates: Candidates) -> dict[int, Decision]:
    """Return decisions that keep the step within the budget, or come as near as can be."""
    decisions: dict[int, Decision] = {}
    actions, in_use, excess = _tried(problem, decisions)
    refused: set[tuple[int, Decision]] = set()
    while excess > 0:
        choices = [
            choice
            for choice in candidates.best_first(actions, in_use, problem.budget_bytes, decisions)
            if choice not in refused
        ]
        several = candidates.several(choices, decisions, int(in_use.max()) - problem.budget_bytes)
        trials: list[dict[int, Decision]] = [{tensor: way} for tensor, way in choices]
        for trial in ([several] if len(several) > 1 else []) + trials:
            trial_actions, trial_use, trial_excess = _tried(problem, {**decisions, **trial})
            if trial_excess < excess:
                decisions = {**decisions, **trial}
                actions, in_use, excess = trial_actions, trial_use, trial_excess
                break
            if len(trial) == 1:
                refused.update(trial.items())
        else:
            break
    return _kept_again(problem, candidates, decisions, actions, in_use)


def _kept_again(
    problem: Problem,
    candidates: Candidates,
    decisions: dict[int, Decision],
    actions: Sequence[Action],
    in_use: np.ndarray,
) -> dict[int, Decision]:
    """Return decisions without those for tensors that turn out to fit."""
    limit_bytes = max(problem.budget_bytes, int(in_use.max(initial=0)))
    room = candidates.room(actions, in_use, limit_bytes, decisions)
    for tensor in list(decisions):
        if room[tensor] < problem.trace.tensors[tensor].num_bytes:
            continue
        trial = {other: way for other, way in decisions.items() if other != tensor}
        trial_actions, trial_use, _ = _tried(problem, trial)
        if trial_use.max(initial=0) <= limit_bytes:
            decisions = trial
            room = candidates.room(trial_actions, trial_use, limit_bytes, decisions)
    return decisions


def _tried(
    problem: Problem, decisions: Mapping[int, Decision]
) -> tuple[list[Action], np.ndarray, int]:
    """Return (actions, bytes in use, excess) with every copy right where it is needed.

    The excess is by how much the budget is exceeded, summed over the ops of the step, plus the
    largest. Over the ops only: copies and repetitions are points of their own, and more of them
    would look like more excess.
    """
    actions = schedule(problem.trace, decisions)
    in_use = problem.memory(actions)
    over = np.maximum(in_use - problem.budget_bytes, 0)
    ops = np.array([action.kind == "op" for action in actions])
    return actions, in_use, int(over[ops].sum() + over.max(initial=0))


def _improved(problem: Problem, candidates: Candidates, best: Outcome) -> Mapping[int, Decision]:
    """Return the decisions changed tensor by tensor while that is better, the dearest first."""
    seconds = {
        tensor: candidates.cost(tensor, way, best.decisions) or 0.0
        for tensor, way in best.decisions.items()
    }
    trials_left = SEARCHED_ACTIONS // len(best.in_use)
    for tensor in sorted(seconds, key=lambda tensor: -seconds[tensor]):
        for decision in ("keep", *candidates.ways(tensor)):
            others = {other: way for other, way in best.decisions.items() if other != tensor}
            if decision == best.decisions.get(tensor, "keep") or trials_left == 0:
                continue
            trial = others
            if decision != "keep":
                if candidates.cost(tensor, decision, others) is None:
                    continue
                trial = {**others, tensor: decision}
            trials_left -= 1
            best = problem.better(trial, best) or best
    return best.decisions
