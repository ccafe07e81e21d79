"""Numbers in a row, in host memory or on disk: where a variable is that the device does not hold.

Imports no TensorFlow.
"""

from collections.abc import Sequence
from math import prod
from typing import Protocol, final

import numpy as np

from tfunet.config.amount import MIB
from tfunet.files.atomic import WriteError
from tfunet.swap.storage.disk import DiskFile, aligned
from tfunet.swap.storage.limits import Limits

NO_LIMITS = Limits()
ALIGNMENT = 64  # Bytes; TensorFlow reads an array at such an address in place.


class Row(Protocol):
    """Numbers of one type. Begins of parts are multiples of 4096 bytes."""

    size: int
    dtype: np.dtype

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the numbers from `first` to before `last`, not to be changed."""

    def write(self, first: int, numbers: np.ndarray) -> None:
        """Replace the numbers from `first` on."""


@final
class MemoryRow:
    """A row in host memory, outside of TensorFlow's allocator."""

    def __init__(self, size: int, dtype: np.dtype) -> None:
        self.size, self.dtype = size, dtype
        self._numbers = aligned(size * dtype.itemsize, ALIGNMENT).view(dtype)

    def read(self, first: int, last: int) -> np.ndarray:
        return self._numbers[first:last]

    def write(self, first: int, numbers: np.ndarray) -> None:
        into = self._numbers[first : first + numbers.size]
        # TensorFlow may have changed them in place.
        if into.ctypes.data != numbers.ctypes.data:
            np.copyto(into, numbers)


@final
class DiskRow:
    """A row in a file."""

    def __init__(self, file: DiskFile, key: str, size: int, dtype: np.dtype) -> None:
        self.size, self.dtype = size, dtype
        self._file, self._key = file, key
        file.reserve({key: size * dtype.itemsize})

    def read(self, first: int, last: int) -> np.ndarray:
        width = self.dtype.itemsize
        numbers = self._file.read(self._key, (last - first) * width, first=first * width)
        return numbers.view(self.dtype)

    def write(self, first: int, numbers: np.ndarray) -> None:
        self._file.write(self._key, numbers, first=first * self.dtype.itemsize)


@final
class Rows:
    """Makes rows: in host memory as long as there is room, then on disk.

    Attributes:
        host_used, disk_used: Bytes of the rows that were made.
    """

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self._limits = limits
        self._file: DiskFile | None = None
        self.host_used = self.disk_used = 0

    def make(self, shape: Sequence[int], dtype: str) -> Row:
        """Return a row for a tensor; WriteError where there is no room for it."""
        size, kind = prod(shape), np.dtype(dtype)
        num_bytes = size * kind.itemsize
        limits = self._limits
        if limits.host_bytes is None or self.host_used + num_bytes <= limits.host_bytes:
            self.host_used += num_bytes
            return MemoryRow(size, kind)
        has_room = limits.disk_bytes is None or self.disk_used + num_bytes <= limits.disk_bytes
        if limits.folder is None or not has_room:
            raise WriteError(
                f"{num_bytes / MIB:,.3g} MiB of weights or states of the optimizer have no room "
                f"beside {self.host_used / MIB:,.3g} MiB in host memory and "
                f"{self.disk_used / MIB:,.3g} MiB on disk. Raise host (swap_host), or give disk "
                "(swap_disk), or more of it with disk_size (swap_disk_size)."
            )
        if self._file is None:
            self._file = DiskFile(limits.folder)
        row = DiskRow(self._file, f"row {self.disk_used}", size, kind)
        self.disk_used += num_bytes
        return row

    def explained(self) -> WriteError | None:
        """Return the error of the disk in the middle of a step; None where there was none."""
        return None if self._file is None else self._file.explained()
