"""A file on disk for swapped tensors, which nothing leaves behind. Imports no TensorFlow."""

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

import numpy as np

from tfunet.record import WriteError

PREFIX = ".tfunet-swap-"
# Direct reads and writes go in whole blocks, at whole blocks, of memory at whole blocks.
BLOCK_BYTES = 4096
# Tensors pass to the disk through a buffer of this size.
CHUNK_BYTES = 2**23
# Enough to show the speed of a disk, and done in a second on a slow one.
SPEED_BYTES = 2**24
SPEED_REPEATS = 3
MIB = 2**20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Another process of the run may hold space for a moment, to measure the speed.
WAITED_SECONDS = 3.0
WAIT_SECONDS = 0.25
# What file systems answer that cannot open a file without a name.
NEEDS_NAME = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)

_speeds: dict[int, tuple[float, float]] = {}  # of each device of this machine


def check_folder(folder: str | Path) -> Path:
    """Return the folder; ValueError where it is none that swapped tensors can be written to."""
    path = Path(folder)
    if not path.is_dir():
        is_what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ValueError(
            f"The folder for swapped tensors, {str(folder)!r}, {is_what}. Create it, on a disk of "
            "this machine, or name another."
        )
    os.close(_open_unnamed(path))
    return path


@final
class DiskFile:
    """One file in a folder, unlinked as soon as it is open: the kernel frees it with the process,
    however that ends.

    Read and written past the page cache (O_DIRECT) where the file system takes it.

    Raises ValueError for a folder that cannot be used.

    Attributes:
        is_direct: Whether it is read and written past the page cache; known after `reserve`.
        error: The first error of reading or writing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = check_folder(folder)
        self.is_direct = False
        self.error: OSError | None = None
        self._places: dict[str, tuple[int, int]] = {}  # key: (offset, bytes that there is room for)
        self._end = 0
        self._chunk = _aligned(CHUNK_BYTES)
        self._chunk_is_free = threading.Lock()
        self._changed = threading.Condition()
        self._users = 0
        self._descriptor: int | None = _open_unnamed(self.folder)

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Make room for tensors, by key; what has enough keeps its place.

        Raises WriteError where the disk has not so much, and says how much is wanted and free.
        """
        until = time.monotonic() + WAITED_SECONDS
        while True:
            try:
                self._reserve(sizes)
            except WriteError:
                if time.monotonic() > until:
                    raise
                time.sleep(WAIT_SECONDS)
            else:
                return

    def _reserve(self, sizes: Mapping[str, int]) -> None:
        places, end = dict(self._places), self._end
        for key, num_bytes in sizes.items():
            if places.get(key, (0, -1))[1] < num_bytes:
                whole = _in_blocks(num_bytes)
                places[key] = end, whole
                end += whole
        if end > self._end:
            self._allocate(end)
        self._places, self._end = places, end

    def speed(self) -> tuple[float, float]:
        """Return the bytes per second that this disk writes and reads, measured once a process.

        Raises WriteError where there is no room for the few MiB that it takes.
        """
        device = os.stat(self.folder).st_dev
        if device not in _speeds:
            numbers = np.ones(self._room_for_speed(), np.uint8)
            seconds = []
            for _ in range(SPEED_REPEATS):
                since = time.perf_counter()
                self.write("speed", numbers)
                written = time.perf_counter()
                self.read("speed", numbers.size)
                seconds.append((written - since, time.perf_counter() - written))
            write, read = (sorted(one)[SPEED_REPEATS // 2] for one in zip(*seconds, strict=True))
            _speeds[device] = numbers.size / write, numbers.size / read
            self._release("speed")
        return _speeds[device]

    def _room_for_speed(self) -> int:
        """Reserve what a measurement takes, less on a disk that is almost full."""
        num_bytes = SPEED_BYTES
        while True:
            try:
                self._reserve({"speed": num_bytes})
            except WriteError:
                num_bytes //= 2
                if num_bytes < BLOCK_BYTES:
                    raise
            else:
                return num_bytes

    def write(self, key: str, numbers: np.ndarray) -> None:
        """Write the bytes of an array to its place."""
        offset, room = self._places[key]
        data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        with self._using() as descriptor, self._chunk_is_free:
            if data.size > room:
                raise OSError(errno.ENOSPC, "a tensor is larger than the step was planned for")
            for begin in range(0, data.size, CHUNK_BYTES):
                part = data[begin : begin + CHUNK_BYTES]
                self._chunk[: part.size] = part
                view = self._chunk[: _in_blocks(part.size)].data
                at = offset + begin
                while view:
                    done = os.pwrite(descriptor, view, at)
                    view, at = view[done:], at + done

    def read(self, key: str, num_bytes: int) -> np.ndarray:
        """Return the bytes that were written, (num_bytes,), in new memory at a whole page."""
        offset, _ = self._places[key]
        whole = _in_blocks(num_bytes)
        data = _aligned(whole)
        with self._using() as descriptor:
            done = 0
            while done < whole:
                part = os.preadv(descriptor, [data[done:whole].data], offset + done)
                if part == 0:
                    raise OSError(errno.EIO, "the file ends before the tensor does")
                done += part
        return data[:num_bytes]

    def close(self) -> None:
        """Free the disk; waits for reads and writes that have begun, and refuses others."""
        with self._changed:
            descriptor, self._descriptor = self._descriptor, None
            # A number that is free again may be that of another file when a late write comes.
            self._changed.wait_for(lambda: self._users == 0)
        if descriptor is not None:
            os.close(descriptor)

    def explained(self) -> WriteError | None:
        """Return what went wrong in the middle of training, in words; None where nothing did."""
        if self.error is None:
            return None
        advice = "Check the disk, or name another folder."
        if self.error.errno in NO_SPACE:
            advice = "Free space there, lift the limit on file sizes, or name another folder."
        return WriteError(
            f"Swapped tensors could not be written to {self.folder}, or read from it, in the "
            f"middle of a step: {self.error.strerror}. {advice}"
        )

    def _allocate(self, end: int) -> None:
        with self._using() as descriptor:
            # Where the C library allocates by writing a byte to each block, those are no blocks.
            _set_direct(descriptor, False)
            try:
                os.posix_fallocate(descriptor, 0, end)
            except OSError as error:
                os.ftruncate(descriptor, self._end)
                raise self._too_full(end, error) from error
            self.is_direct = self._goes_direct(descriptor)

    def _goes_direct(self, descriptor: int) -> bool:
        """Turn on direct reads and writes if they work here; tried on a block of the file's own."""
        block = _aligned(BLOCK_BYTES)
        try:
            _set_direct(descriptor, True)
            os.preadv(descriptor, [block.data], 0)
            os.pwrite(descriptor, block.data, 0)
        except OSError:
            _set_direct(descriptor, False)
            return False
        return True

    def _release(self, key: str) -> None:
        """Give back the space of what lies last."""
        offset, _ = self._places.pop(key)
        with self._using() as descriptor:
            os.ftruncate(descriptor, offset)
        self._end = offset

    def _too_full(self, end: int, error: OSError) -> WriteError:
        more = end - self._end
        state = os.statvfs(self.folder)
        free = state.f_bavail * state.f_frsize
        what = f"{more / MIB:,.0f} MiB for swapped tensors"
        if error.errno not in NO_SPACE:
            return WriteError(
                f"{what} could not be reserved in {self.folder}: {error.strerror}. Name another "
                "folder for swapped tensors."
            )
        limit = " (a limit on file sizes stands in the way)" if error.errno == errno.EFBIG else ""
        return WriteError(
            f"{what} do not fit in {self.folder}, where {free / MIB:,.0f} MiB are free{limit}, "
            "without what other processes of the run have reserved there. Free space there, name a "
            "folder on a larger disk, give more host memory, or limit what may go to the disk: "
            "the rest is computed again instead."
        )

    @contextlib.contextmanager
    def _using(self) -> Iterator[int]:
        with self._changed:
            descriptor = self._descriptor
            if descriptor is None:
                raise OSError(errno.EBADF, "the file of swapped tensors is closed")
            self._users += 1
        try:
            yield descriptor
        except WriteError:
            raise
        except OSError as error:
            self.error = self.error or error
            raise
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()


def _open_unnamed(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in NEEDS_NAME:
            raise _not_writable(folder, error) from error
    try:
        # Of a process that was killed between the next two lines.
        for stale in folder.glob(f"{PREFIX}*"):
            stale.unlink(missing_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
        Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return descriptor


def _not_writable(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"Nothing can be written to the folder for swapped tensors, {str(folder)!r}: "
        f"{error.strerror}. Make it writable, or name another."
    )


def _set_direct(descriptor: int, is_direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))


def _aligned(num_bytes: int) -> np.ndarray:
    """Return memory at whole blocks; NumPy's, which comes in large pages and so twice as fast."""
    memory = np.empty(num_bytes + BLOCK_BYTES, np.uint8)
    first = -memory.ctypes.data % BLOCK_BYTES
    return memory[first : first + num_bytes]


def _in_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES
