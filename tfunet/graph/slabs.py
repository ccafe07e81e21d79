"""Slabs: ranges of rows, along the first spatial axis, in which an op can run one after another."""

from dataclasses import dataclass

from tfunet.geometry.reach import Reach


@dataclass(frozen=True, kw_only=True)
class SlabRows:
    """The rows of a tensor that belong to a slab.

    Args:
        reach: From the rows of the slab to those of the tensor.
        copies: How many copies of the slab's rows are on the device while the op runs.
    """

    reach: Reach
    extent: int
    row_bytes: int
    copies: int = 1
    more_rows: int = 0

    def rows(self, begin: int, end: int) -> tuple[int, int]:
        """Return the rows [first, last) of the tensor that the slab [begin, end) has."""
        return self.reach.inside(begin, end, self.extent)

    def num_bytes(self, height: int) -> int:
        """Return the bytes of the rows of a slab that is so high, with padding."""
        first, last = self.reach.needed(0, height)
        return self.row_bytes * min(last - first, self.extent)


@dataclass(frozen=True, kw_only=True)
class Slabs:
    """How an op can run in slabs.

    Args:
        inputs: The rows of each input that a slab reads; None if it reads all of the input.
        outputs: The rows of each output that a slab makes; None if the output is the sum over the
            slabs.
        unit: The height of each slab but the last is a multiple of it.
    """

    rows: int
    inputs: tuple[SlabRows | None, ...]
    outputs: tuple[SlabRows | None, ...]
    unit: int = 1
