"""How long the ops and copies of a step take. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from tfunet.graph.step import Trace
from tfunet.swap.plan.placement import Tiers, swapped_in, total_bytes
from tfunet.swap.plan.plan import Decision

COPY_START_SECONDS = 2e-5


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time of each op of a step, and the speed of the link between device and host.

    Args:
        op_seconds: Time of each op of the trace.
        copy_seconds: Time that a copy takes to start, whatever its size.
        slab_seconds: Measured time of ops in slabs, all slabs together, by the op's index.
        bytes_per_second: Speed at which an op reads and writes that only moves numbers.
        copies_overlap: Whether copies run beside computation, one in each direction.
        on_disk: Indices of the tensors that go on to the disk and back; see `placed`.
    """

    op_seconds: Sequence[float]
    out_bytes_per_second: float
    in_bytes_per_second: float
    copy_seconds: float = COPY_START_SECONDS
    slab_seconds: Mapping[int, float] = field(default_factory=dict)
    bytes_per_second: float = float("inf")
    copies_overlap: bool = False
    tiers: Tiers = field(default_factory=Tiers)
    on_disk: frozenset[int] = frozenset()

    def out_seconds(self, num_bytes: int, tensor: int = -1) -> float:
        """Return the time of a copy to the host, and on to the disk if the tensor lies there."""
        seconds = num_bytes / self.out_bytes_per_second + self.copy_seconds
        if tensor in self.on_disk:
            seconds += num_bytes / self.tiers.disk_out_bytes_per_second
        return seconds

    def in_seconds(self, num_bytes: int, tensor: int = -1) -> float:
        """Return the time of a copy to the device, from the disk if the tensor lies there."""
        seconds = num_bytes / self.in_bytes_per_second + self.copy_seconds
        if tensor in self.on_disk:
            seconds += num_bytes / self.tiers.disk_in_bytes_per_second
        return seconds

    def leaving_seconds(self, trace: Trace, tensor: int) -> float:
        """Return the time from when a swapped tensor was made to when its memory is free."""
        return self.out_seconds(trace.tensors[tensor].num_bytes, tensor)

    def arriving_seconds(self, trace: Trace, tensor: int) -> float:
        """Return the time from when a swapped tensor is fetched to when it can be read."""
        return self.in_seconds(trace.tensors[tensor].num_bytes, tensor)

    def placed(self, trace: Trace, decisions: Mapping[int, Decision]) -> "Costs":
        """Return the costs with the swapped tensors where the tiers have room for them."""
        return replace(self, on_disk=self.tiers.on_disk(trace, swapped_in(decisions)))

    def swap_seconds(
        self, trace: Trace, tensor: int, decisions: Mapping[int, Decision]
    ) -> float | None:
        """Return the time that swapping one more tensor costs; None where no tier has room.

        Where it pushes other tensors on to the disk, their time to the disk and back counts.
        """
        num_bytes = trace.tensors[tensor].num_bytes
        seconds = self.out_seconds(num_bytes) + self.in_seconds(num_bytes)
        if self.tiers.host_bytes is None:
            return seconds
        others = swapped_in(decisions) - {tensor}
        before = self.tiers.on_disk(trace, others)
        after = self.tiers.on_disk(trace, others | {tensor})
        if not self.tiers.has_room(trace, after):
            return None
        more = total_bytes(trace, after) - total_bytes(trace, before)
        return seconds + max(0.0, self.tiers.disk_seconds(more))

    def of(self, ops: Sequence[int]) -> "Costs":
        """Return the costs of some of the ops; each takes the time of the ones left out before it,
        too."""
        ends = [0.0, *accumulate(self.op_seconds)]
        bounds = [0, *(index + 1 for index in ops)]
        seconds = [ends[stop] - ends[start] for start, stop in pairwise(bounds)]
        return replace(self, op_seconds=seconds)
