"""Writes the cases of a unit of a packed data set into its shards. Imports no TensorFlow."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Self, final

import numpy as np

from tfunet.data.defects import Defect, defect_of
from tfunet.data.packed_facts import packed_facts
from tfunet.data.packed_index import MASKS, OBJECTS, PLACES, PackedIndex, Unit, image_kind
from tfunet.data.shards import ShardWriter, blob_of, shard_name
from tfunet.data.source import DataSource, StoredCase
from tfunet.data.stored_case import (
    FLOAT,
    BadCaseError,
    CaseFacts,
    Sink,
    look_at,
    mask_bits,
    unpack_mask,
)
from tfunet.files.arrays import write_arrays
from tfunet.files.atomic import replacing, writing
from tfunet.files.regular import open_regular
from tfunet.machine.cores import usable_cores

# Takes a box: its number in its case, the array that it belongs to, and its blob.
Put = Callable[[int, str, bytes | None], None]
Boxes = list[tuple[int, str, bytes | None]]
Known = tuple[CaseFacts | Defect, list[np.ndarray]]


def write_unit(
    source: DataSource,
    index: PackedIndex,
    place: Path,
    unit: Unit,
    pool: ThreadPoolExecutor,
    *,
    skip_bad: bool,
) -> list[Defect]:
    """Write a unit, and return what is wrong with its cases; then it is complete if `skip_bad`."""
    known: dict[int, Known] = {}
    with _Shards(place, index) as shards:
        if unit.is_alone:  # Too large to be in memory.
            first = index.layout.first_boxes[unit.first]

            def put(number: int, kind: str, blob: bytes | None) -> None:
                shards.put(first + number, kind, blob)

            known[unit.first] = _pack_case(source, index, unit.first, shards.restart, put)
        else:
            jobs = (pool.submit(_boxes_of, source, index, case) for case in unit.cases)
            for case, job in zip(unit.cases, _ahead(jobs), strict=True):
                boxes, known[case] = job.result()
                for number, kind, blob in boxes:
                    shards.put(index.layout.first_boxes[case] + number, kind, blob)
    sizes = shards.sizes
    name = f"{PLACES}/{unit.number}"
    with _opened(place / name, len(unit.cases)) as writer:
        for at, (_, places) in enumerate(known.values()):
            steps = np.diff(np.concatenate([[0], *places]))
            writer.put(at, blob_of(steps.astype("<i8")) if len(steps) else None)
        sizes[name] = writer.finish()
    defects = [facts for facts, _ in known.values() if isinstance(facts, Defect)]
    if skip_bad or not defects:
        facts = packed_facts({case: facts for case, (facts, _) in known.items()}, index, sizes)
        write_arrays(unit.path(place), facts.arrays, facts.to_json())
    return defects


def _boxes_of(source: DataSource, index: PackedIndex, case: int) -> tuple[Boxes, Known]:
    """Return the boxes of a case, and what is known of it."""
    boxes: Boxes = []
    known = _pack_case(source, index, case, boxes.clear, lambda *box: boxes.append(box))
    return boxes, known


def _pack_case(
    source: DataSource, index: PackedIndex, case: int, restart: Callable[[], None], put: Put
) -> Known:
    """Read a case, and put its boxes; return what is known of it, and places of foreground.

    Where the type of a case turns out to be another one, it begins again with `restart`.
    """
    cut: _Cut | None = None
    latest: list[np.ndarray] = []  # The part of the image that is looked at.

    def noted(stored: StoredCase) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for image, mask in stored.parts:
            latest[:] = [image]
            yield image, mask

    def to_store(number: int) -> StoredCase:
        stored = source.to_store(number)
        if tuple(stored.shape) != index.shapes[case]:
            shapes = f"{tuple(stored.shape)}, and its header says {index.shapes[case]}"
            raise ValueError(f"its pixels have the shape {shapes}.")
        return replace(stored, parts=noted(stored))

    def begin(shape: tuple[int, ...], dtype: str) -> Sink:
        nonlocal cut
        restart()
        objects = source.objects(case, shape) if index.has_objects else None
        cut = own = _Cut(index, shape, dtype, objects, put)

        def take(row: int, image: np.ndarray, mask: np.ndarray) -> None:
            # No pixels are stored normalised, whatever their type is.
            stored = latest[0].astype(FLOAT) if dtype == FLOAT else image
            own.add(stored, unpack_mask(mask, mask_bits(source))[..., : shape[-1]])

        return take

    try:
        facts, places = look_at(replace(source, stored=to_store), case, begin=begin)
    except BadCaseError as error:
        return defect_of(error.cause, source.case_ids[case], source.root), []
    if cut is not None:
        cut.finish()
    return facts, places


@final
class _Cut:
    """Cuts a case that comes in parts into boxes."""

    def __init__(
        self,
        index: PackedIndex,
        shape: tuple[int, ...],
        dtype: str,
        objects: np.ndarray | None,
        put: Put,
    ) -> None:
        kinds = [image_kind(dtype), MASKS, *([] if objects is None else [OBJECTS])]
        self._kinds = {kind: index.kinds[kind] for kind in kinds}
        self._box, self._grid = index.box, index.layout.grid(shape)
        self._objects, self._put = objects, put
        self._kept: list[np.ndarray] = []
        self._rows = self._number = 0

    def add(self, image: np.ndarray, mask: np.ndarray) -> None:
        """Take the next rows."""
        part = [image, mask]
        if self._objects is not None:
            part.append(self._objects[self._rows : self._rows + len(mask)])
        self._rows += len(mask)
        kept = (
            [np.concatenate(pair) for pair in zip(self._kept, part, strict=True)]
            if self._kept
            else part
        )
        while len(kept[0]) >= self._box[0]:
            self._cut([array[: self._box[0]] for array in kept])
            kept = [array[self._box[0] :] for array in kept]
        # Not a part of an array that is no longer needed.
        self._kept = [array.copy() for array in kept] if len(kept[0]) else []

    def finish(self) -> None:
        """Cut the last rows."""
        if self._kept:
            self._cut(self._kept)

    def _cut(self, slab: Sequence[np.ndarray]) -> None:
        """Put the boxes of a slab of as many rows as a box has, or of the last ones."""
        for cell in product(*map(range, self._grid[1:])):
            inside = tuple(
                slice(at * step, (at + 1) * step)
                for at, step in zip(cell, self._box[1:], strict=True)
            )
            for (kind, (shape, dtype)), array in zip(self._kinds.items(), slab, strict=True):
                part = array[(slice(None), *inside)]
                box = np.zeros(shape, dtype)
                box[tuple(map(slice, part.shape[: len(self._box)]))] = part
                self._put(self._number, kind, blob_of(box))
            self._number += 1


@final
class _Shards:
    """Writes boxes, in their order, into the shards that hold them.

    Attributes:
        sizes: Bytes of each shard that is complete.
    """

    def __init__(self, place: Path, index: PackedIndex) -> None:
        self._place, self._index = place, index
        self._num_axes = {kind: len(shape) for kind, (shape, _) in index.kinds.items()}
        self._shard = -1
        self._writers: dict[str, ShardWriter] = {}
        self._files = ExitStack()
        self.sizes: dict[str, int] = {}

    def put(self, number: int, kind: str, blob: bytes | None) -> None:
        """Write a box, by its number in the data set."""
        shard, at = divmod(number, self._index.shard_boxes)
        if shard != self._shard:
            self._finish()
            self._shard = shard
        if kind not in self._writers:
            opened = _opened(self._path(kind), self._index.shard_boxes)
            self._writers[kind] = self._files.enter_context(opened)
        self._writers[kind].put(at, blob)

    def restart(self) -> None:
        """Take back all boxes."""
        self._finish()
        for name in self.sizes:
            (self._place / name).unlink(missing_ok=True)
        self.sizes.clear()
        self._shard = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._finish()
        else:
            self._files.__exit__(kind, error, trace)

    def _path(self, kind: str) -> Path:
        return self._place / shard_name(kind, self._shard, self._num_axes[kind])

    def _finish(self) -> None:
        with self._files:  # They get their names when all are complete.
            for kind, writer in self._writers.items():
                name = self._path(kind).relative_to(self._place).as_posix()
                self.sizes[name] = writer.finish()
        self._writers.clear()


def _ahead(jobs: Iterator[Future]) -> Iterator[Future]:
    """Yield jobs in order, while some later ones are at work."""
    waiting: deque[Future] = deque()
    for job in jobs:
        waiting.append(job)
        if len(waiting) > len(usable_cores()):
            yield waiting.popleft()
    yield from waiting


@contextmanager
def _opened(path: Path, num_blobs: int) -> Iterator[ShardWriter]:
    """Yield the writer of a shard, which gets its name when it is complete."""
    with writing(path):
        path.parent.mkdir(exist_ok=True)
    with (
        replacing(path) as partial,
        os.fdopen(open_regular(partial, os.O_WRONLY), "wb") as file,
    ):
        yield ShardWriter(file, num_blobs)
