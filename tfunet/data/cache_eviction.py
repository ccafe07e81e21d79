"""The limit of the cache: which data sets are in use, and which are removed when it is full.

Only a folder that carries our own marker is removed, and of it only the files that we made.

A process that has a data set open holds a lock on it; the kernel frees the lock of one that dies.
On a file system without locks nothing is ever removed. Imports no TensorFlow.
"""

import errno
import fcntl
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tfunet.files.atomic import PARTIAL, write_atomic
from tfunet.files.home import DEFAULT_LIMIT, LIMIT_VARIABLE, limit_bytes
from tfunet.files.regular import open_regular, remove_files

IN_USE = "in_use"
LOCK = "lock"
# Is there once all cases are.
INDEX = "index.json"
IMAGES, MASKS = "images.bin", "masks.bin"
CONTENT = (IMAGES, MASKS, "foreground.bin", "cases.jsonl")
# Programs that make backups know this name and its first line: https://bford.info/cachedir.
MARKER = "CACHEDIR.TAG"
MARK = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# A data set that tfunet decoded, and may remove at any time. See docs/data.md of tfunet.\n"
)


@dataclass(frozen=True, kw_only=True)
class CachedSet:
    """One cached data set, complete or not.

    Args:
        path: Its folder.
        num_bytes: Size of all its files.
        used_seconds: When it was last opened (Unix time); 0 if it was never complete.
    """

    path: Path
    num_bytes: int
    used_seconds: float


def entries(folder: Path) -> list[CachedSet]:
    """Return the data sets in a cache's folder, least recently used first."""
    data_sets = []
    for home in folder.glob("*"):
        if not _is_ours(home):
            continue
        sizes, used = 0, 0.0
        # Files come and go while other processes build or remove.
        with suppress(FileNotFoundError):
            for file in home.iterdir():
                stat = file.lstat()
                sizes += stat.st_size
                used = stat.st_mtime if file.name == INDEX else used
        data_sets.append(CachedSet(path=home, num_bytes=sizes, used_seconds=used))
    return sorted(data_sets, key=lambda entry: (entry.used_seconds, entry.path))


def hold(home: Path) -> ExitStack:
    """Make a data set's folder if needed, and keep it in use until the result is closed."""
    held = ExitStack()
    while True:
        home.mkdir(parents=True, exist_ok=True)
        # The cache may be read-only, or another process may remove the folder meanwhile.
        with suppress(OSError):
            if not _is_ours(home):
                write_atomic(home / MARKER, MARK)
        try:
            descriptor = open_regular(home / IN_USE, os.O_RDONLY | os.O_CREAT)
        except FileNotFoundError:  # Removed by another process since it was made.
            continue
        except OSError:
            # Read-only, and made by a version without this file: nothing removes it.
            return held
        held.callback(os.close, descriptor)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_file(descriptor, home / IN_USE):
            with suppress(OSError):
                os.utime(home / INDEX)
            return held
        held.close()


def remove(entry: CachedSet) -> bool:
    """Remove a data set unless a process uses or builds it; return whether it is gone."""
    with ExitStack() as held:
        try:
            # Open for writing: NFS gives exclusive locks only on writable files.
            descriptor = open_regular(entry.path / IN_USE, os.O_RDWR | os.O_CREAT)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The index first: after a crash the rest does not count as a data set.
            (entry.path / INDEX).unlink(missing_ok=True)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        ours = (*CONTENT, f"{PARTIAL}*", LOCK, IN_USE, MARKER)
        remove_files(entry.path, ours)
    # On NFS the locked file exists until it is closed. What is not ours stays, with the folder.
    with suppress(OSError):
        entry.path.rmdir()
    return True


class CacheRoom:
    """The part of the limit that is left for a data set that is being written."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._limit = limit_bytes()
        self._written = 0
        self._others = self._measure()

    def take(self, num_bytes: int) -> None:
        """Count written bytes, and remove the least recently used data sets if there is no room.

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
            f"the data sets there may take {self._limit / 2**30:.3g} GiB in all, and the others "
            f"are in use; ${LIMIT_VARIABLE} sets the limit (now "
            f"{os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT})",
        )

    def _measure(self) -> int:
        others = (entry for entry in entries(self._home.parent) if entry.path != self._home)
        return sum(entry.num_bytes for entry in others)


def listing(folder: Path) -> str:
    """Return a line for each data set in a cache's folder, and their sum."""
    data_sets = entries(folder)
    lines = [
        f"{entry.num_bytes / 2**20:10.1f} MiB  {_when(entry.used_seconds)}  {entry.path.name}"
        for entry in data_sets
    ]
    total = sum(entry.num_bytes for entry in data_sets) / 2**20
    limit = limit_bytes() / 2**30
    last = f"{total:10.1f} MiB of at most {limit:.4g} GiB, {len(data_sets)} data sets in {folder}"
    return "\n".join([*lines, last])


def clear(folder: Path) -> tuple[int, int]:
    """Remove all data sets that are not in use; return how many are gone and how many are left."""
    gone = [remove(entry) for entry in entries(folder)]
    return sum(gone), len(gone) - sum(gone)


def _when(seconds: float) -> str:
    shown = time.localtime(seconds)
    return time.strftime("%Y-%m-%d %H:%M", shown) if seconds else "never finished  "


def _is_ours(home: Path) -> bool:
    """Whether this is a folder, no link to one, that carries our marker."""
    try:
        if home.is_symlink():
            return False
        with os.fdopen(open_regular(home / MARKER, os.O_RDONLY), "rb") as file:
            return file.read(len(MARK) + 1) == MARK.encode()
    except OSError:
        return False


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
