"""Packs a data set into few large files. Imports no TensorFlow."""

import errno
import fcntl
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tfunet.data.defects import Defect, DefectsError
from tfunet.data.opening import need
from tfunet.data.packed_facts import joined_facts, line_of, read_facts, wrong_files
from tfunet.data.packed_index import (
    CASES,
    INDEX,
    PLACES,
    UNITS,
    VERSION,
    PackedIndex,
    Unit,
    box_of,
    read_index,
)
from tfunet.data.packed_unit import write_unit
from tfunet.data.shards import CODEC, LEVEL, LIBRARIES
from tfunet.data.source import DataSource
from tfunet.files.arrays import write_arrays
from tfunet.files.atomic import PARTIAL, write_atomic, writing
from tfunet.files.regular import open_regular
from tfunet.files.typed import typed
from tfunet.machine.cores import usable_cores
from tfunet.record import as_recorded

LOCK = "lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def pack(
    source: DataSource,
    place: Path,
    *,
    command: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
    skip_bad: bool = False,
) -> PackedIndex:
    """Write a data set into a folder, from which `data = "packed"` reads it; return its index.

    It goes on with what is there. Any number of processes may pack into one folder at once: each
    writes units that no other writes, and all end when the data set is complete.

    Args:
        source: The data set.
        place: The folder.
        command: What packs it, for messages.
        progress: Gets (cases packed, cases in all).
        skip_bad: Leave out cases that cannot be read.

    Raises:
        ValueError: The folder holds something else, or another data set.
        DefectsError: Cases cannot be read, and `skip_bad` is not given; all others are packed.
        WriteError: A file cannot be written, as on a full disk.
    """
    need(*LIBRARIES, "zarr")
    source.check_images("tfunet data pack")
    _check_folder(place)
    defects: list[Defect] = []
    num_done, num_cases = 0, len(source.case_ids)
    with _locks(place) as locked, ThreadPoolExecutor(len(usable_cores())) as pool:
        with locked(num_cases, True):
            index = _begun(source, place, command)
        units = index.layout.units
        waiting = deque((unit, False) for unit in units)
        while waiting:
            unit, may_wait = waiting.popleft()
            with locked(unit.number, may_wait) as is_mine:
                if not _is_complete(place, unit):
                    if not is_mine:  # Another process writes it: wait for it after all others.
                        waiting.append((unit, True))
                        continue
                    defects += write_unit(source, index, place, unit, pool, skip_bad=skip_bad)
            num_done += len(unit.cases)
            progress(num_done, num_cases)
        if defects and not skip_bad:
            raise DefectsError(source.name, defects, source.found)
        with locked(num_cases, True):
            facts = joined_facts(
                [found for unit in units if (found := read_facts(unit.path(place)))]
            )
            for kind in sorted({name.partition("/")[0] for name in facts.sizes} - {PLACES}):
                write_atomic(place / kind / "zarr.json", _metadata(index, *index.kinds[kind]))
            write_arrays(place / CASES, facts.arrays, facts.to_json())
            for remnant in place.rglob(f"{PARTIAL}*"):  # Killed processes left them.
                remnant.unlink(missing_ok=True)
    return index


def _check_folder(place: Path) -> None:
    """Raise ValueError for a folder that holds something else."""
    if not place.exists() or (place / INDEX).exists():
        return
    with writing(place):
        names = sorted(path.name for path in place.iterdir())
    # Another process may begin at this moment.
    others = [name for name in names if name != LOCK and not name.startswith(PARTIAL)]
    if others and not (place / INDEX).exists():
        raise ValueError(
            f"{place} holds {', '.join(others[:5])}, and no packed data set. Name another folder."
        )


def _begun(source: DataSource, place: Path, command: str) -> PackedIndex:
    """Return the index in the folder of a data set; write it first if it is not there."""
    there = read_index(place)
    index = _index_of(source, there.shapes if there else _shapes(source), command)
    if there is None:
        write_atomic(place / INDEX, json.dumps(as_recorded(asdict(index))))
    elif replace(there, command=command) != index:
        raise ValueError(
            f"{place} holds another data set ({there.name!r}), or this one with other files or "
            "options. Name another folder, or remove it."
        )
    with writing(place):
        (place / UNITS).mkdir(exist_ok=True)
    return there or index


def _shapes(source: DataSource) -> tuple[tuple[int, ...], ...]:
    """Return the spatial shapes of all cases; those that no header tells by reading the cases."""
    if source.shapes:
        return tuple(tuple(map(int, shape)) for shape in source.shapes)
    shapes = []
    for index in range(len(source.case_ids)):
        shape = (1,) * len(source.patch)
        with suppress(ValueError, OSError):  # Whoever packs the case says what is wrong.
            shape = source.read_case(index)[1].shape
        shapes.append(shape)
    return tuple(shapes)


def _index_of(source: DataSource, shapes: tuple[tuple[int, ...], ...], command: str) -> PackedIndex:
    """Return what is said of a data set, as it is when it is read from index.json again."""
    box, shard_boxes = box_of(shapes, source.channels)
    plain = {
        name: getattr(source, name)
        for name in PackedIndex.__annotations__
        if name in DataSource.__annotations__ and name not in ("warnings", "root", "shapes")
    }
    given = {
        **plain,
        "version": VERSION,
        "root": str(source.root.resolve()),
        "shapes": shapes,
        "warnings": [line_of(warning) for warning in source.warnings],
        "left_out": [line_of(defect) for defect in source.defects],
        "box": box,
        "shard_boxes": shard_boxes,
        "has_objects": _has_objects(source, shapes),
        "command": command,
    }
    return typed(json.loads(json.dumps(as_recorded(given))), PackedIndex)


def _has_objects(source: DataSource, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether masks tell objects apart: what the first case says that can be read."""
    for index, shape in enumerate(shapes):
        with suppress(ValueError, OSError):
            return source.objects(index, shape) is not None
    return False


def _metadata(index: PackedIndex, shape: Sequence[int], dtype: str) -> str:
    """Return zarr.json of an array of boxes of this shape."""
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec
    from zarr.storage import MemoryStore

    array: Any = zarr.create_array(
        store=MemoryStore(),
        shape=(index.layout.num_shards * index.shard_boxes, *shape),
        chunks=(1, *shape),
        shards=(index.shard_boxes, *shape),
        dtype=dtype,
        compressors=[BloscCodec(cname=CODEC, clevel=LEVEL), Crc32cCodec()],
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=0,
    )
    return json.dumps(array.metadata.to_dict(), indent=1)


def _is_complete(place: Path, unit: Unit) -> bool:
    """Whether all files of a unit are there, as long as they were when they were written."""
    facts = read_facts(unit.path(place))
    return facts is not None and not any(wrong_files(place, facts.sizes))


@contextmanager
def _locks(place: Path) -> Iterator[Callable[[int, bool], Any]]:
    """Yield a function of (number, whether to wait) that locks a unit, or all, for a block.

    The block gets whether it has the lock. A number is a byte of one file, which the kernel frees
    when its process ends. Where a file system has no locks, all have it: two processes may write
    the same files, and the later ones stay.
    """
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        file = open_regular(place / LOCK, os.O_RDWR | os.O_CREAT)

    @contextmanager
    def locked(number: int, may_wait: bool) -> Iterator[bool]:
        is_mine = True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if may_wait else fcntl.LOCK_NB), 1, number)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                is_mine = False
            elif error.errno not in NO_LOCKS:
                raise
        try:
            yield is_mine
        finally:
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_UN, 1, number)

    try:
        yield locked
    finally:
        os.close(file)
