"""Opens and removes regular files by fixed names, in folders that others may have filled.

Somebody who can write in a folder can put a link or a pipe there under a name that we will use. To
open it would overwrite the target of the link, or wait for ever. All of the package opens files by
these functions, but for the readers of image files, which have their own check. A file of a server
is fetched before it is opened. No TensorFlow.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from fnmatch import fnmatch
from io import BufferedReader
from pathlib import Path

from tfunet.files.remote_room import is_placeholder

# Larger records are not ours: they would only take time and memory.
MOST_BYTES = 2**28
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
    descriptor = _open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW, mode)
    try:
        facts = os.fstat(descriptor)
        overwrites = flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND
        if overwrites and facts.st_nlink > 1:
            raise OSError(errno.EEXIST, "it has a second name (a hard link)", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_to_read(path: Path) -> BufferedReader:
    """Open a regular file, also through a link: in a store of DataLad all files are links.

    Raises OSError for anything else.
    """
    return os.fdopen(_open(path, os.O_RDONLY), "rb")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError for anything else, and for more."""
    with open_to_read(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return content


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8, with lines that end as Python's. As above."""
    return read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")


def read_end(path: Path, most: int) -> str:
    """Return the last bytes of a regular file as text. Raises OSError for anything else."""
    with open_to_read(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


def _open(path: Path, flags: int, mode: int = 0o666) -> int:
    if flags & os.O_ACCMODE == os.O_RDONLY:
        _fetch(path)
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            what = "a symbolic link" if error.errno == errno.ELOOP else "a pipe or a socket"
            raise OSError(errno.EEXIST, f"it is {what}", str(path)) from error
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
            raise OSError(errno.EEXIST, f"it is {kind}", str(path))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _fetch(path: Path) -> None:
    with contextlib.suppress(OSError):
        if not is_placeholder(os.stat(path)):
            return
        # It takes longer to import than most commands that read no such file.
        from tfunet.files.remote import fetched

        fetched(path)


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
