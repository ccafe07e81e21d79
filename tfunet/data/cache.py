"""Decoded cases on disk, read at random without Python in the way. Imports no TensorFlow.

All images lie one after another in one raw file, all masks in a second, so that any part of any
case can be mapped into memory. The processes of a machine share the pages; nothing is copied
until a patch is cut out.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfunet.data.cache_eviction import INDEX, LOCK, Room, hold
from tfunet.data.foreground import ForegroundVoxels
from tfunet.data.source import CaseParts, DataSource
from tfunet.files.atomic import WriteError
from tfunet.geometry.windows import padding_before

FORMAT_VERSION = 2
SHOWN_DEFECTS = 20
LOCK_SECONDS = 0.2
VARIABLE = "TFUNET_CACHE"
Rows = tuple[memoryview, memoryview]  # of the image and of the mask


@dataclass(frozen=True, kw_only=True)
class CachedCases:
    """Cases as they lie in the cache's two files.

    Args:
        image_path: float32 little-endian (*spatial, channels), case after case.
        mask_path: uint8 (*spatial), case after case.
        case_ids: As in the source.
        num_classes: As in the source.
        channels: As in the source.
        extents: Spatial shape of each case as it was read.
        patch: What the cases were padded to, at least.
        foreground_path: int64 little-endian: places in its case of voxels of each label from 1
            on, case after case; see `tfunet.data.foreground`.
        foreground_counts: How many there are, for each case and label from 1 on.
        defects: Case index to what is wrong with it, for those that were skipped; such a case
            has no extent.
    """

    image_path: Path
    mask_path: Path
    case_ids: tuple[str, ...]
    num_classes: int
    channels: int
    extents: tuple[tuple[int, ...], ...]
    patch: tuple[int, ...]
    foreground_path: Path
    foreground_counts: tuple[tuple[int, ...], ...]
    defects: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Spatial shape of each case in the cache: at least `patch`."""
        return tuple(tuple(map(max, extent, self.patch)) for extent in self.extents)

    @cached_property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """Voxel of each case in the cache at which the case as it was read begins."""
        return tuple(padding_before(extent, self.patch) for extent in self.extents)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Voxels in front of each case in the files, and in front of their ends."""
        return tuple(accumulate(map(prod, self.shapes), initial=0))

    @property
    def num_voxels(self) -> int:
        """Voxels of all cases in the cache."""
        return self.offsets[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return self.num_voxels * (self.channels * 4 + 1) + self.num_foreground * 8

    @property
    def num_foreground(self) -> int:
        """Foreground voxels whose places are kept."""
        return sum(map(sum, self.foreground_counts))


def default_folder() -> Path:
    """Return $TFUNET_CACHE, else ~/.cache/tfunet."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/tfunet").expanduser()


def build_cache(
    source: DataSource,
    folder: Path | None = None,
    *,
    patch: tuple[int, ...],
    progress: Callable[[int, int], None] | None = None,
    alive: Callable[[], None] = lambda: None,
    skip_bad: bool = False,
) -> CachedCases:
    """Return the source's cases from the cache, decoding each once if they are not there.

    Any number of processes may call it at once: one decodes, with a thread on each of its cores,
    and the others wait. What it returns stays in the cache as long as it lives. `progress` gets
    (cases done, cases in all) after each case that is decoded, and `alive` is called once in a
    while, also while another process decodes.

    Raises:
        ValueError: Cases cannot be used, and `skip_bad` is not given; the message lists them.
        WriteError: The folder cannot be read or written: no permission, a full disk, or the cache's
            limit (`tfunet.data.cache_eviction`) without another data set that could go.
    """
    home = (folder or default_folder()) / _key(source, patch)
    try:
        held = hold(home)
        try:
            cases = _load(home, source, patch, skip_bad)
            if cases is None:
                with _lock(home / LOCK, alive):
                    # Another process may have decoded while this one waited.
                    cases = _load(home, source, patch, skip_bad)
                    cases = cases or _build(home, source, patch, progress, alive, skip_bad)
        except BaseException:
            held.close()
            raise
        weakref.finalize(cases, held.close)
        return cases
    except OSError as error:
        wrong = WriteError(
            f"The cache of decoded cases in {home} cannot be used: {error.strerror or error}. "
            f"Make it writable, free some space there, or name another folder with --cache_dir "
            f"or ${VARIABLE}."
        )
        wrong.errno = error.errno
        raise wrong from error


def _key(source: DataSource, patch: tuple[int, ...]) -> str:
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


def _cases(
    home: Path,
    source: DataSource,
    patch: tuple[int, ...],
    extents: Sequence[Sequence[int]],
    counts: Sequence[Sequence[int]],
    defects: Mapping[int, str],
) -> CachedCases:
    return CachedCases(
        image_path=home / "images.bin",
        mask_path=home / "masks.bin",
        case_ids=source.case_ids,
        num_classes=source.num_classes,
        channels=source.channels,
        extents=tuple(map(tuple, extents)),
        patch=patch,
        foreground_path=home / "foreground.bin",
        foreground_counts=tuple(map(tuple, counts)),
        defects=defects,
    )


def _load(
    home: Path, source: DataSource, patch: tuple[int, ...], skip_bad: bool
) -> CachedCases | None:
    """Return what an earlier build left, if it is whole, and without defects or to skip them."""
    try:
        index = json.loads((home / INDEX).read_text())
        defects = {int(key): what for key, what in index["defects"].items()}
        if defects and not skip_bad:
            return None
        cases = _cases(home, source, patch, index["extents"], index["foreground"], defects)
        # Somebody may have removed a file by hand, or a full disk may have cut it.
        image_bytes = cases.image_path.stat().st_size
        mask_bytes = cases.mask_path.stat().st_size
        foreground_bytes = cases.foreground_path.stat().st_size
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    voxels = cases.num_voxels
    whole = image_bytes == voxels * cases.channels * 4 and mask_bytes == voxels
    return cases if whole and foreground_bytes == cases.num_foreground * 8 else None


def _build(
    home: Path,
    source: DataSource,
    patch: tuple[int, ...],
    progress: Callable[[int, int], None] | None,
    alive: Callable[[], None],
    skip_bad: bool,
) -> CachedCases:
    total = len(source.case_ids)
    extents: list[tuple[int, ...]] = []
    counts: list[list[int]] = []
    defects: dict[int, str] = {}
    room = Room(home)

    def opened(index: int) -> tuple[tuple[int, ...], Iterable[Rows], ForegroundVoxels]:
        """Decode a case; of one that comes in parts, only begin to."""
        voxels = ForegroundVoxels(source.num_classes)
        with _of_the_case():
            case = source.read_parts(index)
            if case is not None:
                return case.shape, _padded_rows(source, case, patch, voxels), voxels
            case = _whole(*source.read(index))
        return case.shape, list(_padded_rows(source, case, patch, voxels)), voxels

    names = ("images.bin", "masks.bin", "foreground.bin")
    with _replacing(*(home / name for name in names)) as (images, masks, foreground):

        def write(rows: Iterable[Rows]) -> None:
            for image, mask in rows:
                alive()
                room.take(image.nbytes + mask.nbytes)
                images.write(image)
                masks.write(mask)

        for index, case in enumerate(_in_threads(opened, total)):
            begins = images.tell(), masks.tell()
            try:
                extent, rows, voxels = case.result()
                write(rows)
            except _BadCaseError as error:
                defects[index] = str(error)
                # What was written of it goes; a case without voxels stands in its place.
                for file, begin in zip((images, masks), begins, strict=True):
                    file.seek(begin)
                    file.truncate()
                extent, voxels = (0,) * len(patch), ForegroundVoxels(source.num_classes)
                write(_padded_rows(source, CaseParts(shape=extent, parts=iter(())), patch, voxels))
            extents.append(extent)
            places = voxels.places()
            kept = np.concatenate(places).astype("<i8").tobytes()
            room.take(len(kept))
            foreground.write(kept)
            counts.append([len(one) for one in places])
            if progress is not None:
                progress(index + 1, total)
        if defects and not skip_bad:
            listed = [f"{source.case_ids[index]}: {what}" for index, what in defects.items()]
            raise ValueError(_listing(source.name, listed, total))
    with _replacing(home / INDEX) as (index_file,):
        content = {"data": source.name, "extents": extents, "foreground": counts}
        index_file.write(json.dumps({**content, "defects": defects}).encode())
    return _cases(home, source, patch, extents, counts, defects)


class _BadCaseError(Exception):
    """A case cannot be used; not that the cache cannot be written."""


@contextmanager
def _of_the_case() -> Iterator[None]:
    # A reader may let an OSError through: the file is the defect, not the cache.
    try:
        yield
    except (ValueError, OSError) as error:
        raise _BadCaseError(str(error)) from error


def _in_threads(function: Callable[[int], Any], count: int) -> Iterator[Future]:
    """Yield what function(0)..function(count - 1) come to, in order, a few of them ahead."""
    # A decoder in C lets the other threads run; few cases are in memory at a time.
    num_threads = len(os.sched_getaffinity(0))
    ahead: deque[Future] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for index in range(count):
                ahead.append(pool.submit(function, index))
                if len(ahead) > num_threads:
                    yield ahead.popleft()
            while ahead:
                yield ahead.popleft()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _whole(image: np.ndarray, mask: np.ndarray) -> CaseParts:
    return CaseParts(shape=mask.shape, parts=iter([(image, mask)]))


def _padded_rows(
    source: DataSource, case: CaseParts, patch: tuple[int, ...], voxels: ForegroundVoxels
) -> Iterator[Rows]:
    """Yield the bytes of a case's rows, checked, in zeros where it is smaller than `patch`.

    Raises _BadCaseError. The rows' foreground is added to `voxels`.
    """
    rank = len(patch)

    def done(image: np.ndarray, mask: np.ndarray) -> Rows:
        voxels.add(mask)
        return image.data.cast("B"), mask.data.cast("B")

    def empty(rows: int) -> Rows:
        shape = (rows, *map(max, case.shape[1:], patch[1:]))
        return done(np.zeros((*shape, source.channels), "<f4"), np.zeros(shape, "u1"))

    (before,) = padding_before(case.shape[:1], patch[:1])
    after = max(patch[0] - case.shape[0], 0) - before
    with _of_the_case():
        if before:
            yield empty(before)
        for image, mask in case.parts:
            _check_part(source, image, mask, rank=rank)
            yield done(
                _padded(image, (0, *patch[1:], source.channels), "<f4"),
                _padded(mask, (0, *patch[1:]), "u1"),
            )
        if after:
            yield empty(after)


def _check_part(source: DataSource, image: np.ndarray, mask: np.ndarray, *, rank: int) -> None:
    """Raise ValueError for a case, or a part of one, that no training could use."""
    if image.ndim != rank + 1 or image.shape[-1] != source.channels or not image.size:
        raise ValueError(
            f"the image has shape {image.shape}; expected {rank} spatial axes for the patch and "
            f"{source.channels} channels."
        )
    if mask.shape != image.shape[:-1]:
        raise ValueError(
            f"the mask has shape {mask.shape} and the image {image.shape[:-1]}; they must agree."
        )
    if not np.isfinite(image).all():
        raise ValueError("the image has pixels that are not finite (NaN or infinite).")
    if mask.dtype.kind not in "bui":
        raise ValueError(f"the mask has type {mask.dtype}; labels must be integers.")
    low, high = int(mask.min()), int(mask.max())
    if low < 0 or high >= source.num_classes:
        raise ValueError(
            f"the mask has labels {low}..{high}; allowed: 0..{source.num_classes - 1}."
        )


def _padded(array: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array, centred in zeros where it is smaller than `shape`."""
    needed = tuple(map(max, array.shape, shape))
    if needed == array.shape:
        return np.ascontiguousarray(array, dtype)
    padded = np.zeros(needed, dtype)
    starts = padding_before(array.shape, shape)
    inside = tuple(
        slice(start, start + size) for start, size in zip(starts, array.shape, strict=True)
    )
    padded[inside] = array
    return padded


def _listing(name: str, defects: list[str], total: int) -> str:
    shown = "".join(f"\n  {defect}" for defect in defects[:SHOWN_DEFECTS])
    more = len(defects) - SHOWN_DEFECTS
    rest = f"\n  and {more} more" if more > 0 else ""
    return (
        f"{len(defects)} of {total} cases of the data set {name!r} cannot be used. Mend or "
        f"remove them:{shown}{rest}"
    )


@contextmanager
def _replacing(*paths: Path) -> Iterator[Sequence[BinaryIO]]:
    """Open files that appear under their names only when all of them are whole."""
    # Names of their own: where the file system has no locks, several processes may be writing.
    temporary = [path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp") for path in paths]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(one.open("wb")) for one in temporary]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for one, path in zip(temporary, paths, strict=True):
            os.replace(one, path)
    finally:
        for one in temporary:
            one.unlink(missing_ok=True)


def _is_taken(file: BinaryIO) -> bool:
    """Take the lock of a file, unless another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _lock(path: Path, alive: Callable[[], None]) -> Iterator[None]:
    """Wait until no other process builds here; the system frees the lock of one that dies."""
    with path.open("ab") as file:
        try:
            while not _is_taken(file):
                alive()
                time.sleep(LOCK_SECONDS)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            # No locks on this file system: every process decodes, to files of its own.
        else:
            for left in path.parent.glob("*.tmp"):
                left.unlink(missing_ok=True)
        yield
