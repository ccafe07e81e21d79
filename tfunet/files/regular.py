"""Opens and removes regular files by fixed names, in folders that others may have filled.

Somebody who can write in a folder can put a link or a pipe there under a name that we will use. To
open it would overwrite the target of the link, or wait for ever. No TensorFlow.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor as `os.open` does, of a regular file only, and never through a link.

    Raises OSError for anything else, and for a file with a second name (a hard link) that would be
    overwritten. To append to one is allowed, because nothing is lost by it.
    """
    # A pipe without a reader is an error instead of a wait. Nothing is cut before it is looked at.
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, (flags & ~os.O_TRUNC) | safe, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            what = "a symbolic link" if error.errno == errno.ELOOP else "a pipe or a socket"
            raise OSError(errno.EEXIST, f"it is {what}", str(path)) from error
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            kind = KINDS.get(stat.S_IFMT(facts.st_mode), "no regular file")
            raise OSError(errno.EEXIST, f"it is {kind}", str(path))
        overwrites = flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND
        if overwrites and facts.st_nlink > 1:
            raise OSError(errno.EEXIST, "it has a second name (a hard link)", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove_files(folder: Path, patterns: Iterable[str]) -> None:
    """Remove the files of a folder whose names match, then the folder if it is empty.

    Nothing is removed through a link, and no folder inside.
    """
    patterns = tuple(patterns)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(descriptor):
            if any(fnmatch(name, pattern) for pattern in patterns):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    with contextlib.suppress(OSError):
        folder.rmdir()
