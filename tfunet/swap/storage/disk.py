"""A file on disk for swapped tensors, gone when the process ends. Imports no TensorFlow."""

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import final

import numpy as np

from tfunet.config.amount import MIB
from tfunet.files.atomic import WriteError
from tfunet.files.home import expand_home

PREFIX = ".tfunet-swap-"
# Sizes, offsets and memory addresses of direct reads and writes are multiples of a block.
BLOCK_BYTES = 4096
# Tensors pass to the disk through a buffer of this size.
CHUNK_BYTES = 2**23
# Enough to show the speed of a disk, in about a second on a slow one.
SPEED_BYTES = 2**24
SPEED_REPEATS = 3
SPEED = (-1, "speed")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Another process of the run may hold space for a moment, to measure the speed.
WAITED_SECONDS = 3.0
WAIT_SECONDS = 0.25
# Answers of file systems that cannot open a file without a name.
NEEDS_NAME = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)

_speeds: dict[int, tuple[float, float]] = {}  # (write, read), by the number of the disk


def check_folder(folder: str | Path) -> Path:
    """Return the folder as a path; ValueError where it cannot hold swapped tensors."""
    if not str(folder):
        raise ValueError(
            "The folder for swapped tensors has an empty name. Write '.' for the current folder."
        )
    path = expand_home(os.path.expandvars(folder))
    if not path.is_dir():
        problem = "is a file, not a folder" if path.exists() else "does not exist"
        raise ValueError(
            f"The folder for swapped tensors, {str(folder)!r}, {problem}. Create it, on a disk of "
            "this machine, or name another."
        )
    os.close(_open_unnamed(path))
    return path


class TooLargeError(OSError):
    """A tensor is larger than the room that was reserved for it."""


@final
class DiskFile:
    """One file in a folder, unlinked as soon as it is open, so that the kernel frees it with the
    process, however that ends.

    Reads and writes bypass the page cache (O_DIRECT) where the file system can do that. Tensors of
    different parts share the same space: only those of one part are held at a time.

    Raises ValueError for a folder that cannot be used.

    Attributes:
        is_direct: Whether reads and writes bypass the page cache; known after `reserve`.
        error: The first error of reading or writing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = check_folder(folder)
        self.is_direct = False
        self.error: OSError | None = None
        # (offset, bytes of room), by part and key.
        self._places: dict[tuple[int, str], tuple[int, int]] = {}
        self._end = 0
        self._chunk = aligned(CHUNK_BYTES)
        self._chunk_is_free = threading.Lock()
        self._changed = threading.Condition()
        self._users = 0
        descriptor = _open_unnamed(self.folder)
        self._descriptor: int | None = descriptor
        self._free = weakref.finalize(self, _free, descriptor, os.getpid())
        # At exit the kernel frees it, when no thread can write any more.
        self._free.atexit = False

    def reserve(self, sizes: Mapping[str, int], *, part: int = 0) -> None:
        """Make room for tensors, by key, beside others of the part; WriteError without any."""
        until = time.monotonic() + WAITED_SECONDS
        while True:
            try:
                self._reserve(sizes, part)
            except WriteError:
                if time.monotonic() > until:
                    raise
                time.sleep(WAIT_SECONDS)
            else:
                return

    def _reserve(self, sizes: Mapping[str, int], part: int) -> None:
        places = {key: place for (owner, key), place in self._places.items() if owner == part}
        for key, num_bytes in sizes.items():
            if places.get(key, (0, -1))[1] < num_bytes:
                places.pop(key, None)
                rounded = _in_blocks(num_bytes)
                places[key] = _first_gap(places.values(), rounded), rounded
        end = max((offset + room for offset, room in places.values()), default=0)
        if end > self._end:
            self._allocate(end)
        self._places |= {(part, key): place for key, place in places.items()}

    def speed(self) -> tuple[float, float]:
        """Return the bytes per second that this disk writes and reads; WriteError if it is full."""
        # Asks the file, as the folder may be gone by now.
        with self._using() as descriptor:
            device = os.fstat(descriptor).st_dev
        if device not in _speeds:
            numbers = np.ones(self._room_for_speed(), np.uint8)
            seconds = []
            for _ in range(SPEED_REPEATS):
                since = time.perf_counter()
                self.write(SPEED[1], numbers, part=SPEED[0])
                written = time.perf_counter()
                self.read(SPEED[1], numbers.size, part=SPEED[0])
                seconds.append((written - since, time.perf_counter() - written))
            write, read = (sorted(way)[SPEED_REPEATS // 2] for way in zip(*seconds, strict=True))
            _speeds[device] = numbers.size / write, numbers.size / read
            # This gives back the space.
            self._end, _ = self._places.pop(SPEED)
            with self._using() as descriptor:
                os.ftruncate(descriptor, self._end)
        return _speeds[device]

    def _room_for_speed(self) -> int:
        """Reserve bytes for a measurement, fewer on a disk that is almost full; return how many."""
        num_bytes, begin = SPEED_BYTES, self._end
        while True:
            try:
                self._allocate(begin + num_bytes)
            except WriteError:
                num_bytes //= 2
                if num_bytes < BLOCK_BYTES:
                    raise
            else:
                self._places[SPEED] = begin, num_bytes
                return num_bytes

    def write(self, key: str, numbers: np.ndarray, *, part: int = 0, first: int = 0) -> None:
        """Write the bytes of an array to its place, from its byte `first` on, a whole block."""
        offset, room = self._places[part, key]
        offset, room = offset + first, room - first
        data = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        with self._using() as descriptor, self._chunk_is_free:
            if data.size > room:
                raise TooLargeError(errno.EFBIG, "a tensor is larger than the step was planned for")
            for begin in range(0, data.size, CHUNK_BYTES):
                some = data[begin : begin + CHUNK_BYTES]
                self._chunk[: some.size] = some
                view = self._chunk[: _in_blocks(some.size)].data
                at = offset + begin
                while view:
                    done = os.pwrite(descriptor, view, at)
                    view, at = view[done:], at + done

    def read(self, key: str, num_bytes: int, *, part: int = 0, first: int = 0) -> np.ndarray:
        """Return the bytes that were written from `first` on, a whole block, (num_bytes,), in new
        memory at a whole page."""
        offset = self._places[part, key][0] + first
        rounded = _in_blocks(num_bytes)
        data = aligned(rounded)
        with self._using() as descriptor:
            done = 0
            while done < rounded:
                count = os.preadv(descriptor, [data[done:rounded].data], offset + done)
                if count == 0:
                    raise OSError(errno.EIO, "the file ends before the tensor does")
                done += count
        return data[:num_bytes]

    def close(self) -> None:
        """Free the disk; waits for reads and writes that have begun, and refuses others."""
        with self._changed:
            descriptor, self._descriptor = self._descriptor, None
            # A late write could otherwise go to another file that got the same descriptor.
            self._changed.wait_for(lambda: self._users == 0)
        if descriptor is not None:
            self._free()

    def explained(self) -> WriteError | None:
        """Return the error in the middle of training, in words; None where there was none."""
        if self.error is None:
            return None
        advice = "Check the disk, or name another folder."
        if isinstance(self.error, TooLargeError):
            advice = (
                "The plan is for smaller batches: leave plan out, and give all batches one size."
            )
        elif self.error.errno in NO_SPACE:
            advice = "Free space there, lift the limit on file sizes, or name another folder."
        return WriteError(
            f"Swapped tensors could not be written to {self.folder}, or read from it, in the "
            f"middle of a step: {self.error.strerror}. {advice}"
        )

    def _allocate(self, end: int) -> None:
        with self._using() as descriptor:
            # Where the C library allocates by writing a byte to each block, direct writes fail.
            _set_direct(descriptor, False)
            try:
                os.posix_fallocate(descriptor, self._end, end - self._end)
            except OSError as error:
                os.ftruncate(descriptor, self._end)
                raise self._too_full(descriptor, end, error) from error
            self._end = end
            self.is_direct = self._goes_direct(descriptor)

    def _goes_direct(self, descriptor: int) -> bool:
        """Turn on direct reads and writes if they work on a block of this file."""
        block = aligned(BLOCK_BYTES)
        try:
            _set_direct(descriptor, True)
            os.preadv(descriptor, [block.data], 0)
            os.pwrite(descriptor, block.data, 0)
        except OSError:
            _set_direct(descriptor, False)
            return False
        return True

    def _too_full(self, descriptor: int, end: int, error: OSError) -> WriteError:
        more = end - self._end
        state = os.fstatvfs(descriptor)
        free = state.f_bavail * state.f_frsize
        wanted = f"{more / MIB:,.1f} MiB for swapped tensors"
        if error.errno not in NO_SPACE:
            return WriteError(
                f"{wanted} could not be reserved in {self.folder}: {error.strerror}. Name another "
                "folder for swapped tensors."
            )
        limit = " (a limit on file sizes stands in the way)" if error.errno == errno.EFBIG else ""
        return WriteError(
            f"{wanted} do not fit in {self.folder}, where {free / MIB:,.1f} MiB are free{limit}; "
            "what other processes of the run have reserved there is not counted as free. Free "
            "space there, name a folder on a larger disk, give more host memory, or limit what may "
            "go to the disk: the rest is computed again instead."
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
        # Left by a process that was killed between the two lines after this loop.
        for stale in folder.glob(f"{PREFIX}*"):
            # In a folder like /tmp, where only owners delete, the files of other users stay.
            with contextlib.suppress(OSError):
                stale.unlink()
        descriptor, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
        Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return descriptor


def _free(descriptor: int, process: int) -> None:
    """Free the space even while a forked child has the file open, but not when that child ends."""
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _first_gap(places: Iterable[tuple[int, int]], num_bytes: int) -> int:
    """Return the first offset with so much room before the next place, or after the last place."""
    at = 0
    for offset, room in sorted(places):
        if offset - at >= num_bytes:
            break
        at = offset + room
    return at


def _not_writable(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"Nothing can be written to the folder for swapped tensors, {str(folder)!r}: "
        f"{error.strerror}. Make it writable, or name another."
    )


def _set_direct(descriptor: int, is_direct: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))


def aligned(num_bytes: int, alignment: int = BLOCK_BYTES) -> np.ndarray:
    """Return aligned memory; NumPy's, which has large pages and is twice as fast."""
    memory = np.empty(num_bytes + alignment, np.uint8)
    first = -memory.ctypes.data % alignment
    return memory[first : first + num_bytes]


def _in_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES) * BLOCK_BYTES
