"""The cache of decoded cases on disk: finds, locks and builds it. Imports no TensorFlow."""

import errno
import fcntl
import hashlib
import json
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from tfunet.data.cache_eviction import INDEX, LOCK, UNFINISHED, hold, limit_bytes
from tfunet.data.cache_writer import write_cases
from tfunet.data.cached_cases import CachedCases, cached_cases
from tfunet.data.case_signs import CaseSigns
from tfunet.data.source import DataSource
from tfunet.files.atomic import WriteError
from tfunet.files.home import expand_home
from tfunet.files.regular import open_regular
from tfunet.files.typed import Count, RecordError, read_json

FORMAT_VERSION = 5
LOCK_SECONDS = 0.2
VARIABLE = "TFUNET_CACHE"


@dataclass(frozen=True)
class StoredSigns:
    """What index.json holds of a case; see `CaseSigns`."""

    content: str
    constant: list[Count]
    notes: list[tuple[str, str, str]]
    label_pixels: list[Count]
    ends: list[float]


@dataclass(frozen=True)
class Index:
    """What index.json holds; where it holds anything else, the cases are decoded anew."""

    extents: list[list[Count]]
    foreground: list[list[Count]]
    signs: list[StoredSigns]
    defects: dict[Count, str]


def default_folder() -> Path:
    """Return $TFUNET_CACHE, else ~/.cache/tfunet."""
    return expand_home(os.environ.get(VARIABLE) or "~/.cache/tfunet")


def cache_folder(given: str | None) -> Path:
    """Return `cache_dir` with `~` and environment variables expanded; by default `default_folder`.

    Raises ValueError for a variable that is not set.
    """
    if not given:
        return default_folder()
    folder = expand_home(os.path.expandvars(given))
    if "$" in str(folder) and not folder.is_dir():
        raise ValueError(f"cache_dir={given!r} names an environment variable that is not set.")
    return folder


def check_cache(given: str | None) -> None:
    """Raise ValueError for a `cache_dir`, or a limit of the cache, that cannot be used."""
    limit_bytes()
    folder = cache_folder(given)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(
            f"The folder of the cache, {str(folder)!r}, cannot be made: {str(there)!r} is a file. "
            "Choose another cache_dir."
        )


def build_cache(
    source: DataSource,
    folder: Path | None = None,
    *,
    patch: tuple[int, ...],
    progress: Callable[[int, int], None] | None = None,
    alive: Callable[[], None] = lambda: None,
    skip_bad: bool = False,
) -> CachedCases:
    """Return the source's cases from the cache; decode them first if they are not there.

    Any number of processes may call this at once: one decodes, with a thread on each of its cores,
    and the others wait. The files stay in the cache as long as the returned object lives.

    Args:
        source: The data set.
        folder: Folder of the cache; by default that of `default_folder`.
        patch: Smaller cases are padded to this spatial shape.
        progress: Gets (cases done, cases in all) after each decoded case.
        alive: Called once in a while, also while another process decodes.
        skip_bad: Leave out cases that cannot be used.

    Raises:
        ValueError: Cases cannot be used, and `skip_bad` is not given; the message lists them.
        WriteError: The folder cannot be read or written: no permission, a full disk, or the cache's
            limit is reached and nothing more can be removed (`tfunet.data.cache_eviction`).
    """
    home = (folder or default_folder()) / cache_key(source, patch)
    try:
        held = hold(home)
        try:
            cases = _load(home, source, patch, skip_bad)
            if cases is None:
                with _lock(home / LOCK, alive):
                    # Another process may have decoded while this one waited.
                    cases = _load(home, source, patch, skip_bad)
                    cases = cases or write_cases(home, source, patch, progress, alive, skip_bad)
        except BaseException:
            held.close()
            raise
        weakref.finalize(cases, held.close)
        return cases
    except OSError as error:
        write_error = WriteError(
            f"The cache of decoded cases in {home} cannot be used: {error.strerror or error}. "
            f"Make it writable, free some space there, or name another folder with --cache_dir "
            f"or ${VARIABLE}."
        )
        write_error.errno = error.errno
        raise write_error from error


def cache_key(source: DataSource, patch: tuple[int, ...]) -> str:
    """Return the name of the folder in which the source's cases are cached."""
    parts = [
        FORMAT_VERSION,
        source.fingerprint,
        source.num_classes,
        source.channels,
        source.case_ids,
        patch,
    ]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name)[:40]
    return f"{name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _load(
    home: Path, source: DataSource, patch: tuple[int, ...], skip_bad: bool
) -> CachedCases | None:
    """Return the cases of an earlier build, if it is complete and its defects may be skipped."""
    try:
        index = read_json(home / INDEX, Index)
        if index is None or not _is_of(index, source, patch):
            return None
        if index.defects and not skip_bad:
            return None
        extents, counts = index.extents, index.foreground
        signs = [CaseSigns.from_json(asdict(case)) for case in index.signs]
        cases = cached_cases(home, source, patch, extents, counts, signs, index.defects)
        # A user may have removed a file, or a full disk may have cut it off.
        image_bytes = cases.image_path.stat().st_size
        mask_bytes = cases.mask_path.stat().st_size
        foreground_bytes = cases.foreground_path.stat().st_size
    except (FileNotFoundError, RecordError):
        return None
    voxels = cases.num_voxels
    sizes = (voxels * cases.channels * 4, voxels, cases.num_foreground * 8)
    return cases if (image_bytes, mask_bytes, foreground_bytes) == sizes else None


def _is_of(index: Index, source: DataSource, patch: tuple[int, ...]) -> bool:
    """Whether the index has every case of the data set, with as many axes and classes."""
    num_cases = len(source.case_ids)
    return (
        len(index.extents) == len(index.foreground) == len(index.signs) == num_cases
        and all(len(extent) == len(patch) for extent in index.extents)
        and len({len(counts) for counts in index.foreground}) == 1
        and all(
            len(case.label_pixels) == len(counts) + 1
            for case, counts in zip(index.signs, index.foreground, strict=True)
        )
        and all(case < num_cases for case in index.defects)
    )


def _take_lock(file: BinaryIO) -> bool:
    """Lock a file, and return whether that worked; False where another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _lock(path: Path, alive: Callable[[], None]) -> Iterator[None]:
    """Wait until no other process builds here; the kernel frees the lock of one that dies."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        try:
            while not _take_lock(file):
                alive()
                time.sleep(LOCK_SECONDS)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            # This file system has no locks: each process decodes into files of its own.
        else:
            for pattern in UNFINISHED:
                for remnant in path.parent.glob(pattern):
                    remnant.unlink(missing_ok=True)
        yield
