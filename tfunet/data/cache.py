"""The cache of decoded cases on disk: finds, locks and builds it. Imports no TensorFlow."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tfunet.config.data_keys import AUTO, DECODED, FILES
from tfunet.data.cache_eviction import LOCK, hold
from tfunet.data.cached_cases import CachedCases
from tfunet.data.case_store import CaseStore, DecodedStore, FileStore, case_log, take_lock
from tfunet.data.defects import SHOWN_DEFECTS, defect_of, lines_by_cause
from tfunet.data.formats.claims import check_growth
from tfunet.data.source import DataSource
from tfunet.data.stored_case import BadCaseError, look_at
from tfunet.files.atomic import WriteError
from tfunet.files.home import CACHE_VARIABLE, cache_home, expand_home, limit_bytes
from tfunet.files.regular import open_regular

FORMAT_VERSION = 6
LOCK_SECONDS = 0.2
# Smaller data sets are decoded before the first step unless all of their cases are known.
WHOLE_BYTES = 2**30


def cache_folder(given: str | None) -> Path:
    """Return `cache_dir` with `~` and environment variables expanded; by default `cache_home`.

    Raises ValueError for a variable that is not set.
    """
    if not given:
        return cache_home()
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
    store: str = DECODED,
    whole: bool = True,
    progress: Callable[[int, int], None] | None = None,
    alive: Callable[[], None] = lambda: None,
    skip_bad: bool = False,
) -> CachedCases:
    """Return the source's cases, and decode them into the cache if they are not there.

    Any number of processes may call this at once: one decodes, with a thread on each of its cores,
    and the others wait. The files stay in the cache as long as the returned object lives.

    Args:
        source: The data set.
        folder: Folder of the cache; by default that of `cache_home`.
        patch: Smaller cases are padded to this spatial shape.
        store: One of STORES.
        whole: Whether to wait until all cases are decoded. If not, they may be read while the rest
            is decoded, where they are known to be of use, or `skip_bad` says what to do.
        progress: Gets (cases done, cases in all) after each decoded case.
        alive: Called once in a while, also while another process decodes.
        skip_bad: Leave out cases that cannot be used.

    Raises:
        ValueError: Cases cannot be used, and `skip_bad` is not given; the message lists them.
        WriteError: The folder cannot be read or written: no permission, a full disk, or the cache's
            limit is reached and nothing more can be removed (`tfunet.data.cache_eviction`).
    """
    home = (folder or cache_home()) / cache_key(source)
    for shape in set(source.shapes):
        _check_patch(shape, patch)
    if store != DECODED and source.own_store is not None:
        return _cases(source, patch, source.own_store(), skip_bad)
    if store == AUTO:
        store = _chosen(source, home.parent)
    try:
        held = hold(home)
        try:
            cases = _opened(source, home, patch, store, whole, progress, alive, skip_bad)
        except BaseException:
            held.close()
            raise
        weakref.finalize(cases, held.close)
        return cases
    except OSError as error:
        write_error = WriteError(
            f"The cache of decoded cases in {home} cannot be used: {error.strerror or error}. "
            f"Make it writable, free some space there, name another folder with --cache_dir or "
            f"${CACHE_VARIABLE}, or read the files themselves: store = {FILES!r}."
        )
        write_error.errno = error.errno
        raise write_error from error


def _opened(
    source: DataSource,
    home: Path,
    patch: tuple[int, ...],
    store: str,
    whole: bool,
    progress: Callable[[int, int], None] | None,
    alive: Callable[[], None],
    skip_bad: bool,
) -> CachedCases:
    if store == FILES:
        if not source.shapes:
            raise ValueError(
                f"store = {FILES!r} needs the shape of each case before it is read, and the data "
                f"set {source.name!r} does not say them. Leave it out."
            )
        log = case_log(source, home)
        if not skip_bad:
            log.forget_defects()
        return _cases(source, patch, FileStore(source, log), skip_bad)
    decoded = DecodedStore(source, home, alive)
    if not skip_bad:
        decoded.log.forget_defects()
    is_large = sum(map(math.prod, source.shapes)) * source.channels * 4 > WHOLE_BYTES
    is_sure = decoded.is_known or (skip_bad and is_large)
    if decoded.missing() and (whole or not source.shapes or not is_sure):
        with _lock(home / LOCK, alive) as has_lock:
            if not has_lock:
                # This file system has no locks: each process decodes into files of its own.
                home = home.with_name(f"{home.name}-{uuid.uuid4().hex[:8]}")
                home.mkdir()
            # Another process may have decoded while this one waited.
            decoded = DecodedStore(source, home, alive)
            if not skip_bad:
                decoded.log.forget_defects()
            bad = decoded.write(decoded.missing(), progress)
        if bad and not skip_bad:
            raise ValueError(_listing(source, bad))
    return _cases(source, patch, decoded, skip_bad)


def _cases(
    source: DataSource, patch: tuple[int, ...], store: CaseStore, skip_bad: bool
) -> CachedCases:
    facts = store.log.facts
    extents = [
        source.shapes[case] if known is None else known.extent for case, known in enumerate(facts)
    ]
    for shape in set(extents):
        _check_patch(shape, patch)
    return CachedCases(
        store=store,
        case_ids=source.case_ids,
        num_classes=source.num_classes,
        channels=source.channels,
        extents=tuple(extents),
        patch=patch,
        around=source.label_around,
        skip_bad=skip_bad,
        targets=tuple(zip(*source.targets.values(), strict=True)),
    )


def _check_patch(shape: tuple[int, ...], patch: tuple[int, ...]) -> None:
    if math.prod(shape):
        check_growth(shape, tuple(map(max, shape, patch)), f"patch = {list(patch)}")


def _chosen(source: DataSource, folder: Path) -> str:
    """Return how to read cases: from their files where a copy would have no room."""
    least = sum(map(math.prod, source.shapes)) * source.channels
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return FILES if least > min(limit_bytes(), shutil.disk_usage(there).free) else DECODED


def _listing(source: DataSource, bad: Mapping[int, BadCaseError]) -> str:
    """Return what is wrong with cases, a line for each cause."""
    defects = [
        defect_of(error.cause, source.case_ids[case], source.root) for case, error in bad.items()
    ]
    lines = lines_by_cause(defects)
    more = len(lines) - SHOWN_DEFECTS
    rest = f"\n  and {more} more" if more > 0 else ""
    return (
        f"{len(defects)} of {len(source.case_ids)} cases of the data set {source.name!r} cannot be "
        "used. Correct or remove their files:"
        + "".join(f"\n  {line}" for line in lines[:SHOWN_DEFECTS])
        + rest
    )


@contextmanager
def noting_cases(source: DataSource, folder: Path | None = None) -> Iterator[Callable[[int], None]]:
    """Yield what looks at a case, and notes what it shows for runs, which then need not wait until
    all cases are decoded.

    A cache that cannot be written is the run's concern, and so is a case of no use.
    """
    home = (folder or cache_home()) / cache_key(source)
    try:
        held = hold(home) if source.own_store is None else None
    except OSError:
        held = None
    if held is None:
        yield lambda case: None
        return
    log = case_log(source, home)
    log.forget_defects()

    def note(case: int) -> None:
        if log.facts[case] is None:
            with suppress(OSError, BadCaseError):
                log.add(case, *look_at(source, case))

    with held:
        yield note
        with suppress(OSError):
            log.publish()


def cache_key(source: DataSource) -> str:
    """Return the name of the folder in which the source's cases are cached."""
    parts = [
        FORMAT_VERSION,
        source.fingerprint,
        source.num_classes,
        source.channels,
        source.case_ids,
        len(source.patch),
    ]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name)[:40]
    return f"{name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


@contextmanager
def _lock(path: Path, alive: Callable[[], None]) -> Iterator[bool]:
    """Wait until no other process builds here; the kernel frees the lock of one that dies.

    Yields whether the file system has locks.
    """
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        try:
            while not take_lock(file):
                alive()
                time.sleep(LOCK_SECONDS)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            yield False
        else:
            yield True
