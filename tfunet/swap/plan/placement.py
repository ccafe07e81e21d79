"""Which swapped tensors lie in host memory and which on a disk. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tfunet.graph.step import Trace
from tfunet.swap.plan.plan import Decision


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """Room for the swapped tensors of one replica.

    Args:
        host_bytes: Limit on host memory; None for no limit.
        disk_bytes: Limit on the disk, which takes what does not fit in host memory; 0 without a
            disk, None for no limit.
    """

    host_bytes: int | None = None
    disk_bytes: int | None = 0
    disk_out_bytes_per_second: float = 1.0
    disk_in_bytes_per_second: float = 1.0

    def disk_seconds(self, num_bytes: int) -> float:
        """Return the time to write and read back so much, without the copies from the device."""
        return num_bytes * (1 / self.disk_out_bytes_per_second + 1 / self.disk_in_bytes_per_second)

    def on_disk(self, trace: Trace, swapped: Collection[int]) -> frozenset[int]:
        """Return which of the swapped tensors lie on the disk.

        These are the tensors that stay away longest: what the forward pass makes first, the
        backward pass wants last. One that fits in what is left of host memory stays there.
        """
        left = self.host_bytes
        if left is None:
            return frozenset()
        on_disk = []
        for tensor in sorted(swapped, key=lambda index: (-trace.tensors[index].producer, index)):
            num_bytes = trace.tensors[tensor].num_bytes
            if num_bytes <= left:
                left -= num_bytes
            else:
                on_disk.append(tensor)
        return frozenset(on_disk)

    def without(self, taken_bytes: int) -> "Tiers":
        """Return the room that is left where something else takes host memory."""
        if self.host_bytes is None:
            return self
        return replace(self, host_bytes=max(0, self.host_bytes - taken_bytes))

    def has_room(self, trace: Trace, on_disk: Collection[int]) -> bool:
        """Whether the disk has room for these tensors."""
        return self.disk_bytes is None or total_bytes(trace, on_disk) <= self.disk_bytes


def swapped_in(decisions: Mapping[int, Decision]) -> set[int]:
    """Return the tensors that are swapped, by index."""
    return {tensor for tensor, decision in decisions.items() if decision == "swap"}


def total_bytes(trace: Trace, tensors: Collection[int]) -> int:
    """Return the bytes of some tensors."""
    return sum(trace.tensors[tensor].num_bytes for tensor in tensors)
