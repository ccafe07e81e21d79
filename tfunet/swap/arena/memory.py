"""The memory of a device as a step finds it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of a device as a step finds it.

    Args:
        first_bytes: See `tfunet.swap.arena.arena.at_start`.
        resident: Bytes of each variable.
        more_bytes: Bytes of all else in memory, such as the batch.
        pieces: Bytes of each free piece, the largest last (`arena.pieces`); empty where they are
            not known.
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
