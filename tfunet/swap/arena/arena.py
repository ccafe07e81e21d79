"""TensorFlow's allocator, simulated: whether a step finds its memory in one piece. Pure.

It hands out the smallest free block that is large enough, joins free blocks that lie side by side
(BFC: best fit with coalescing), and hands out a block whole if it has less than twice of what was
asked for. Written from the description and behaviour of
tensorflow/core/framework/bfc_allocator.h.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from tfunet.graph.step import Trace
from tfunet.swap.plan.schedule import Action, allocations

ALIGNMENT = 256
FIRST_REGION_BYTES = 2**21
# Smaller requests find a place even where something small was cut off a free block.
SMALL_BYTES = 2**16
# The address of an allocation of no bytes.
NOWHERE = -1
# More than any step takes: how much room a device has does not change what is asked of it.
NO_LIMIT_BYTES = 2**50
# How many steps are played through, one after the other.
STEPS = 2
# A free block is split if so much of it would be lost, or as much again as was asked for.
MOST_LOST_BYTES = 2**27


@final
class Arena:
    """An allocator with a limit, which takes memory of the device in regions that never end.

    Args:
        limit_bytes: Bytes of all regions together.
        cut_bytes: Bytes that something small, not simulated here, has taken of each free block.
    """

    def __init__(self, limit_bytes: int, *, cut_bytes: int = 0) -> None:
        self._cut = cut_bytes
        self._limit = self._left = limit_bytes // ALIGNMENT * ALIGNMENT
        self._next_region = min(FIRST_REGION_BYTES, self._left)
        self._end = 0
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._sizes: dict[int, int] = {}  # bytes of each free block, by its address
        self._starts: dict[int, int] = {}  # address of each free block, by its end
        self._used: dict[int, int] = {}  # bytes of each block in use, by its address
        self.used_bytes = 0

    def allocate(self, num_bytes: int, *, within_regions: bool = False) -> int | None:
        """Return the address of so many bytes, `within_regions` or not; None without room."""
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
            self.give(size - wanted, address + wanted)
            size = wanted
        self._used[address] = size
        self.used_bytes += size
        return address

    def free(self, address: int | None) -> None:
        """Take back what was allocated at an address."""
        if address is None or address == NOWHERE:
            return
        size = self._used.pop(address)
        self.used_bytes -= size
        size_after = self._sizes.get(address + size)
        if size_after is not None:
            self._take(size_after, address + size)
            size += size_after
        before = self._starts.get(address)
        if before is not None:
            size_before = self._sizes[before]
            self._take(size_before, before)
            address, size = before, size + size_before
        self.give(size, address)

    def extend(self, num_bytes: int, *, at_once: bool = False) -> None:
        """Take regions until they have `num_bytes` together, or the limit; `at_once` as one."""
        while self._limit - self._left < min(num_bytes, self._limit):
            self._extend(self._left if at_once else ALIGNMENT)

    def fill(self) -> None:
        """Take all that is free."""
        while self._free:
            size, address = self._free[-1]
            self._take(size, address)

    def give(self, size: int, address: int) -> None:
        """Add a free block, apart from all others."""
        insort(self._free, (size, address))
        self._sizes[address] = size
        self._starts[address + size] = address

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
        self.give(size, self._end)
        self._end += size + ALIGNMENT
        if not grown:
            self._next_region *= 2
        return True

    def _take(self, size: int, address: int) -> None:
        del self._free[bisect_left(self._free, (size, address))]
        del self._sizes[address]
        del self._starts[address + size]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of a device as a step finds it.

    Args:
        first_bytes: The part that it took in small regions, before it took the rest in one.
        more_bytes: Bytes of all else in memory, such as the batch.
        pieces: Bytes of each free piece, the largest last; empty where they are not known
            (`device_memory.free_pieces`).
    """

    limit_bytes: int
    first_bytes: int = 0
    resident: Sequence[int] = ()
    more_bytes: int = 0
    pieces: Sequence[int] = ()

    @property
    def step_bytes(self) -> int:
        """The bytes that are left for a step."""
        return max(0, self.limit_bytes - sum(self.resident) - self.more_bytes)


def at_start(memory: Memory, *, hole_bytes: int = 0, cut_bytes: int = 0) -> Arena:
    """Return the arena of a device before a step, with a hole between variables and all else."""
    arena = Arena(memory.limit_bytes, cut_bytes=cut_bytes)
    later = []
    arena.extend(memory.first_bytes)
    for num_bytes in memory.resident:
        if arena.allocate(num_bytes, within_regions=True) is None:
            later.append(num_bytes)
    arena.extend(memory.limit_bytes, at_once=True)
    if None in [arena.allocate(num_bytes) for num_bytes in later]:
        arena.fill()
    hole = arena.allocate(hole_bytes)
    if arena.allocate(memory.more_bytes) is None:
        arena.fill()
    arena.free(hole)
    return arena


def in_pieces(pieces: Sequence[int], *, cut_bytes: int = 0) -> Arena:
    """Return the arena of a device with just these free pieces, no two side by side."""
    arena = Arena(0, cut_bytes=cut_bytes)
    end = 0
    for num_bytes in pieces:
        size = num_bytes // ALIGNMENT * ALIGNMENT
        if size > 0:
            arena.give(size, end)
            end += size + ALIGNMENT
    return arena


class Request(NamedTuple):
    """What one action of a step asks of an allocator.

    Args:
        kept: Bytes of each buffer that it begins. Buffers are numbered from 0 on over the step.
        passing: Bytes of each block that is free again when it ends.
        ended: Numbers of the buffers that are free after it.
        action: Its place among the actions of the step.
    """

    kept: Sequence[int]
    passing: Sequence[int]
    ended: Sequence[int]
    action: int = 0


def requests(
    trace: Trace, actions: Sequence[Action], blocks: Mapping[int, Sequence[int]]
) -> list[Request]:
    """Return what a cut step asks of an allocator, in order, without scalars, which always fit.

    `blocks` are the bytes that an op needs while it runs and that no tensor shows, by its index.
    """
    asked = []
    numbers: dict[int, int] = {}  # buffer of `allocations` to its number among those asked for
    count = 0
    for place, (action, (begun, ended)) in enumerate(
        zip(actions, allocations(trace, actions), strict=True)
    ):
        is_op = action.kind in ("op", "again")
        kept = []
        for buffer, tensor in enumerate(begun, count):
            if trace.tensors[tensor].num_bytes > ALIGNMENT:
                numbers[buffer] = len(numbers)
                kept.append(trace.tensors[tensor].num_bytes)
        count += len(begun)
        passing = blocks.get(action.index, ()) if is_op else ()
        passing = [num_bytes for num_bytes in passing if num_bytes > ALIGNMENT]
        freed = [numbers[buffer] for buffer in ended if buffer in numbers]
        if kept or passing or freed:
            asked.append(Request(kept, passing, freed, place))
    return asked


def plays(arena: Arena, asked: Sequence[Request]) -> bool:
    """Whether steps find their memory in an arena, which is used up by it; see `failing`."""
    return failing(arena, asked) is None


def failing(arena: Arena, asked: Sequence[Request], *, least_bytes: int = 0) -> int | None:
    """Return the first action of a step for which an arena has no room; None where it has.

    `asked`, from `requests`, is played through twice, and `arena` is used up. Requests of less than
    `least_bytes` count as met even where there is no room.
    """

    def allocate(num_bytes: int) -> int | None:
        address = arena.allocate(num_bytes)
        return NOWHERE if address is None and num_bytes < least_bytes else address

    for _ in range(STEPS):
        buffers: list[int | None] = []
        for kept, passing, ended, action in asked:
            begun = [allocate(num_bytes) for num_bytes in kept]
            passed = [allocate(num_bytes) for num_bytes in passing]
            if None in begun or None in passed:
                return action
            buffers += begun
            for address in (*passed, *(buffers[number] for number in ended)):
                arena.free(address)
    return None


def most_bytes(arena: Arena, asked: Sequence[Request]) -> int:
    """Return the most bytes of blocks that a step has beside what was there before it.

    Blocks are larger than what is asked for. `asked`, from `requests`, is played through twice;
    what has no room counts as nothing.
    """
    before = most = arena.used_bytes
    for _ in range(STEPS):
        most, buffers = before, []
        for kept, passing, ended, _ in asked:
            begun = [arena.allocate(num_bytes) for num_bytes in kept]
            passed = [arena.allocate(num_bytes) for num_bytes in passing]
            most = max(most, arena.used_bytes)
            buffers += begun
            for address in (*passed, *(buffers[number] for number in ended)):
                arena.free(address)
    return most - before


def step_bytes(trace: Trace, actions: Sequence[Action], resident: Sequence[int]) -> int:
    """Return the most bytes of blocks that a step has beside variables of `resident` bytes each.

    Scratch that only a run shows, such as that of convolutions on a GPU, is left out.
    """
    columns = {
        at: [op.unrolled.num_bytes()] for at, op in enumerate(trace.ops) if op.unrolled is not None
    }
    arena = at_start(Memory(limit_bytes=NO_LIMIT_BYTES, resident=resident))
    return most_bytes(arena, requests(trace, actions, columns))
