"""Strategies that force a plan, whatever the budget."""

import dataclasses
import itertools
import math

from tfunet.swap.arena.detours import movable
from tfunet.swap.plan import split
from tfunet.swap.plan.activations import from_outputs, reading_outputs
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import schedule
from tfunet.swap.plan.timeline import moved, overlap
from tfunet.swap.search.candidates import Candidates
from tfunet.swap.search.strategy import Strategy

# Each op and each copy of `AllThatMayGo` takes so long: its plan is the same on any machine.
OP_SECONDS, COPY_SECONDS = 1e-4, 1e-3


class AllThatMayGo(Strategy):
    """Gives up every tensor it may, in these ways in turn, whether or not that lowers the peak.

    Copies stand as far from where they are read as if they ran beside computation.
    """

    def __init__(self, *ways):
        self.ways = ways

    def plan(self, problem):
        costs = problem.costs
        gradients = from_outputs(problem.trace, problem.threshold_bytes)
        trace = reading_outputs(problem.trace, gradients)
        candidates = Candidates(dataclasses.replace(problem, trace=trace), self.ways)
        ways = itertools.cycle(self.ways)
        decisions = {}
        for tensor in candidates.idle(schedule(trace, {}), {}):
            way = next(ways)
            if way == "swap" or candidates.cost(tensor, way, {}) is not None:
                decisions[tensor] = way
        on_disk = costs.placed(trace, decisions).on_disk
        slow_copies = Costs(
            op_seconds=[OP_SECONDS] * len(trace.ops),
            out_bytes_per_second=math.inf,
            in_bytes_per_second=math.inf,
            copy_seconds=COPY_SECONDS,
            copies_overlap=True,
        )
        moves = overlap(trace, schedule(trace, decisions), slow_copies, budget_bytes=2**40)
        actions = moved(schedule(trace, decisions), moves)
        detours = [] if trace.is_forward else some_detours(trace, actions)
        names = [tensor.name for tensor in trace.tensors]
        ops = [op.name for op in trace.ops]
        return Plan(
            detours=[(names[detour.tensor], *detour[1:]) for detour in detours],
            from_outputs=gradients,
            decisions={names[tensor]: way for tensor, way in decisions.items()},
            on_disk=[names[tensor] for tensor in on_disk],
            awaited={names[tensor]: ops[op] for tensor, op in moves.awaited.items()},
            fetched={names[tensor]: ops[op] for tensor, op in moves.fetched.items()},
        )


def some_detours(trace, actions):
    """Return detours of the largest tensors that are there at some places of a step."""
    detours = []
    for place in range(len(actions) // 20, len(actions), len(actions) // 10):
        unread, read = movable(trace, actions, detours, place, least_bytes=256)
        detours += [*unread[:2], *read[:1]]
    return detours


class AllThatMayBeSplit(Strategy):
    """Splits every tensor it may, whether or not that lowers the peak."""

    def plan(self, problem):
        tensors, least = problem.trace.tensors, problem.threshold_bytes
        able = split.splittable(problem.trace)
        return split_plan(problem.trace, [at for at in able if tensors[at].num_bytes >= least])


def split_plan(trace, tensors):
    """Return a plan that splits these tensors and does nothing else."""
    cut = split.cut(trace, tensors)
    return Plan(
        split=tuple(trace.tensors[index].name for index in sorted(tensors)),
        slab_rows={trace.ops[last].name: chain.height for last, chain in cut.chains.items()},
        is_placed=bool(cut.chains) and not trace.is_forward,
    )


class Fixed(Strategy):
    """Makes the plan that a function makes of a trace."""

    def __init__(self, make):
        self.make = make

    def plan(self, problem):
        return self.make(problem.trace)


class ForBudget(Strategy):
    """Makes the plan that a function makes for a budget."""

    def __init__(self, make):
        self.make = make

    def plan(self, problem):
        return self.make(problem.budget_bytes)


def swapped_plan(trace, indices):
    """Return a plan that swaps these tensors."""
    tensors = [trace.tensors[index] for index in indices]
    return Plan(
        decisions={tensor.name: "swap" for tensor in tensors},
        tensor_bytes={tensor.name: tensor.num_bytes for tensor in tensors},
    )
