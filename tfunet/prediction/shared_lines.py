"""The lines of windows of one image, whose sums several processes compute. Imports no TensorFlow.

A process claims a line by a lock on a byte of a file, which the system frees however the process
ends. One of them, which has the lock of the folder, puts the image together:

    puts together   takes the sums in order; where another computes the next one, computes a later
    helps           computes the first line that nobody has, and leaves its sum in a file

So processes of any number may come and go, on one host or on several with one file system.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, final

import numpy as np

from tfunet.files.atomic import PARTIAL, writing
from tfunet.files.regular import open_regular, read_bytes

CLAIMS = "claims"
SUMS = "sum-*"
# What a byte of the claims says of its line.
OPEN, BUSY, THERE, TAKEN = range(4)
# So many sums wait in files at most, so that they fill no disk.
MOST_WAITING = 8
# How often a process looks for what another does.
WAIT_SECONDS = 0.02


def has_open(folder: Path) -> bool:
    """Whether an unfinished prediction has a line that nobody has begun."""
    try:
        return OPEN in read_bytes(folder / CLAIMS)
    except OSError:
        return False


def can_lock(folder: Path) -> bool:
    """Whether processes can claim lines of a prediction in a folder: some shared disks cannot."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=PARTIAL) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            return False
    return True


@final
class SharedLines:
    """Sums of lines, which this process computes or waits for; use it in a `with` block.

    Args:
        folder: Folder of the unfinished prediction.
        num_lines: Lines of the image.
        compute: Returns the sum of a line.
        num_done: How many of the first lines are not needed, for the process that puts the image
            together; None for all others, which raise FileNotFoundError before it has begun.
    """

    def __init__(
        self,
        folder: Path,
        num_lines: int,
        compute: Callable[[int], np.ndarray],
        num_done: int | None = None,
    ) -> None:
        self._folder, self._num_lines, self._compute = folder, num_lines, compute
        path = folder / CLAIMS
        if num_done is None:
            self._file = open_regular(path, os.O_RDWR)
            return
        with writing(path):
            self._file = open_regular(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._begin(num_done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)  # Frees its claims.

    def _begin(self, num_done: int) -> None:
        """Open the lines that processes had which are no more."""
        os.ftruncate(self._file, self._num_lines)
        states = self._states()
        for line in range(self._num_lines):
            if line < num_done:
                self._mark(line, TAKEN)
            elif states[line] != THERE and self._claims(line):
                self._mark(line, OPEN)
                self._free(line)

    def take(self, line: int) -> np.ndarray:
        """Return the sum of a line, for the process that puts the image together."""
        while True:
            found = self._left(line)
            if found is None and self._claims(line):
                # It may have come between the look and the claim.
                found = self._left(line)
                if found is None:
                    self._mark(line, BUSY)
                    found = self._compute(line)
                self._mark(line, TAKEN)
                self._free(line)
            if found is not None:
                return found
            if not self._help(line + 1):
                time.sleep(WAIT_SECONDS)

    def help(self) -> bool:
        """Compute a line that nobody has; return whether there was one."""
        return self._help(0)

    def _help(self, first: int) -> bool:
        states = self._states()
        if states.count(THERE) >= MOST_WAITING:
            return False
        for line in range(first, self._num_lines):
            if states[line] != OPEN or not self._claims(line):
                continue
            if self._states()[line] == OPEN:
                self._mark(line, BUSY)
                self._leave(line, self._compute(line))
                self._free(line)
                return True
            self._free(line)
        return False

    def _leave(self, line: int, total: np.ndarray) -> None:
        path = self._path(line)
        partial = path.with_suffix(f".{os.getpid()}")
        with writing(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(open_regular(partial, flags, 0o644), "wb") as file:
                np.save(file, total)
            partial.rename(path)
        self._mark(line, THERE)

    def _left(self, line: int) -> np.ndarray | None:
        """Return the sum that another process left; None if there is none."""
        if self._states()[line] != THERE:
            return None
        path = self._path(line)
        total: np.ndarray | None = None
        # The machine may have gone down before it was on the disk.
        try:
            with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
                total = np.lib.format.read_array(file)
        except (OSError, ValueError, EOFError):
            pass
        path.unlink(missing_ok=True)
        self._mark(line, OPEN if total is None else TAKEN)
        return total

    def _states(self) -> bytes:
        return os.pread(self._file, self._num_lines, 0).ljust(self._num_lines, bytes([OPEN]))

    def _mark(self, line: int, state: int) -> None:
        os.pwrite(self._file, bytes([state]), line)

    def _claims(self, line: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, line)
        except (BlockingIOError, PermissionError):  # Which of them, depends on the system.
            return False
        except OSError:  # This disk has no locks, as was said of the folder: nobody else is here.
            return True
        return True

    def _free(self, line: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, line)

    def _path(self, line: int) -> Path:
        # Not one that a process left which was told of other options.
        claims = os.fstat(self._file).st_ino
        return self._folder / SUMS.replace("*", f"{claims}-{line}.npy")
