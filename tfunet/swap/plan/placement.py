"""What swapped tensors may take of host memory and of a disk, and which of them lie where. Pure."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tfunet.graph.step import Trace
from tfunet.swap.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """Room for the swapped tensors of one replica.

    Args:
        host_bytes: Of host memory; None for no limit.
        disk_bytes: Of the disk, for what host memory has no room for; 0 without a disk, None for
            no limit.
        disk_out_bytes_per_second: From host memory to the disk.
        disk_in_bytes_per_second: From the disk to host memory.
    """

    host_bytes: int | None = None
    disk_bytes: int | None = 0
    disk_out_bytes_per_second: float = 1.0
    disk_in_bytes_per_second: float = 1.0

    def disk_seconds(self, num_bytes: int) -> float:
        """Return what it takes to write and to read so much, beside the copies from the device."""
        return num_bytes * (1 / self.disk_out_bytes_per_second + 1 / self.disk_in_bytes_per_second)

    def on_disk(self, trace: Trace, swapped: Collection[int]) -> frozenset[int]:
        """Return which of the swapped tensors lie on the disk.

        Those that stay away longest: what the forward pass makes first, the backward pass wants
        last. Where one of them fits in what the others leave of host memory, it stays there.
        """
        left = self.host_bytes
        if left is None:
            return frozenset()
        found = []
        for tensor in sorted(swapped, key=lambda one: (-trace.tensors[one].producer, one)):
            num_bytes = trace.tensors[tensor].stored_bytes
            if num_bytes <= left:
                left -= num_bytes
            else:
                found.append(tensor)
        return frozenset(found)

    def without(self, taken_bytes: int) -> "Tiers":
        """Return what is left where something else takes host memory."""
        if self.host_bytes is None:
            return self
        return replace(self, host_bytes=max(0, self.host_bytes - taken_bytes))

    def has_room(self, trace: Trace, on_disk: Collection[int]) -> bool:
        """Whether the disk holds so many."""
        return self.disk_bytes is None or swapped_bytes(trace, on_disk) <= self.disk_bytes


def with_advice(planned: Callable[[Tiers], Plan], tiers: Tiers) -> Plan:
    """Return the plan for these; where they stand in its way, with what it would want of the host.

    Args:
        planned: Returns the plan for the room that it is given.
        tiers: What room there is.
    """
    plan = planned(tiers)
    if tiers.host_bytes is None or plan.peak_bytes <= plan.budget_bytes:
        return plan
    other = planned(replace(tiers, host_bytes=None))
    if other.peak_bytes >= plan.peak_bytes:
        return plan
    return replace(plan, wanted_host_bytes=other.host_bytes, wanted_peak_bytes=other.peak_bytes)


def total_bytes(trace: Trace, tensors: Collection[int]) -> int:
    """Return what tensors take together, as they are."""
    return sum(trace.tensors[one].num_bytes for one in tensors)


def swapped_bytes(trace: Trace, tensors: Collection[int]) -> int:
    """Return what tensors take together where they are swapped."""
    return sum(trace.tensors[one].stored_bytes for one in tensors)
