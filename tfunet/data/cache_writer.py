"""Decodes the cases of a data source into the files of the cache. Imports no TensorFlow."""

import json
import math
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tfunet.data.cache_eviction import CONTENT, INDEX, CacheRoom
from tfunet.data.cached_cases import CachedCases, cached_cases
from tfunet.data.case_signs import CaseSigns, SignsReader
from tfunet.data.defects import SHOWN_DEFECTS, Defect, defect_of, lines_by_cause
from tfunet.data.foreground import ForegroundVoxels
from tfunet.data.formats.claims import check_growth
from tfunet.data.source import CaseParts, DataSource
from tfunet.geometry.windows import padding_before
from tfunet.machine.cores import usable_cores

Rows = tuple[memoryview, memoryview]  # Bytes of the image, and of the mask.


def write_cases(
    home: Path,
    source: DataSource,
    patch: tuple[int, ...],
    progress: Callable[[int, int], None] | None,
    alive: Callable[[], None],
    skip_bad: bool,
) -> CachedCases:
    """Decode all cases into the folder `home`; arguments and errors are those of `build_cache`."""
    total = len(source.case_ids)
    extents: list[tuple[int, ...]] = []
    counts: list[list[int]] = []
    all_signs: list[CaseSigns] = []
    defects: dict[int, str] = {}
    listed: list[Defect] = []
    room = CacheRoom(home)

    decode = partial(_decoded, source, patch)
    with _replacing(*(home / name for name in CONTENT)) as (images, masks, foreground):

        def write(rows: Iterable[Rows]) -> None:
            for image, mask in rows:
                alive()
                room.take(image.nbytes + mask.nbytes)
                images.write(image)
                masks.write(mask)

        for index, case in enumerate(_in_threads(decode, total)):
            starts = images.tell(), masks.tell()
            try:
                extent, rows, seen = case.result()
                write(rows)
            except _BadCaseError as error:
                defects[index] = str(error)
                listed.append(defect_of(error.cause, source.case_ids[index], source.root))
                # Cut off what was written of it; a case without voxels takes its place.
                for file, start in zip((images, masks), starts, strict=True):
                    file.seek(start)
                    file.truncate()
                extent = (0,) * len(patch)
                seen = _Seen(source, extent)
                write(_padded_rows(source, CaseParts(shape=extent, parts=iter(())), patch, seen))
            extents.append(extent)
            all_signs.append(seen.pixels.signs(source.notes(index)))
            voxels_by_label = seen.voxels.places()
            stored = b"".join(places.astype("<i8").tobytes() for places in voxels_by_label)
            room.take(len(stored))
            foreground.write(stored)
            counts.append(list(map(len, voxels_by_label)))
            if progress is not None:
                progress(index + 1, total)
        if defects and not skip_bad:
            raise ValueError(_listing(source, listed))
    with _replacing(home / INDEX) as (index_file,):
        content: dict[str, Any] = {"data": source.name, "extents": extents, "foreground": counts}
        content["signs"] = [signs.to_json() for signs in all_signs]
        index_file.write(json.dumps({**content, "defects": defects}).encode())
    return cached_cases(home, source, patch, extents, counts, all_signs, defects)


def _decoded(
    source: DataSource, patch: tuple[int, ...], index: int
) -> tuple[tuple[int, ...], Iterable[Rows], "_Seen"]:
    """Decode a case, but only start on one that comes in parts."""
    with _blaming_the_case():
        case = source.read_parts(index)
        if case is not None:
            seen = _Seen(source, case.shape)
            return case.shape, _padded_rows(source, case, patch, seen), seen
        image, mask = source.read_case(index)
    case = CaseParts(shape=mask.shape, parts=iter([(image, mask)]))
    seen = _Seen(source, case.shape)
    return case.shape, list(_padded_rows(source, case, patch, seen)), seen


class _Seen:
    """What is kept of a case beside its pixels."""

    def __init__(self, source: DataSource, shape: tuple[int, ...]) -> None:
        self.voxels = ForegroundVoxels(source.num_classes)
        self.pixels = SignsReader(shape, source.channels, source.num_classes)


class _BadCaseError(Exception):
    """A case cannot be used; the cache itself is fine."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _blaming_the_case() -> Iterator[None]:
    # A reader may raise OSError: then the case's file is at fault, not the cache.
    try:
        yield
    except (ValueError, OSError) as error:
        raise _BadCaseError(error) from error


def _in_threads(function: Callable[[int], Any], count: int) -> Iterator[Future]:
    """Yield the futures of function(0)..function(count - 1) in order, running a few ahead."""
    # Decoders in C let the other threads run. Few cases are in memory at a time.
    num_threads = len(usable_cores())
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


def _padded_rows(
    source: DataSource, case: CaseParts, patch: tuple[int, ...], seen: _Seen
) -> Iterator[Rows]:
    """Yield the bytes of a case's rows, checked, and padded to at least `patch`.

    An image is padded with zeros, a mask with `label_around`. Adds them to `seen`. Raises
    _BadCaseError.
    """
    around = source.label_around
    rank = len(patch)
    if math.prod(case.shape):  # No case is to blame: the patch is the same for all.
        check_growth(case.shape, tuple(map(max, case.shape, patch)), f"patch = {list(patch)}")

    def to_bytes(image: np.ndarray, mask: np.ndarray) -> Rows:
        seen.voxels.add(mask)
        return image.data.cast("B"), mask.data.cast("B")

    def padding(rows: int) -> Rows:
        shape = (rows, *map(max, case.shape[1:], patch[1:]))
        return to_bytes(np.zeros((*shape, source.channels), "<f4"), np.full(shape, around, "u1"))

    (before,) = padding_before(case.shape[:1], patch[:1])
    after = max(patch[0] - case.shape[0], 0) - before
    with _blaming_the_case():
        if before:
            yield padding(before)
        for image, mask in case.parts:
            _check_part(source, image, mask, rank=rank)
            seen.pixels.add(image, mask)
            yield to_bytes(
                _padded(image, (0, *patch[1:], source.channels), "<f4"),
                _padded(mask, (0, *patch[1:]), "u1", around),
            )
        if after:
            yield padding(after)


def _check_part(source: DataSource, image: np.ndarray, mask: np.ndarray, *, rank: int) -> None:
    """Raise ValueError for a case, or a part of one, that training cannot use."""
    if image.ndim != rank + 1 or image.shape[-1] != source.channels or not image.size:
        raise ValueError(
            f"the image has shape {image.shape}; expected {rank} spatial axes for the patch and "
            f"{source.channels} channels."
        )
    if mask.shape != image.shape[:-1]:
        raise ValueError(
            f"the mask has shape {mask.shape}, its image {image.shape[:-1]}; they must agree."
        )
    if not np.isfinite(image).all():
        raise ValueError("the image has pixels that are NaN or infinite; replace them.")
    if mask.dtype.kind not in "bui":
        raise ValueError(f"the mask has type {mask.dtype}; labels must be integers.")
    labels = mask if source.ignored is None else np.where(mask == source.ignored, 0, mask)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= source.num_classes:
        raise ValueError(
            f"the mask has labels {low}..{high}; allowed: 0..{source.num_classes - 1}."
        )


def _padded(array: np.ndarray, shape: tuple[int, ...], dtype: str, value: int = 0) -> np.ndarray:
    """Return an array, centred in `value` along the axes where it is smaller than `shape`."""
    needed = tuple(map(max, array.shape, shape))
    if needed == array.shape:
        return np.ascontiguousarray(array, dtype)
    padded = np.full(needed, value, dtype)
    starts = padding_before(array.shape, shape)
    inside = tuple(
        slice(start, start + size) for start, size in zip(starts, array.shape, strict=True)
    )
    padded[inside] = array
    return padded


def _listing(source: DataSource, defects: Sequence[Defect]) -> str:
    """Return what is wrong with cases, a line for each cause."""
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
def _replacing(*paths: Path) -> Iterator[Sequence[BinaryIO]]:
    """Open files that get their names only when all of them are complete."""
    # Unique names: where the file system has no locks, several processes may write at once.
    temporary = [path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp") for path in paths]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("xb")) for path in temporary]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for written, path in zip(temporary, paths, strict=True):
            os.replace(written, path)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
