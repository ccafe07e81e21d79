"""Which tensors of a step may be given up, and what that costs and frees. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfunet.graph.step import ALIASES, Trace, root
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.schedule import Action

# A repeated op may need repeated inputs, and so on; a longer chain costs more than a copy.
MAX_CHAIN = 12
# Far from the budget several tensors are given up at once, of this share of what is too much.
SHARE_AT_ONCE = 0.05


def may_go(trace: Trace, tensor: int, threshold_bytes: int) -> bool:
    """Whether a tensor of the forward pass may be given up if the backward pass reads it."""
    one = trace.tensors[tensor]
    # A tensor of unknown shape, whose bytes are 0, is kept under any threshold.
    if one.producer < 0 or one.num_bytes < max(1, threshold_bytes):
        return False
    op = trace.ops[one.producer]
    return not op.is_backward and op.kind not in ALIASES and not one.is_inner


class Search:
    """Candidates of one trace, and what giving each of them up costs."""

    def __init__(
        self,
        trace: Trace,
        costs: Costs,
        allowed: Sequence[Decision],
        threshold_bytes: int,
        exposed: float = 1.0,
    ) -> None:
        self.trace = trace
        self.costs = costs
        self.allowed = allowed
        self.threshold_bytes = threshold_bytes
        self.exposed = exposed  # share of a copy's time that counts
        self.roots = [root(trace, tensor) for tensor in range(len(trace.tensors))]

    def first_of(
        self,
        choices: Sequence[tuple[int, Decision]],
        decisions: Mapping[int, Decision],
        excess_bytes: int,
    ) -> dict[int, Decision]:
        """Return the first choices that come to a share of the excess and cost what they would
        one by one."""
        found: dict[int, Decision] = {}
        num_bytes = 0
        for tensor, decision in choices:
            if tensor in found:
                continue
            apart = self.cost(tensor, decision, decisions)
            if self.cost(tensor, decision, {**decisions, **found}) != apart:
                continue
            num_bytes += self.trace.tensors[tensor].num_bytes
            if num_bytes > SHARE_AT_ONCE * excess_bytes:
                break
            found[tensor] = decision
        return found

    def room(
        self,
        actions: Sequence[Action],
        in_use: np.ndarray,
        limit_bytes: int,
        decisions: Mapping[int, Decision],
    ) -> dict[int, int]:
        """Return the most that each tensor could have taken while it was away.

        At the ops of the step only: copies and repetitions change with what is kept.
        """
        gone: dict[int, int] = {}
        back: dict[int, int] = {}
        for position, action in enumerate(actions):
            for copy, restored in (*action.inputs, *action.outputs):
                tensor = self.roots[copy]
                if restored:
                    back.setdefault(tensor, position)
                else:
                    gone[tensor] = position
        at_ops = np.where([action.kind == "op" for action in actions], in_use, 0)
        return {
            one: limit_bytes - int(at_ops[gone[one] + 1 : back.get(one)].max(initial=0))
            for one in decisions
        }

    def best_first(
        self,
        actions: Sequence[Action],
        in_use: np.ndarray,
        budget_bytes: int,
        decisions: Mapping[int, Decision],
    ) -> list[tuple[int, Decision]]:
        """Return (tensor, decision), those that free most bytes for a second first."""
        over = np.concatenate([[0], np.cumsum(in_use > budget_bytes)])
        choices: list[tuple[float, int, Decision]] = []
        for tensor, (first, last) in self.idle(actions, decisions).items():
            # How many of the points over the budget it would no longer weigh on.
            relieved = over[last] - over[first + 1]
            if relieved <= 0:
                continue
            gain = self.trace.tensors[tensor].num_bytes * relieved
            for decision in self.allowed:
                cost = self.cost(tensor, decision, decisions)
                if cost is not None:
                    choices.append((cost / gain, tensor, decision))
        return [(tensor, decision) for _, tensor, decision in sorted(choices)]

    def idle(
        self, actions: Sequence[Action], decisions: Mapping[int, Decision]
    ) -> dict[int, tuple[int, int]]:
        """Return when each candidate is last read before, and first read in, the backward pass."""
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

    def cost(
        self, tensor: int, decision: Decision, decisions: Mapping[int, Decision]
    ) -> float | None:
        """Return the seconds that giving a tensor up costs a step; None where it cannot be."""
        if decision == "swap":
            seconds = self.costs.swap_seconds(self.trace, tensor, decisions)
            return None if seconds is None else self.exposed * seconds
        return self._repeat_cost(tensor, decisions, MAX_CHAIN)

    def _repeat_cost(self, tensor, decisions, depth):
        producer = self.trace.tensors[tensor].producer
        if producer < 0 or depth == 0 or self.trace.ops[producer].is_backward:
            return None
        op = self.trace.ops[producer]
        if not op.is_repeatable:
            return None
        total = self.costs.op_seconds[producer]
        for one in op.inputs:
            gone = self.trace.tensors[one].is_inner or one in self.trace.parted
            if gone or decisions.get(one) == "recompute":
                cost = self._repeat_cost(one, decisions, depth - 1)
                if cost is None:
                    return None
                total += cost
        return total
