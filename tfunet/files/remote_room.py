"""The room of files that were fetched: the oldest become placeholders again. No TensorFlow."""

import contextlib
import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tfunet.files.home import limit_bytes

# The mode of a file whose content is on the server: nobody else makes files that only can be
# written.
PLACEHOLDER = 0o200
# The same with its first bytes in place; nobody else makes sticky files.
WITH_HEAD = 0o1600
# Who fetched a file may not have opened it yet.
GRACE_SECONDS = 10
# Other processes fetch, too: what there is is measured again after this part of the limit.
PART = 20
_lock = threading.Lock()
_known = {"bytes": -1, "since": 0}


def is_placeholder(facts: os.stat_result) -> bool:
    """Whether the content of this file is still on the server."""
    return stat.S_ISREG(facts.st_mode) and stat.S_IMODE(facts.st_mode) in (
        PLACEHOLDER,
        WITH_HEAD,
    )


def make_placeholder(path: Path, num_bytes: int, stamp: int) -> None:
    """Make a new file that stands for one on a server. Raises FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, PLACEHOLDER)
    try:
        os.ftruncate(descriptor, num_bytes)
        os.fchmod(descriptor, PLACEHOLDER)
        os.utime(descriptor, ns=(stamp, stamp))
    finally:
        os.close(descriptor)


def make_room(home: Path, num_bytes: int) -> None:
    """Count bytes that will be fetched, and evict files where the limit is reached.

    The limit is that of the cache, $TFUNET_CACHE_LIMIT, here for what is fetched alone. Files that
    are open stay what they are for who has them open.
    """
    limit = limit_bytes()
    with _lock:
        is_due = _known["bytes"] < 0 or _known["since"] > limit // PART
        if is_due or _known["bytes"] + num_bytes > limit:
            files = sorted(fetched_files(home))
            total = sum(size for _, size, _ in files)
            if total + num_bytes > limit:
                total = _evict(home, files, total, limit - num_bytes - limit // PART)
            _known.update(bytes=total, since=0)
        _known["bytes"] += num_bytes
        _known["since"] += num_bytes


def fetched_files(home: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield when each file was fetched (ns), its size and its path."""
    for place, folders, names in os.walk(home):
        folders[:] = [name for name in folders if name != ".partial"]
        for name in names:
            path = Path(place, name)
            with contextlib.suppress(FileNotFoundError):
                facts = os.lstat(path)
                if not is_placeholder(facts) and place != str(home):
                    yield facts.st_atime_ns, facts.st_size, path


def evict(home: Path, path: Path) -> None:
    """Put a placeholder in the place of a file that was fetched."""
    facts = os.lstat(path)
    if is_placeholder(facts):
        return
    partial = home / ".partial" / f"{os.getpid()}-{secrets.token_hex(6)}"
    partial.parent.mkdir(parents=True, exist_ok=True)
    make_placeholder(partial, facts.st_size, facts.st_mtime_ns)
    os.replace(partial, path)


def held(home: Path) -> str:
    """Return a line on what was fetched; "" where nothing was."""
    sizes = [size for _, size, _ in fetched_files(home)]
    if not sizes:
        return ""
    total, limit = sum(sizes) / 2**20, limit_bytes() / 2**30
    return f"{total:10.1f} MiB of at most {limit:.4g} GiB, {len(sizes)} files fetched into {home}"


def clear(home: Path) -> int:
    """Put placeholders in the place of all files that were fetched; return their number."""
    paths = [path for *_, path in fetched_files(home)]
    for path in paths:
        evict(home, path)
    return len(paths)


def _evict(home: Path, files: list[tuple[int, int, Path]], total: int, most: int) -> int:
    """Evict the oldest files until the others are at most so many bytes; return their sum."""
    youngest = time.time_ns() - GRACE_SECONDS * 10**9
    for fetched_at, size, path in files:
        if total <= most or fetched_at > youngest:
            break
        try:
            evict(home, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                break
            continue
        total -= size
    return total
