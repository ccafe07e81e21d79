"""Keeps a folder for one run."""

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tfunet.files.atomic import PARTIAL, WriteError, writing
from tfunet.files.regular import open_regular

LOCK = ".lock"
LOCK_SECONDS = 0.2


class InUseError(ValueError):
    """Another process has the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder; see `RunFolder.locked`."""
    path = folder / LOCK
    descriptor = _lock(path)
    try:
        _remove_partial(folder)
        yield
    finally:
        _remove_partial(folder)
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a run is using a folder."""
    try:
        descriptor = open_regular(folder / LOCK, os.O_RDONLY)
    except (FileNotFoundError, FileExistsError):  # None, or a link or a pipe: not a run's.
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # This disk has no locks.
        return False
    finally:
        os.close(descriptor)
    return False


def _remove_partial(folder: Path) -> None:
    for partial in folder.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            partial.unlink()


def _lock(path: Path) -> int:
    """Return the descriptor that holds the lock. The kernel frees it however the process ends."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with writing(path):
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous run may have removed the file between our open and our lock.
            if _is_file(descriptor, path):
                break
        except BlockingIOError:
            # Try for a while: `is_locked` of another process holds the lock for an instant.
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace")
                raise InUseError(
                    f"{path.parent} is in use by {holder or 'another run'}. Wait until it ends, "
                    "end it, or choose another folder."
                ) from None
            time.sleep(LOCK_SECONDS / 10)
        except OSError as error:
            # Some shared disks do not support locks.
            print(f"tfunet: {path.parent} cannot be locked ({error.strerror}).", file=sys.stderr)
            break
        os.close(descriptor)
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        with writing(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
    except WriteError:
        os.close(descriptor)
        raise
    return descriptor


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
