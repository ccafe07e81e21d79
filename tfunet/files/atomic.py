"""Writes a complete file or none. No TensorFlow."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tfunet.files.regular import open_regular

PARTIAL = ".partial-"
TOO_LARGE = (
    "The shell or the file system limits the size of a file. See ulimit -f, raise it, or choose "
    "another folder."
)


class WriteError(OSError):
    """A file could not be written. The message names it and says what to do."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a WriteError that names `path`."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        advice = "Check the folder, or choose another one."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "Free space there, or choose another folder."
        elif error.errno == errno.EFBIG:
            advice = TOO_LARGE
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = "Get permission to write there, or choose another folder."
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            advice = "A file is in the way: remove it, or choose another folder."
        raise WriteError(f"Cannot write {path}: {error.strerror or error}. {advice}") from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a complete file or none. Raises WriteError."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the same suffix, and rename it to `path` after the block.

    After an error the temporary file is removed. An OSError becomes a WriteError.
    """
    # Nobody can put a link in place of a name that nobody can guess.
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        with writing(path):
            os.close(open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            yield partial
            _sync(partial)
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
