"""Which rows of its inputs an operation needs for some rows of its output. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Which rows of a tensor belong to a slab: rows along its first spatial axis.

    A slab is a range of rows of the op that runs in slabs, its own rows. An element of them reaches
    `size` rows of the tensor from row `stride * own - before` on; where `transposed`, a row of the
    tensor is reached by as many own rows instead.

    Args:
        extent: Rows that the tensor has.
        row_bytes: Of one of them.
        stride: See above.
        before: See above.
        size: See above.
        transposed: See above.
        copies: How many copies of a slab lie on the device while the op runs.
        more_rows: Rows that the copies have beside those of the slab.
    """

    extent: int
    row_bytes: int
    stride: int = 1
    before: int = 0
    size: int = 1
    transposed: bool = False
    copies: int = 1
    more_rows: int = 0

    @property
    def is_same(self) -> bool:
        """Whether the tensor's rows are the op's own."""
        return (self.stride, self.before, self.size) == (1, 0, 1)

    def wanted(self, begin: int, end: int) -> tuple[int, int]:
        """Return the rows of a slab, also those outside of the tensor, where it is padded."""
        if self.transposed:
            first = -((self.size - 1 - self.before - begin) // self.stride)
            return first, (end - 1 + self.before) // self.stride + 1
        first = begin * self.stride - self.before
        return first, (end - begin - 1) * self.stride + first + self.size

    def rows(self, begin: int, end: int) -> tuple[int, int]:
        """Return the rows of a slab that the tensor has."""
        first, last = self.wanted(begin, end)
        return max(0, first), min(self.extent, last)


@dataclass(frozen=True, kw_only=True)
class Slabs:
    """How an op can run in slabs, one after the other.

    Args:
        rows: Own rows, which the slabs divide.
        unit: A slab but the last has a multiple of so many.
        inputs: What a slab takes of each input; None for one that it takes whole.
        outputs: What a slab gives of each output; None for one that is the sum over the slabs.
    """

    rows: int
    unit: int
    inputs: tuple[Reach | None, ...]
    outputs: tuple[Reach | None, ...]
