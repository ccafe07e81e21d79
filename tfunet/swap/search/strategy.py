"""What decides what happens to each tensor of a traced step. Pure."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from tfunet.graph.step import Trace
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Plan, Way


class Strategy(Protocol):
    """Makes the plans of a training; `plan` is all that a strategy has to write itself.

    Attributes:
        needs_costs: Whether ops and copies are timed for every step. Otherwise they are timed only
            for a step that may not fit.
        takes_detours: Whether tensors of its plans may leave the device for a while more, where
            TensorFlow's allocator finds no room otherwise (`tfunet.swap.arena.detours`).
    """

    needs_costs: ClassVar[bool] = False
    takes_detours: ClassVar[bool] = True

    @abstractmethod
    def plan(
        self,
        trace: Trace,
        *,
        budget_bytes: int,
        costs: Costs,
        threshold_bytes: int,
        scratch: Mapping[int, int] | None = None,
    ) -> Plan:
        """Return a plan; compare its `peak_bytes` with `budget_bytes` to see whether it fits.

        Args:
            budget_bytes: For what the step itself holds: not variables, not the batch.
            costs: Of its ops and copies, with the room for swapped tensors, which is never passed.
            scratch: See `tfunet.swap.plan.schedule.memory`.
        """

    def for_forward_pass(self) -> "Strategy":
        """Return the strategy for evaluations and predictions, which have no backward pass."""
        return self

    def check(self, *, plan: Plan | None, allowed: Sequence[Way], compression: str | None) -> None:
        """Raise ValueError if an option of LargeModelSupport cannot be combined with this."""
        return
