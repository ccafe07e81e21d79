"""The cases in which the allocator is played: what a step may find in memory. Pure.

Memory may be in use that nobody knows of, such as what timing the ops left behind, or the next
batch, and the place of each tensor depends on it. A plan has room only if it has room in each case.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from tfunet.swap.arena.arena import Arena, Memory, at_start, in_pieces

# How much may be unknown: at most this share of the budget, and as much as is known to be there
# once more (the next batch, say), up to the second share.
UNKNOWN, MOST_AGAIN = 0.05, 0.1
BEGINS = (0.0, 0.01, 0.02, 0.035, 0.05, 0.07)
# Scalars may lie at the edge of what is free.
CUT_BYTES = 2**10


@final
@dataclass(frozen=True, kw_only=True)
class MemoryCases:
    """Every one of `begins` with every one of `unknown`, and every one of `taken`; each with every
    one of `cuts`.

    Args:
        begins: How far in the unknown memory begins, as shares of the budget.
        unknown: How much of it is in use; below 0, the share of the known memory that is gone.
        taken: Where the free pieces are known: what is in use of the largest, as shares of the
            budget.
        cuts: Bytes that something small has taken of each free block.
    """

    begins: tuple[float, ...] = ()
    unknown: tuple[float, ...] = ()
    taken: tuple[float, ...] = ()
    cuts: tuple[int, ...] = (0, CUT_BYTES)

    def arenas(self, memory: Memory) -> Iterator[Callable[[], Arena]]:
        """Yield a maker of an arena for each case."""
        again = min(memory.more_bytes, int(MOST_AGAIN * memory.limit_bytes))
        most = again + int(UNKNOWN * memory.limit_bytes)
        for cut_bytes in self.cuts:
            for begin in self.begins:
                for share in self.unknown:
                    changed = int(share * (most if share > 0 else memory.more_bytes))
                    begun = replace(memory, more_bytes=memory.more_bytes + changed)
                    hole_bytes = int(begin * memory.limit_bytes)
                    yield partial(at_start, begun, hole_bytes=hole_bytes, cut_bytes=cut_bytes)
        for taken in self.taken if memory.pieces else ():
            *small, largest = memory.pieces
            left = max(0, largest - int(taken * memory.limit_bytes))
            for cut_bytes in self.cuts:
                yield partial(in_pieces, [*small, left], cut_bytes=cut_bytes)


# With all that the device ever held, and with what is free now.
FROM_START = MemoryCases(begins=BEGINS, unknown=(1.0, 0.0), cuts=(0,))
IN_PIECES = MemoryCases(taken=(0.0, 0.0005, 0.002, 0.005, 0.01))
# The search for detours tries more, also with less memory in use than is known.
SEARCHED = MemoryCases(
    begins=BEGINS, unknown=(1.0, 0.75, 0.5, 0.25, 0.0, -0.15, -0.3, -0.45, -0.6, -0.75)
)
