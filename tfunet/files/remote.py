"""Folders of servers as local ones, whose files are fetched when they are first opened.

A URL has a folder below the cache's, with a file for each one that the server lists: of the same
name, size and time, but empty, and marked by its mode. Whoever looks for files, or asks for their
sizes, needs no server. Whoever opens one calls `fetched` first (`tfunet.files.regular` does, and
what reads images). No TensorFlow.
"""

import contextlib
import contextvars
import fcntl
import hashlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from tfunet.files import mirror, remote_room
from tfunet.files.home import cache_home, expand_home
from tfunet.files.printable import printable
from tfunet.files.remote_room import WITH_HEAD, is_placeholder
from tfunet.files.server import (
    NUM_THREADS,
    CutError,
    RemoteError,
    Transport,
    Version,
    attempted,
    shown_version,
)
from tfunet.files.transports import transport_of
from tfunet.files.urls import SCHEMES, WEB, Url, is_path, is_url, parsed, without_secrets

# One command asks for a listing several times; a later one in the same process must not miss
# what is new.
LISTED_SECONDS = 60
# What is fetched before the first of it is read: much, for a server that takes its time, and little
# of the cache's limit.
MOST_AHEAD = 512
MOST_BYTES_AHEAD = 2**28
Item = TypeVar("Item")
# Formats whose header is at the beginning, and files that are worth a second request.
HEADED = (".nii", ".nii.gz", ".npy", ".mha", ".nrrd")
HEAD_BYTES = 2**18
LARGE_BYTES = 2**20
_wants_heads: contextvars.ContextVar[bool] = contextvars.ContextVar("heads", default=False)
_listed: dict[Path, float] = {}
_listing = threading.RLock()


def folder() -> Path:
    """Return the folder of all that is fetched: `remote` in the folder of the cache."""
    return cache_home() / "remote"


def place(url: Url) -> Path:
    """Return the local place of a URL, whatever is there."""
    return folder().joinpath(url.scheme, url.host, *url.key.split("/") if url.key else ())


def url_of(path: Path) -> Url | None:
    """Return the URL whose local place this is; None for any other path."""
    home = folder()
    for name, start in ((os.path.abspath, os.path.abspath), (os.path.realpath, os.path.realpath)):
        parts = PurePosixPath(os.path.relpath(name(path), start(home))).parts
        if len(parts) >= 2 and parts[0] in SCHEMES:
            return Url(parts[0], parts[1], "/".join(parts[2:]))
    return None


def named(path: str | Path) -> str:
    """Return how to name a place in a record: its URL, or the absolute path without links."""
    if isinstance(path, str) and is_url(path):
        return str(parsed(path))
    url = url_of(Path(path))
    return str(expand_home(path).resolve()) if url is None else str(url)


def shown(path: Path) -> str:
    """Return how to name a place in a message: its URL, or the path as it was given."""
    url = url_of(path)
    return str(path) if url is None else str(url)


def local(path: str) -> Path:
    """Return the path that a text names, with `~` expanded; of a URL its place, after a listing.

    Raises ValueError for a URL where nothing is, and RemoteError for a server that fails.
    """
    return shadow(path) if is_url(path) else expand_home(path)


def shadow(text: str) -> Path:
    """List what is below a URL, and return the local folder, or file, that stands for it."""
    url = parsed(text)
    with _listing:
        if time.monotonic() - _listed.get(place(url), -LISTED_SECONDS) >= LISTED_SECONDS:
            try:
                transport = transport_of(url)
                found = attempted(transport, url, "listed", partial(transport.find, url))
            except FileNotFoundError as error:
                raise ValueError(f"{url} is not there ({_said(error)}).") from error
            except PermissionError as error:
                raise ValueError(f"{url}: {_no_permission(url, error)}") from error
            if not found:
                raise ValueError(f"There is nothing at {url}. Check its name.")
            _mirror(url, found)
            _listed[place(url)] = time.monotonic()
    return place(url)


def beside(text: str) -> Path:
    """Return the local folder of a file's URL, with the files beside it.

    On a web server it has only this one, and `placed` looks for others by their names.
    """
    url = parsed(text)
    return shadow(str(url)).parent if url.scheme in WEB else shadow(str(url.parent))


def placed(root: Path, names: Iterable[str]) -> None:
    """Look for files that a table or description names, where the server lists no folder."""
    url = url_of(root)
    if url is None:
        return
    missing = [
        name for name in dict.fromkeys(names) if is_path(name) and not (root / name).exists()
    ]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(lambda name: _version(url.below(name)), missing))
    for name, version in zip(missing, found, strict=True):
        if version is not None:
            _mirror(url.below(name), {"": version})


def fetched(path: Path) -> bool:
    """Put the content of a file in its place, if it is not there yet; return whether it was not.

    Any number of processes and threads may call this at once: one fetches, and the others wait.
    Raises RemoteError where the server fails, or has another file there than it listed.
    """
    try:
        facts = os.stat(path)
    except OSError:
        return False
    if not is_placeholder(facts):
        return False
    url = url_of(path)
    if url is None:
        return False
    is_head = _wants_heads.get() and _has_head(path, facts)
    if is_head and stat.S_IMODE(facts.st_mode) == WITH_HEAD:
        return False
    with _turn(path) as placeholder:
        if placeholder is not None and is_head:
            _fetch_head(url, place(url))
        elif placeholder is not None:
            _fetch(url, place(url), placeholder)
    return True


@contextlib.contextmanager
def heads_only() -> Iterator[None]:
    """Fetch only the first bytes of large files in the block, where a format begins with what it
    says of itself. What is behind reads as zeros.
    """
    token = _wants_heads.set(True)
    try:
        yield
    finally:
        _wants_heads.reset(token)


def _has_head(path: Path, facts: os.stat_result) -> bool:
    return facts.st_size >= LARGE_BYTES and path.name.lower().endswith(HEADED)


def _fetch_head(url: Url, path: Path) -> None:
    """Write the first bytes into a placeholder."""
    transport = transport_of(url)
    try:
        content = attempted(transport, url, "read", partial(transport.head, url, HEAD_BYTES))
    except FileNotFoundError as error:
        raise _gone(url, error) from error
    except PermissionError as error:
        raise RemoteError(f"{url}: {_no_permission(url, error)}") from error
    facts = path.stat()
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
        os.fchmod(descriptor, WITH_HEAD)
        os.utime(descriptor, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
    finally:
        os.close(descriptor)


def fetched_ahead(
    items: Iterable[Item], files: Callable[[Item], Iterable[Path]], *, heads: bool = False
) -> Iterator[Item]:
    """Yield items, after the files of each are there: those of many are fetched at once.

    With `heads` as in a block of `heads_only`.
    """
    waiting: list[Item] = []
    paths: list[Path] = []

    def fetch() -> Iterator[Item]:
        with heads_only() if heads else contextlib.nullcontext():
            prefetch(paths)
        yield from waiting
        waiting.clear()
        paths.clear()

    num_bytes = 0
    for item in items:
        waiting.append(item)
        for path in files(item):
            if is_on_server(path):
                paths.append(path)
                facts = path.stat()
                num_bytes += HEAD_BYTES if heads and _has_head(path, facts) else facts.st_size
        if len(paths) >= MOST_AHEAD or num_bytes >= MOST_BYTES_AHEAD:
            yield from fetch()
            num_bytes = 0
    yield from fetch()


def fetch_folder(path: Path) -> None:
    """Fetch all files in a folder, such as the slices of a volume."""
    if url_of(path) is not None:
        prefetch(file for file in path.rglob("*") if file.is_file())


def prefetch(paths: Iterable[Path]) -> None:
    """Fetch files at once that are about to be opened one by one. Raises as `fetched`."""
    wanted = [path for path in paths if is_on_server(path)]
    if not wanted:
        return
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        try:
            # Threads of a pool do not know in which block they were asked for.
            for task in [
                pool.submit(contextvars.copy_context().run, fetched, path) for path in wanted
            ]:
                task.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def is_on_server(path: Path) -> bool:
    """Whether what one wants of a file is still, or again, only on its server."""
    with contextlib.suppress(OSError):
        facts = os.stat(path)
        has_enough = _wants_heads.get() and stat.S_IMODE(facts.st_mode) == WITH_HEAD
        return is_placeholder(facts) and not has_enough and url_of(path) is not None
    return False


def _version(url: Url) -> Version | None:
    transport = transport_of(url)
    try:
        return attempted(transport, url, "read", partial(transport.version, url))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise ValueError(f"{url}: {_no_permission(url, error)}") from error


def _fetch(url: Url, path: Path, facts: os.stat_result) -> None:
    """Fetch a file whose placeholder has these facts."""
    remote_room.make_room(folder(), facts.st_size)
    transport, new = transport_of(url), mirror.new_file(_partial())
    try:
        attempted(transport, url, "read", lambda: _download(transport, url, new, facts))
        os.utime(new, ns=(time.time_ns(), facts.st_mtime_ns))
        os.replace(new, path)
    except FileNotFoundError as error:
        raise _gone(url, error) from error
    except PermissionError as error:
        raise RemoteError(f"{url}: {_no_permission(url, error)}") from error
    except OSError as error:
        raise RemoteError(
            f"{url} cannot be kept in {folder()}: {error.strerror or error}. Free space there, or "
            "set $TFUNET_CACHE to another folder."
        ) from error
    finally:
        new.unlink(missing_ok=True)


def _download(transport: Transport, url: Url, new: Path, facts: os.stat_result) -> None:
    """Raise CutError for a part of the file, and RemoteError for another file."""
    version = transport.fetch(url, new)
    num_bytes = new.stat().st_size
    if version is None and num_bytes == facts.st_size:
        # The mark of most files is a checksum of their content.
        with_checksum = Version(num_bytes, facts.st_mtime_ns // 10**9, _md5(new))
        version = with_checksum if with_checksum.stamp == facts.st_mtime_ns else None
    if version is None:
        version = transport.version(url)
    if not version.is_stamped(facts):
        _listed.clear()
        listed = shown_version(facts.st_size, facts.st_mtime_ns // 10**9)
        raise RemoteError(
            f"{url} changed since it was listed: it had {listed}, and has {version} now. The same "
            "command lists the files anew."
        )
    if num_bytes != facts.st_size:
        raise CutError(f"{num_bytes} of {facts.st_size} bytes came")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[os.stat_result | None]:
    """Yield the facts of a placeholder to the only process that fetches it, None to the others."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        with contextlib.suppress(OSError):  # Without locks two may fetch the same, as well.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        facts = os.fstat(descriptor)
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(path)
            yield facts if os.path.samestat(facts, there) and is_placeholder(there) else None
            return
        yield None
    finally:
        os.close(descriptor)


def _mirror(url: Url, found: Mapping[str, Version]) -> None:
    with _alone():
        mirror.clean(_partial())
        odd = mirror.mirror(place(url), found, _partial())
    if odd:
        what = f"{len(odd)} objects of {url} are left out: their names are no paths, such as"
        print(f"warning: {what} {printable(repr(odd[0]))}.", file=sys.stderr)


def _partial() -> Path:
    return folder() / ".partial"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process at a time change which files there are."""
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _gone(url: Url, error: BaseException) -> RemoteError:
    _listed.clear()
    return RemoteError(
        f"{url} was listed and is not there any more ({_said(error)}). The same command lists the "
        "files anew."
    )


def _said(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split())).rstrip(".")[:200]


def _no_permission(url: Url, error: BaseException) -> str:
    return (
        f"no permission to read it ({_said(error)}). Log in as the library of {url.scheme}:// "
        "expects it, such as by variables of the environment: docs/data.md"
    )
