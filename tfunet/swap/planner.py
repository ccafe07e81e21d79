"""Chooses, for each tensor that the backward pass needs, to keep, swap or recompute it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfunet.swap.plan import Decision, Plan
from tfunet.swap.schedule import Action, memory, schedule
from tfunet.swap.steps import ALIASES, Op, Trace, root

# A repeated op may need repeated inputs, and so on; a longer chain costs more than a copy.
MAX_CHAIN = 12


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """How fast the device computes and moves tensors.

    Args:
        flops_per_second: Of convolutions.
        bytes_per_second: Read and written by ops that are not convolutions.
        out_bytes_per_second: From device to host.
        in_bytes_per_second: From host to device.
        hidden_share: Share of a copy that runs beside computation and costs no time.
        op_seconds: What any op costs beside its data.
    """

    flops_per_second: float
    bytes_per_second: float
    out_bytes_per_second: float
    in_bytes_per_second: float
    hidden_share: float = 0.0
    op_seconds: float = 2e-5


def make_plan(
    trace: Trace,
    *,
    budget_bytes: int,
    speeds: Speeds,
    threshold_bytes: int,
    scratch: Mapping[int, int] | None = None,
    allowed: Iterable[Decision] = ("swap", "recompute"),
) -> Plan:
    """Return the cheapest plan found whose predicted peak is within the budget.

    Where no plan is, the one with the lowest peak; compare `peak_bytes` with `budget_bytes`.

    It gives up one tensor after another, each time the one that frees the most bytes for a second
    of copies and repeated ops at the points where the budget is exceeded, until it is exceeded
    nowhere; then it keeps again whatever turns out to fit.

    Args:
        trace: The step.
        budget_bytes: For what the step itself holds: not variables, not the batch.
        speeds: Of the device.
        threshold_bytes: Smaller tensors are kept.
        scratch: See `tfunet.swap.schedule.memory`.
        allowed: What may be done beside keeping.
    """
    search = Search(trace, speeds, tuple(allowed), threshold_bytes)
    decisions: dict[int, Decision] = {}
    actions = schedule(trace, decisions)
    in_use = memory(trace, actions, scratch)
    unlimited = int(in_use.max(initial=0))
    order: list[int] = []
    refused: set[tuple[int, Decision]] = set()
    while (excess := _excess(actions, in_use, budget_bytes)) > 0:
        found = None
        for tensor, decision in search.best_first(actions, in_use, budget_bytes, decisions):
            if (tensor, decision) in refused:
                continue
            trial = {**decisions, tensor: decision}
            trial_actions = schedule(trace, trial)
            trial_use = memory(trace, trial_actions, scratch)
            if _excess(trial_actions, trial_use, budget_bytes) < excess:
                found = trial, trial_actions, trial_use
                order.append(tensor)
                break
            refused.add((tensor, decision))
        if found is None:
            break
        decisions, actions, in_use = found
    for tensor in order:
        trial = {one: what for one, what in decisions.items() if one != tensor}
        trial_actions = schedule(trace, trial)
        trial_use = memory(trace, trial_actions, scratch)
        if trial_use.max(initial=0) <= max(budget_bytes, int(in_use.max(initial=0))):
            decisions, actions, in_use = trial, trial_actions, trial_use
    floor, floor_op = largest_op(trace, scratch or {})
    return Plan(
        decisions={trace.tensors[one].name: what for one, what in sorted(decisions.items())},
        budget_bytes=budget_bytes,
        peak_bytes=int(in_use.max(initial=0)),
        unlimited_peak_bytes=unlimited,
        floor_bytes=floor,
        floor_op=floor_op,
        host_bytes=sum(
            trace.tensors[one].num_bytes for one, what in decisions.items() if what == "swap"
        ),
        extra_seconds=extra_seconds(trace, actions, speeds),
    )


def largest_op(trace: Trace, scratch: Mapping[int, int]) -> tuple[int, str]:
    """Return the bytes that a single op reads and writes at once, at most, and that op's name."""
    sizes = {
        op.name: sum(trace.tensors[one].num_bytes for one in {*op.inputs, *_own_outputs(op)})
        + scratch.get(index, 0)
        for index, op in enumerate(trace.ops)
    }
    name = max(sizes, key=lambda one: sizes[one], default="")
    return sizes.get(name, 0), name


def extra_seconds(trace: Trace, actions: Iterable[Action], speeds: Speeds) -> float:
    """Return what the copies and repeated ops of a step cost."""
    total = 0.0
    for action in actions:
        if action.kind == "again":
            total += op_seconds(trace, trace.ops[action.index], speeds)
        elif action.kind != "op":
            total += _copy_seconds(trace, action.index, speeds, action.kind)
    return total


def op_seconds(trace: Trace, op: Op, speeds: Speeds) -> float:
    """Return an estimate of the time of one op."""
    if op.kind in ALIASES:
        return 0.0
    if op.flops:
        return op.flops / speeds.flops_per_second + speeds.op_seconds
    moved = sum(trace.tensors[one].num_bytes for one in (*op.inputs, *op.outputs))
    return moved / speeds.bytes_per_second + speeds.op_seconds


def _own_outputs(op: Op) -> tuple[int, ...]:
    return () if op.kind in ALIASES else op.outputs


def _copy_seconds(trace: Trace, tensor: int, speeds: Speeds, kind: str) -> float:
    rate = speeds.out_bytes_per_second if kind == "out" else speeds.in_bytes_per_second
    exposed = 1 - speeds.hidden_share
    return exposed * trace.tensors[tensor].num_bytes / rate + speeds.op_seconds


def _excess(actions: Sequence[Action], in_use: np.ndarray, budget_bytes: int) -> int:
    """Return by how much the budget is exceeded, summed over the ops of the step, and at most.

    Over the ops only: copies and repetitions are points of their own, and more of them would
    look like more excess.
    """
    over = np.maximum(in_use - budget_bytes, 0)
    ops = np.array([action.kind == "op" for action in actions])
    return int(over[ops].sum() + over.max(initial=0))


class Search:
    """Candidates of one trace, and what giving each of them up costs."""

    def __init__(
        self,
        trace: Trace,
        speeds: Speeds,
        allowed: Sequence[Decision],
        threshold_bytes: int,
    ) -> None:
        self.trace = trace
        self.speeds = speeds
        self.allowed = allowed
        self.threshold_bytes = threshold_bytes

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
                tensor = root(self.trace, copy)
                if in_backward:
                    first_backward.setdefault(tensor, position)
                else:
                    last_forward[tensor] = position
        return {
            tensor: (last_forward[tensor], first)
            for tensor, first in first_backward.items()
            if tensor in last_forward and tensor not in decisions and self._may_go(tensor)
        }

    def _may_go(self, tensor):
        one = self.trace.tensors[tensor]
        if one.producer < 0 or one.num_bytes < self.threshold_bytes:
            return False
        op = self.trace.ops[one.producer]
        return not op.is_backward and op.kind not in ALIASES and not one.is_inner

    def cost(
        self, tensor: int, decision: Decision, decisions: Mapping[int, Decision]
    ) -> float | None:
        """Return the seconds that giving a tensor up costs a step; None where it cannot be."""
        if decision == "swap":
            return sum(
                _copy_seconds(self.trace, tensor, self.speeds, kind) for kind in ("out", "in")
            )
        return self._repeat_cost(tensor, decisions, MAX_CHAIN)

    def _repeat_cost(self, tensor, decisions, depth):
        producer = self.trace.tensors[tensor].producer
        if producer < 0 or depth == 0 or self.trace.ops[producer].is_backward:
            return None
        op = self.trace.ops[producer]
        if not op.is_repeatable:
            return None
        total = op_seconds(self.trace, op, self.speeds)
        for one in op.inputs:
            if decisions.get(one) == "recompute" or self.trace.tensors[one].is_inner:
                cost = self._repeat_cost(one, decisions, depth - 1)
                if cost is None:
                    return None
                total += cost
        return total
