"""The folder of all cached data sets: what is in use, and what goes when it is full.

A data set in use is locked as long as a process has it open; the kernel frees the lock of one
that dies. Where the file system knows no locks, none is ever removed. Imports no TensorFlow.
"""

import errno
import fcntl
import os
import shutil
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

LIMIT_VARIABLE = "TFUNET_CACHE_LIMIT"
DEFAULT_LIMIT = "100GiB"
UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
IN_USE = "in_use"
LOCK = "lock"
INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cached data set, whole or not.

    Args:
        path: Its folder.
        num_bytes: Of all its files.
        used_seconds: When it was last opened (Unix time); 0 if it was never whole.
    """

    path: Path
    num_bytes: int
    used_seconds: float


def limit_bytes() -> int:
    """Return how much all data sets together may take: $TFUNET_CACHE_LIMIT, else 100 GiB."""
    text = os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT
    number, unit = text[:-3].strip(), text[-3:]
    try:
        limit = int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        limit = 0
    if limit <= 0:
        raise ValueError(
            f"${LIMIT_VARIABLE} must be a size in {', '.join(UNITS)}, such as {DEFAULT_LIMIT}; got "
            f"{text!r}."
        )
    return limit


def entries(folder: Path) -> list[Entry]:
    """Return the data sets of a cache's folder, the one that was not used for longest first."""
    found = []
    for lock in folder.glob(f"*/{LOCK}"):
        home = lock.parent
        sizes, used = 0, 0.0
        # Files come and go while others build or remove.
        with suppress(FileNotFoundError):
            for file in home.iterdir():
                stat = file.stat()
                sizes += stat.st_size
                used = stat.st_mtime if file.name == INDEX else used
        found.append(Entry(path=home, num_bytes=sizes, used_seconds=used))
    return sorted(found, key=lambda entry: (entry.used_seconds, entry.path))


def hold(home: Path) -> ExitStack:
    """Return a data set's folder, made if need be, as in use until what is returned is closed."""
    held = ExitStack()
    while True:
        home.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(home / IN_USE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # Removed by another process since it was made.
            continue
        except OSError:
            # Read-only, and made by a version that did not have this file: nothing removes it.
            return held
        held.callback(os.close, descriptor)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_file(descriptor, home / IN_USE):
            with suppress(OSError):
                os.utime(home / INDEX)
            return held
        held.close()


def remove(entry: Entry) -> bool:
    """Remove a data set, unless somebody uses or builds it; returns whether it is gone."""
    with ExitStack() as held:
        try:
            # Open for writing: NFS locks exclusively only what can be written.
            descriptor = os.open(entry.path / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The index first: what a crash leaves of the rest is no data set any more.
            (entry.path / INDEX).unlink(missing_ok=True)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        shutil.rmtree(entry.path, ignore_errors=True)
    # On NFS the locked file is there until it is closed.
    with suppress(OSError):
        entry.path.rmdir()
    return True


class Room:
    """What a data set that is being written may still take of the folder's limit."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._limit = limit_bytes()
        self._written = 0
        self._others = self._measure()

    def take(self, num_bytes: int) -> None:
        """Count bytes that were written; remove the data sets unused for longest if need be.

        Raises OSError (EDQUOT) when nothing more can be removed.
        """
        self._written += num_bytes
        if self._written + self._others <= self._limit:
            return
        for entry in entries(self._home.parent):
            if entry.path != self._home and remove(entry):
                self._others = self._measure()
            if self._written + self._others <= self._limit:
                return
        raise OSError(
            errno.EDQUOT,
            f"the data sets there may take {self._limit / 2**30:.3g} GiB in all and the others are "
            f"in use; ${LIMIT_VARIABLE} (now {os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT}) "
            "sets it",
        )

    def _measure(self) -> int:
        others = (one for one in entries(self._home.parent) if one.path != self._home)
        return sum(entry.num_bytes for entry in others)


def listing(folder: Path) -> str:
    """Return a line for each data set of a cache's folder, and their sum."""
    found = entries(folder)
    lines = [
        f"{entry.num_bytes / 2**20:10.1f} MiB  {_when(entry.used_seconds)}  {entry.path.name}"
        for entry in found
    ]
    total = sum(entry.num_bytes for entry in found) / 2**20
    limit = limit_bytes() / 2**30
    return "\n".join(
        [
            *lines,
            f"{total:10.1f} MiB of at most {limit:.4g} GiB, {len(found)} data sets in {folder}",
        ]
    )


def clear(folder: Path) -> tuple[int, int]:
    """Remove all data sets that nobody uses; returns how many are gone and how many are left."""
    gone = [remove(entry) for entry in entries(folder)]
    return sum(gone), len(gone) - sum(gone)


def _when(seconds: float) -> str:
    shown = time.localtime(seconds)
    return time.strftime("%Y-%m-%d %H:%M", shown) if seconds else "never finished  "


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
