"""TensorFlow's allocator played through: whether a step finds its memory in one piece. Pure.

It hands out memory best fit first, joins what is free beside each other (BFC), and gives a whole
free block where less than twice of what was asked for is in it. Written from the description and
the behaviour of tensorflow/core/framework/bfc_allocator.h.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

from tfunet.graph.step import Trace
from tfunet.swap.plan.schedule import Action, allocations, of_compressed

ALIGNMENT = 256
FIRST_REGION_BYTES = 2**21
# What is smaller finds a place though something has been cut of a free block.
SMALL_BYTES = 2**16
# The address of no bytes.
NOWHERE = -1
# So many steps are played through, one after the other.
STEPS = 2
# A free block is split if so much of it would be lost, or as much again as was asked for.
MOST_LOST_BYTES = 2**27


@final
class Arena:
    """An allocator with a limit, which takes memory of the device in regions that never end.

    Args:
        limit_bytes: Of all regions.
        cut_bytes: What something small, of which nobody asks here, has taken of each free block.
    """

    def __init__(self, limit_bytes: int, *, cut_bytes: int = 0) -> None:
        self._cut = cut_bytes
        self._limit = self._left = limit_bytes // ALIGNMENT * ALIGNMENT
        self._next_region = min(FIRST_REGION_BYTES, self._left)
        self._end = 0
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._sizes: dict[int, int] = {}  # of what is free, by address
        self._ends: dict[int, int] = {}  # of what is free: its address by its end
        self._used: dict[int, int] = {}  # bytes by address
        self.used_bytes = 0
        self.peak_bytes = 0

    def allocate(self, num_bytes: int, *, within_regions: bool = False) -> int | None:
        """Return the address of so many bytes; None where they are not there in one piece.

        Args:
            num_bytes: What is asked for.
            within_regions: Whether no new region may be taken for it.
        """
        if not num_bytes:
            return NOWHERE
        wanted = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        least = wanted + (self._cut if wanted > SMALL_BYTES else 0)
        at = bisect_left(self._free, (least, -1))
        if at == len(self._free):
            if within_regions or not self._extend(wanted):
                return None
            at = bisect_left(self._free, (least, -1))
            if at == len(self._free):
                return None
        size, address = self._free[at]
        self._take(size, address)
        if size >= 2 * wanted or size - wanted >= MOST_LOST_BYTES:
            self._give(size - wanted, address + wanted)
            size = wanted
        self._used[address] = size
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return address

    def free(self, address: int | None) -> None:
        """Take back what was allocated at an address."""
        if address is None or address == NOWHERE:
            return
        size = self._used.pop(address)
        self.used_bytes -= size
        after = self._sizes.get(address + size)
        if after is not None:
            self._take(after, address + size)
            size += after
        before = self._ends.get(address)
        if before is not None:
            length = self._sizes[before]
            self._take(length, before)
            address, size = before, size + length
        self._give(size, address)

    def extend(self, num_bytes: int, *, at_once: bool = False) -> None:
        """Take regions until there are so many bytes, or the limit.

        Args:
            num_bytes: Of all regions.
            at_once: Whether what is left is taken in one piece.
        """
        while self._limit - self._left < min(num_bytes, self._limit):
            self._extend(self._left if at_once else ALIGNMENT)

    def fill(self) -> None:
        """Take all that is free."""
        while self._free:
            size, address = self._free[-1]
            self._take(size, address)

    def _extend(self, wanted: int) -> bool:
        if wanted > self._left:
            return False
        grown = False
        while wanted > self._next_region:
            self._next_region *= 2
            grown = True
        size = min(self._next_region, self._left)
        self._left -= size
        # Regions are never joined: a gap lies between them.
        self._give(size, self._end)
        self._end += size + ALIGNMENT
        if not grown:
            self._next_region *= 2
        return True

    def _give(self, size: int, address: int) -> None:
        insort(self._free, (size, address))
        self._sizes[address] = size
        self._ends[address + size] = address

    def _take(self, size: int, address: int) -> None:
        del self._free[bisect_left(self._free, (size, address))]
        del self._sizes[address]
        del self._ends[address + size]


def at_start(
    limit_bytes: int,
    *,
    first_bytes: int,
    resident: Sequence[int],
    more_bytes: int,
    hole_bytes: int = 0,
    cut_bytes: int = 0,
) -> Arena:
    """Return the arena of a device before a step.

    Args:
        limit_bytes: What the allocator has.
        first_bytes: Of that, what it had taken in small regions before it took the rest in one.
        resident: Bytes of each variable.
        more_bytes: Of all else that is there.
        hole_bytes: Free between the one and the other.
        cut_bytes: See `Arena`.
    """
    arena = Arena(limit_bytes, cut_bytes=cut_bytes)
    later = []
    arena.extend(first_bytes)
    for num_bytes in resident:
        if arena.allocate(num_bytes, within_regions=True) is None:
            later.append(num_bytes)
    arena.extend(limit_bytes, at_once=True)
    if None in [arena.allocate(num_bytes) for num_bytes in later]:
        arena.fill()
    hole = arena.allocate(hole_bytes)
    if arena.allocate(more_bytes) is None:
        arena.fill()
    arena.free(hole)
    return arena


def in_pieces(pieces: Sequence[int], *, cut_bytes: int = 0) -> Arena:
    """Return the arena of a device of which just these pieces are free, none beside another."""
    arena = Arena(0, cut_bytes=cut_bytes)
    end = 0
    for num_bytes in pieces:
        size = num_bytes // ALIGNMENT * ALIGNMENT
        if size > 0:
            arena._give(size, end)
            end += size + ALIGNMENT
    return arena


class Request(NamedTuple):
    """What one action of a step asks of an allocator.

    Args:
        kept: Bytes of each buffer that it begins; they are numbered from 0 on over the step.
        passing: Of those that are free again when it ends.
        ended: Buffers that are free after it.
        action: Its place among the actions of the step.
    """

    kept: Sequence[int]
    passing: Sequence[int]
    ended: Sequence[int]
    action: int = 0


def requests(
    trace: Trace, actions: Sequence[Action], blocks: Mapping[int, Sequence[int]]
) -> list[Request]:
    """Return what a step asks of an allocator, in order, but for scalars, which find a place.

    Args:
        trace: The step, cut as it will run.
        actions: Of it.
        blocks: Bytes that an op needs while it runs and that no tensor shows, by its index.
    """
    both_forms = of_compressed(trace, actions).tolist()
    found = []
    numbers: dict[int, int] = {}  # of a buffer of the step: its own among those that are asked for
    count = 0
    for place, (action, (begun, ended), more) in enumerate(
        zip(actions, allocations(trace, actions), both_forms, strict=True)
    ):
        is_op = action.kind in ("op", "again")
        kept = []
        for buffer, one in enumerate(begun, count):
            if trace.tensors[one].num_bytes > ALIGNMENT:
                numbers[buffer] = len(numbers)
                kept.append(trace.tensors[one].num_bytes)
        count += len(begun)
        passing = [*(blocks.get(action.index, ()) if is_op else ()), more]
        passing = [one for one in passing if one > ALIGNMENT]
        gone = [numbers[buffer] for buffer in ended if buffer in numbers]
        if kept or passing or gone:
            found.append(Request(kept, passing, gone, place))
    return found


def plays(arena: Arena, step: Sequence[Request]) -> bool:
    """Whether steps find their memory in an arena, which is used up by it; see `failing`."""
    return failing(arena, step) is None


def failing(arena: Arena, step: Sequence[Request], *, least_bytes: int = 0) -> int | None:
    """Return the first action of a step for which an arena has no room; None where it has.

    Args:
        arena: From `at_start`; it is used up.
        step: From `requests`. Two of them follow each other.
        least_bytes: Where what is smaller has no room, it is taken to find some.
    """

    def taken(num_bytes: int) -> int | None:
        address = arena.allocate(num_bytes)
        return NOWHERE if address is None and num_bytes < least_bytes else address

    for _ in range(STEPS):
        buffers: list[int | None] = []
        for kept, passing, ended, action in step:
            begun = [taken(one) for one in kept]
            passed = [taken(one) for one in passing]
            if None in begun or None in passed:
                return action
            buffers += begun
            for address in (*passed, *(buffers[one] for one in ended)):
                arena.free(address)
    return None
