"""What decides what happens to each tensor of a traced step. Pure."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from tfunet.graph.step import Trace
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Decision, Plan
from tfunet.swap.plan.schedule import Action, memory, schedule
from tfunet.swap.plan.timeline import Moves, Timeline, moved, overlap, timeline


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A step, and what it has to fit.

    Args:
        costs: What ops and copies cost, and the room for swapped tensors, which is never passed.
        budget_bytes: For what the step itself holds: not variables, not the batch.
        threshold_bytes: Smaller tensors are kept.
        scratch: See `tfunet.swap.plan.schedule.memory`.
    """

    trace: Trace
    costs: Costs
    budget_bytes: int
    threshold_bytes: int
    scratch: Mapping[int, int] = field(default_factory=dict)

    def memory(self, actions: Sequence[Action]) -> np.ndarray:
        """Return the bytes in use while each action runs."""
        return memory(self.trace, actions, self.scratch)

    def weigh(self, decisions: Mapping[int, Decision]) -> "Outcome":
        """Return what decisions come to, with the copies moved as far as the budget allows."""
        actions = schedule(self.trace, decisions)
        return self._moved(decisions, actions, self.memory(actions))

    def better(self, decisions: Mapping[int, Decision], best: "Outcome") -> "Outcome | None":
        """Return what decisions come to, as `weigh`, if it is better than `best`."""
        excess, seconds = self.badness(best)
        actions = schedule(self.trace, decisions)
        # Waiting for copies only adds to the time of the ops, and moving them to the memory.
        taken = (self.costs.op_seconds[one.index] for one in actions if one.kind in ("op", "again"))
        if not excess and sum(taken) >= seconds:
            return None
        in_use = self.memory(actions)
        if int(in_use.max(initial=0)) - self.budget_bytes > excess:
            return None
        outcome = self._moved(decisions, actions, in_use)
        return outcome if self.badness(outcome) < (excess, seconds) else None

    def _moved(
        self, decisions: Mapping[int, Decision], actions: Sequence[Action], in_use: np.ndarray
    ) -> "Outcome":
        costs = self.costs.placed(self.trace, decisions)
        moves = overlap(self.trace, actions, costs, budget_bytes=self.budget_bytes, in_use=in_use)
        return self.outcome(decisions, moves, moved(actions, moves))

    def outcome(
        self, decisions: Mapping[int, Decision], moves: Moves, actions: Sequence[Action]
    ) -> "Outcome":
        """Return what these actions come to, which follow from the decisions and moves."""
        costs = self.costs.placed(self.trace, decisions)
        return Outcome(
            decisions=decisions,
            moves=moves,
            actions=actions,
            in_use=self.memory(actions),
            times=timeline(self.trace, actions, costs),
            on_disk=costs.on_disk,
        )

    def badness(self, outcome: "Outcome") -> tuple[int, float]:
        """Return what to make small: bytes over the budget first, then time."""
        return max(0, outcome.peak_bytes - self.budget_bytes), outcome.times.step_seconds


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Decisions for tensors, by index (what is not named is kept), and what they come to.

    Args:
        in_use: Bytes in use while each action runs.
        on_disk: Swapped tensors for which host memory has no room.
    """

    decisions: Mapping[int, Decision]
    moves: Moves
    actions: Sequence[Action]
    in_use: np.ndarray
    times: Timeline
    on_disk: frozenset[int] = frozenset()

    @property
    def peak_bytes(self) -> int:
        """Most memory in use at once."""
        return int(self.in_use.max(initial=0))


class Strategy(Protocol):
    """Makes the plans of a training; `plan` is all that a strategy has to write itself."""

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """Return a plan; compare its `peak_bytes` with `budget_bytes` to see whether it fits."""

    def advised(self, problem: Problem) -> Plan:
        """Return the plan; where limits on host memory and disk keep it from its budget, with the
        host memory that would help."""
        plan = self.plan(problem)
        tiers = problem.costs.tiers
        if tiers.host_bytes is None or plan.peak_bytes <= plan.budget_bytes:
            return plan
        costs = replace(problem.costs, tiers=replace(tiers, host_bytes=None))
        wanted = self.plan(replace(problem, costs=costs))
        if wanted.peak_bytes >= plan.peak_bytes:
            return plan
        return replace(
            plan, wanted_host_bytes=wanted.host_bytes, wanted_peak_bytes=wanted.peak_bytes
        )
