"""Local files that stand for those of a server: same names, sizes and times. No TensorFlow."""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfunet.files.remote_room import make_placeholder
from tfunet.files.server import Version
from tfunet.files.urls import is_path

STALE_SECONDS = 86400


def mirror(target: Path, found: Mapping[str, Version], partial: Path) -> list[str]:
    """Make a folder, or file, have what a server lists, and nothing else.

    Returns the names that no file can have.

    Args:
        target: The local place.
        found: Relative names to versions; "" is the place itself, as a file.
        partial: Folder on the same disk for what is not complete.
    """
    if set(found) == {""}:
        if target.is_dir():
            shutil.rmtree(target)
        _make_folder(target.parent)
        _put(target, found[""], _facts(target), partial)
        return []
    there = dict(_walk(target))
    folders: set[str] = {""}
    for name in found:
        parts = name.split("/")[:-1]
        folders.update("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    # "a" beside "a/b" cannot be a file, too; and not every name is one.
    names = {name for name in found if is_path(name) and name not in folders}
    for name in there.keys() - names:
        (target / name).unlink(missing_ok=True)
    for name in sorted(folders):
        if is_path(name):
            _make_folder(target / name if name else target)
    for name in names:
        _put(target / name, found[name], there.get(name), partial)
    return sorted(found.keys() - names)


def _put(path: Path, version: Version, facts: os.stat_result | None, partial: Path) -> None:
    if facts is not None and version.is_stamped(facts):
        return
    if facts is None:
        with contextlib.suppress(FileExistsError):
            make_placeholder(path, version.num_bytes, version.stamp)
            return
    new = new_file(partial)
    make_placeholder(new, version.num_bytes, version.stamp)
    os.replace(new, path)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        for parent in (path, *path.parents):
            if parent.is_file():
                parent.unlink()
        path.mkdir(parents=True, exist_ok=True)


def _walk(path: Path, start: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a folder, by their relative names."""
    try:
        entries = list(os.scandir(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = f"{start}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{name}/")
        else:
            yield name, entry.stat(follow_symlinks=False)


def _facts(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.lstat(path)
    return None


def new_file(partial: Path) -> Path:
    """Return a path that nobody has."""
    partial.mkdir(parents=True, exist_ok=True)
    return partial / f"{os.getpid()}-{secrets.token_hex(6)}"


def clean(partial: Path) -> None:
    """Remove what processes left that were killed while they fetched."""
    for path in partial.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
