"""Which rows of its input an operation needs for some rows of its output, along one axis."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

# One row, or many at once.
Row = TypeVar("Row", int, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class Reach:
    r"""The rows of an input that each row of an output needs, along one axis.

    Row `o` of the output needs `size` rows of the input, from row `stride * o - before` on. If
    `transposed`, the two change places: row `i` of the input goes into `size` rows of the output,
    from row `stride * i - before` on. Here are both with stride 2, before 1 and size 3:

        output      0     1     2         input         0     1     2
                  / | \ / | \ / | \                   / | \ / | \ / | \
        input   -1  0  1  2  3  4  5      output    -1  0  1  2  3  4  5

    Two reaches in a row: ask the first for the rows that the second needs.

        first.needed(*second.needed(begin, end))

    A reach knows no borders: rows outside of the input are padding (see `padding`).
    """

    stride: int = 1
    before: int = 0
    size: int = 1
    transposed: bool = False

    @property
    def is_same(self) -> bool:
        """Whether each row of the output needs the same row of the input, and no other."""
        return (self.stride, self.before, self.size) == (1, 0, 1)

    def needed(self, begin: Row, end: Row) -> tuple[Row, Row]:
        """Return the input rows [begin, end) that the output rows [begin, end) need."""
        if self.transposed:
            first = -((self.size - 1 - self.before - begin) // self.stride)
            return first, (end - 1 + self.before) // self.stride + 1
        return begin * self.stride - self.before, (end - 1) * self.stride - self.before + self.size

    def inside(self, begin: int, end: int, extent: int) -> tuple[int, int]:
        """Return those of the needed rows that an input of `extent` rows has."""
        first, last = self.needed(begin, end)
        return max(0, first), min(extent, last)

    def padding(self, begin: int, end: int, extent: int) -> tuple[int, int]:
        """Return how many of the needed rows lie before an input of `extent` rows, and after it."""
        first, last = self.needed(begin, end)
        return max(0, -first), max(0, last - extent)


def kernel_reach(
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    same_extent: int | None = None,
    transposed: bool = False,
) -> Reach:
    """Return the reach of a convolution or pooling; of a transposed convolution if `transposed`.

    `same_extent` are the rows that "same" padding is for: of the input, or the transposed output.
    """
    size = (kernel - 1) * dilation + 1
    before = 0
    if same_extent is not None:
        steps = -(-same_extent // stride)
        # TensorFlow pads an odd row after, not before.
        before = max((steps - 1) * stride + size - same_extent, 0) // 2
    return Reach(stride=stride, before=before, size=size, transposed=transposed)


def upsampling_reach(factor: int, *, linear: bool) -> Reach:
    """Return the reach of an up-sampling that repeats rows, or interpolates between them.

    The interpolation has half-pixel centres: row `o` of the output lies at
    `(o + 1/2) / factor - 1/2` of the input, and needs the rows to both sides of that.
    """
    if linear and factor > 1:
        before, size = factor // 2, 2 * factor - factor % 2
        return Reach(stride=factor, before=before, size=size, transposed=True)
    return Reach(stride=factor, size=factor, transposed=True)
