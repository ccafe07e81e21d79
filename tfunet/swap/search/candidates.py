"""Which tensors of a step may be given up, and what that costs and frees. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfunet.graph.step import ALIASES, Trace, root
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.schedule import Action
from tfunet.swap.search.strategy import Problem

# A repeated op may need repeated inputs, and so on; a longer chain costs more than a copy.
MAX_CHAIN = 12
# Far from the budget, several tensors are given up at once: together this share of the excess.
SHARE_AT_ONCE = 0.05


def may_go(trace: Trace, index: int, threshold_bytes: int) -> bool:
    """Whether a tensor of the forward pass may be given up if the backward pass reads it."""
    tensor = trace.tensors[index]
    # A tensor of unknown shape, whose bytes are 0, is kept under any threshold.
    if tensor.producer < 0 or tensor.num_bytes < max(1, threshold_bytes):
        return False
    op = trace.ops[tensor.producer]
    return not op.is_backward and op.kind not in ALIASES and not tensor.is_inner


class Candidates:
    """The tensors of a step that may be given up, and what giving up each of them costs.

    `exposed` is the share of a copy's time that counts as time of the step.
    """

    def __init__(self, problem: Problem, allowed: Sequence[Decision], exposed: float = 1.0) -> None:
        self.trace = trace = problem.trace
        self.costs = problem.costs
        self.allowed = allowed
        self.threshold_bytes = problem.threshold_bytes
        self.exposed = exposed
        self.roots = [root(trace, tensor) for tensor in range(len(trace.tensors))]

    def several(
        self,
        choices: Sequence[tuple[int, Decision]],
        decisions: Mapping[int, Decision],
        excess_bytes: int,
    ) -> dict[int, Decision]:
        """Return the first choices that free a share of the excess together, and of which none
        costs more or less because of the others."""
        chosen: dict[int, Decision] = {}
        num_bytes = 0
        for tensor, decision in choices:
            if tensor in chosen:
                continue
            cost_alone = self.cost(tensor, decision, decisions)
            if self.cost(tensor, decision, {**decisions, **chosen}) != cost_alone:
                continue
            num_bytes += self.trace.tensors[tensor].num_bytes
            if num_bytes > SHARE_AT_ONCE * excess_bytes:
                break
            chosen[tensor] = decision
        return chosen

    def room(
        self,
        actions: Sequence[Action],
        in_use: np.ndarray,
        limit_bytes: int,
        decisions: Mapping[int, Decision],
    ) -> dict[int, int]:
        """Return how large each tensor could be for the step to fit with it kept after all.

        Only the ops of the step count: copies and repetitions change with what is kept.
        """
        last_before: dict[int, int] = {}
        first_after: dict[int, int] = {}
        for position, action in enumerate(actions):
            for copy, restored in (*action.inputs, *action.outputs):
                tensor = self.roots[copy]
                if restored:
                    first_after.setdefault(tensor, position)
                else:
                    last_before[tensor] = position
        at_ops = np.where([action.kind == "op" for action in actions], in_use, 0)
        room = {}
        for tensor in decisions:
            away = at_ops[last_before[tensor] + 1 : first_after.get(tensor)]
            room[tensor] = limit_bytes - int(away.max(initial=0))
        return room

    def best_first(
        self,
        actions: Sequence[Action],
        in_use: np.ndarray,
        budget_bytes: int,
        decisions: Mapping[int, Decision],
    ) -> list[tuple[int, Decision]]:
        """Return (tensor, decision), starting with what frees most bytes for its time."""
        over = np.concatenate([[0], np.cumsum(in_use > budget_bytes)])
        choices: list[tuple[float, int, Decision]] = []
        for tensor, (first, last) in self.idle(actions, decisions).items():
            # The number of points over the budget at which the tensor would be gone.
            relieved = over[last] - over[first + 1]
            if relieved <= 0:
                continue
            gain = self.trace.tensors[tensor].num_bytes * relieved
            for decision in self.ways(tensor):
                cost = self.cost(tensor, decision, decisions)
                if cost is not None:
                    choices.append((cost / gain, tensor, decision))
        return [(tensor, decision) for _, tensor, decision in sorted(choices)]

    def idle(
        self, actions: Sequence[Action], decisions: Mapping[int, Decision]
    ) -> dict[int, tuple[int, int]]:
        """Return, of each candidate, the last read before and the first read in the backward
        pass."""
        last_forward: dict[int, int] = {}
        first_backward: dict[int, int] = {}
        for position, action in enumerate(actions):
            in_backward = action.kind != "op" or self.trace.ops[action.index].is_backward
            for copy, restored in (*action.inputs, *action.outputs):
                if restored:
                    continue
                tensor = self.roots[copy]
                if in_backward:
                    first_backward.setdefault(tensor, position)
                else:
                    last_forward[tensor] = position
        return {
            tensor: (last_forward[tensor], first)
            for tensor, first in first_backward.items()
            if tensor in last_forward
            and tensor not in decisions
            and may_go(self.trace, tensor, self.threshold_bytes)
        }

    def ways(self, tensor: int) -> Sequence[Decision]:
        """Return how a tensor may be given up: a weight that came from the host comes again."""
        producer = self.trace.ops[self.trace.tensors[tensor].producer]
        return ("recompute",) if producer.brings_weight else self.allowed

    def cost(
        self, tensor: int, decision: Decision, decisions: Mapping[int, Decision]
    ) -> float | None:
        """Return the seconds that giving up a tensor adds to a step; None if it cannot go so."""
        if decision == "swap":
            seconds = self.costs.swap_seconds(self.trace, tensor, decisions)
            return None if seconds is None else self.exposed * seconds
        return self._repeat_cost(tensor, decisions, MAX_CHAIN)

    def _repeat_cost(
        self, tensor: int, decisions: Mapping[int, Decision], most_ops: int
    ) -> float | None:
        producer = self.trace.tensors[tensor].producer
        if producer < 0 or most_ops == 0 or self.trace.ops[producer].is_backward:
            return None
        op = self.trace.ops[producer]
        if not op.is_repeatable:
            return None
        seconds = self.costs.op_seconds[producer]
        for parent in op.inputs:
            is_gone = self.trace.tensors[parent].is_inner or parent in self.trace.parted
            if is_gone or decisions.get(parent) == "recompute":
                cost = self._repeat_cost(parent, decisions, most_ops - 1)
                if cost is None:
                    return None
                seconds += cost
        return seconds
