"""A data set that `tfunet data pack` wrote. Imports no TensorFlow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import final

import numpy as np

from tfunet.data.defects import BadFileError, Defect, DefectsError
from tfunet.data.layouts.folder import find_root
from tfunet.data.lazy_image import cuts
from tfunet.data.opening import need
from tfunet.data.packed_facts import PackedFacts, defect_of_line, read_facts, wrong_files
from tfunet.data.packed_index import (
    CASES,
    INDEX,
    MASKS,
    OBJECTS,
    PLACES,
    PackedIndex,
    image_kind,
    read_index,
)
from tfunet.data.preparation_options import read_preparation
from tfunet.data.preprocess import (
    Statistics,
    check_intensity,
    normalise,
    resize_nearest,
    unnormalised,
)
from tfunet.data.shards import LIBRARIES, Shards, array_of, read_blobs
from tfunet.data.source import BoxReader, DataSource, RawCase, StoredCase
from tfunet.data.stored_case import FLOAT, BadCaseError, CaseFacts
from tfunet.process.terminal import counted


def open_packed(*, root: str) -> DataSource:
    """Open a data set that `tfunet data pack` wrote: the same cases, with the same pixels.

    Args:
        root: The folder that the command wrote; `~` and environment variables are expanded.

    Raises ValueError for a folder that is no packed data set, is of another version or is not
    finished. Cases whose files are missing or cut off are among the `defects`.
    """
    need(*LIBRARIES)
    place = find_root(root)
    index = read_index(place)
    if index is None:
        raise ValueError(
            f"root={root!r} is no packed data set: it has no {INDEX}. Name the folder that "
            "'tfunet data pack' wrote."
        )
    facts = read_facts(place / CASES)
    if facts is None:
        packed = sum(len(unit.cases) for unit in index.layout.units if unit.path(place).exists())
        raise ValueError(
            f"{place} is not finished: {packed} of {counted(len(index.case_ids), 'case')} are "
            f"packed. Go on: {index.command}"
        )
    return _source(place, index, facts)


def _source(place: Path, index: PackedIndex, facts: PackedFacts) -> DataSource:
    defects = _lost(place, index, facts)
    lost = {defect.case_id for defect in defects}
    kept = [
        number
        for number, case_id in enumerate(index.case_ids)
        if case_id not in lost and str(number) not in facts.defects
    ]
    found = counted(len(index.case_ids), "packed case")
    if not kept:
        raise DefectsError(index.name, defects, found)
    reader = PackedReader(place, index, facts, kept)
    left_out = map(defect_of_line, (*index.left_out, *facts.defects.values()))
    warnings = [
        *map(defect_of_line, index.warnings),
        *(
            replace(defect, what=f"was left out when it was packed: {defect.what}")
            for defect in left_out
        ),
    ]

    def of_kept(values: Sequence) -> tuple:
        return tuple(values[number] for number in kept) if values else ()

    return DataSource(
        name=index.name,
        case_ids=of_kept(index.case_ids),
        groups=of_kept(index.groups),
        num_classes=index.num_classes,
        channels=index.channels,
        regions=index.regions,
        class_names=index.class_names,
        targets={name: of_kept(values) for name, values in index.targets.items()},
        patch=index.patch,
        # The pixels are the same, so what was decoded of the files serves here, and the reverse.
        fingerprint=index.fingerprint,
        read=reader.read,
        stored=reader.stored,
        own_store=lambda: PackedStore(reader),
        intensity=reader.intensity,
        boxes=reader.boxes,
        raw=reader.raw,
        notes=reader.notes,
        files=of_kept(index.files),
        spacings=of_kept(index.spacings),
        unit=index.unit,
        shapes=of_kept(index.shapes),
        # Where the files were: a run on them knows these cases again.
        root=Path(index.root),
        defects=tuple(defects),
        warnings=tuple(warnings),
        found=found,
        preparation=None if index.preparation is None else read_preparation(index.preparation),
        swapped=index.swapped,
        ignored=index.ignored,
        has_background=index.has_background,
        in_colour=index.in_colour,
        mask_values=index.mask_values,
        restore=reader.restore,
        objects=reader.objects,
    )


def _lost(place: Path, index: PackedIndex, facts: PackedFacts) -> list[Defect]:
    """Return a defect for each case with a file that is missing or cut off."""
    defects = []
    for name, what in wrong_files(place, facts.sizes):
        kind, _, file = name.partition("/")
        if kind == PLACES:
            unit = index.layout.units[int(file)]
        else:
            unit = index.layout.unit_of_shard(int(file.split(".")[1]))
        defects += [
            Defect(
                file=str(place / name),
                what=f"{what}. {index.advice(place)}",
                case_id=index.case_ids[case],
            )
            for case in unit.cases
        ]
    return defects


@final
class PackedReader:
    """Reads cases out of shards, by their index: the functions of a DataSource.

    Args:
        place: The folder.
        index: What it says of itself.
        facts: Facts of all cases.
        kept: Numbers of the cases in it.
    """

    def __init__(
        self, place: Path, index: PackedIndex, facts: PackedFacts, kept: Sequence[int]
    ) -> None:
        self._place, self._index, self._facts, self._kept = place, index, facts, kept
        self.intensity = check_intensity(index.intensity)
        self._shards = {
            kind: Shards(
                *(place, kind, shape, dtype),
                num_blobs=index.shard_boxes,
                advice=index.advice(place),
            )
            for kind, (shape, dtype) in index.kinds.items()
        }

    @cached_property
    def facts(self) -> list[CaseFacts]:
        """What is known of each case."""
        known = self._facts.of_cases(self._index.shapes)
        return [known[number] for number in self._kept]

    def places(self, case: int, label: int, number: int) -> int:
        """Return the index of a foreground voxel of a label from 0 in its flattened case."""
        return int(self.all_places(case)[label][number])

    def all_places(self, index: int) -> list[np.ndarray]:
        """Return the places of foreground in a case, for each label from 1."""
        number, packed = self._kept[index], self._index
        unit = packed.layout.unit_of(number)
        path = self._place / PLACES / str(unit.number)
        counts = self._facts.arrays["counts"][number]
        try:
            (blob,) = read_blobs(path, len(unit.cases), [number - unit.first])
            steps = array_of(blob, "<i8", [int(counts.sum())])
        except (ValueError, OSError) as error:
            raise BadFileError(path, f"{error}. {packed.advice(self._place)}") from error
        places = np.zeros(int(counts.sum()), np.int64) if steps is None else np.cumsum(steps)
        return np.split(places, np.cumsum(counts)[:-1])

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the image of a case, as training sees it, and its labels."""
        shape = self._shape(index)
        return self.boxes(index, self.facts[index].statistics)((0,) * len(shape), shape)

    def boxes(self, index: int, statistics: Statistics | None) -> BoxReader:
        """Return the reader of boxes of a case."""
        facts = self.facts[index]
        kind = image_kind(facts.dtype)

        def box(start: Sequence[int], stop: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            image = self._gathered(kind, index, start, stop).astype(np.float32)
            mask = self._gathered(MASKS, index, start, stop)
            return normalise(image, self.intensity, facts.statistics), mask

        return box

    def stored(self, index: int) -> StoredCase:
        """Return a case before it is normalised, a large one in parts."""
        facts = self.facts[index]
        dtype = "" if facts.dtype == FLOAT else facts.dtype
        parts = self._parts(index, image_kind(facts.dtype))
        return StoredCase(shape=facts.extent, parts=parts, statistics=facts.statistics, dtype=dtype)

    def raw(self, index: int) -> RawCase:
        """Return a case before it is normalised; but resampled it is, where that was asked for."""
        number, packed, facts = self._kept[index], self._index, self.facts[index]
        parts = zip(*self._parts(index, image_kind(facts.dtype)), strict=True)
        image, mask = map(np.concatenate, parts)
        return RawCase(
            image=image,
            mask=mask,
            file=packed.files[number] if packed.files else packed.case_ids[number],
            image_dtype=np.dtype(facts.dtype).name,
            mask_dtype="uint8",
            spacing=packed.spacings[number] if packed.spacings else None,
            notes=facts.signs.notes,
        )

    def notes(self, index: int) -> Sequence[Defect]:
        """Return what may be a mistake in the files of a case."""
        return self.facts[index].signs.notes

    def objects(self, index: int, shape: Sequence[int]) -> np.ndarray | None:
        """Return the number of the object in each pixel of a mask that is resized to a shape."""
        if not self._index.has_objects:
            return None
        own = self._shape(index)
        return resize_nearest(self._gathered(OBJECTS, index, (0,) * len(own), own), tuple(shape))

    def restore(self, index: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return what gives normalised pixels of a case their intensities again."""
        statistics = self.facts[index].statistics
        return partial(unnormalised, intensity=self.intensity, statistics=statistics)

    def _shape(self, index: int) -> tuple[int, ...]:
        return self._index.shapes[self._kept[index]]

    def _parts(self, index: int, kind: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        shape = self._shape(index)
        for first, last in cuts(shape, self._index.channels):
            box = (first, *[0] * (len(shape) - 1)), (last, *shape[1:])
            image = self._gathered(kind, index, *box).astype(np.float32)
            yield image, self._gathered(MASKS, index, *box)

    def _gathered(
        self, kind: str, index: int, start: Sequence[int], stop: Sequence[int]
    ) -> np.ndarray:
        """Return voxels start..stop-1 of an array of a case, from the boxes that hold them."""
        number = self._kept[index]
        layout, (shape, dtype) = self._index.layout, self._index.kinds[kind]
        size = tuple(last - first for first, last in zip(start, stop, strict=True))
        whole = np.zeros((*size, *shape[len(size) :]), dtype)
        grid = layout.grid(self._index.shapes[number])
        spans = [
            range(first // step, -(-last // step))
            for first, last, step in zip(start, stop, layout.box, strict=True)
        ]
        cells = list(product(*spans))
        inside = np.ravel_multi_index(tuple(np.transpose(cells)), grid)
        boxes = self._shards[kind].read((layout.first_boxes[number] + inside).tolist())
        for cell, box in zip(cells, boxes, strict=True):
            if box is None:
                continue
            source, target = [], []
            for at, step, first, last in zip(cell, layout.box, start, stop, strict=True):
                low, high = max(first, at * step), min(last, (at + 1) * step)
                source.append(slice(low - at * step, high - at * step))
                target.append(slice(low - first, high - first))
            whole[tuple(target)] = box[tuple(source)]
        return whole


@final
class PackedStore:
    """A store of cases (`tfunet.data.case_store`) that needs neither a copy nor a pass over them.

    Attributes:
        log: The reader itself: it knows all of them.
    """

    def __init__(self, reader: PackedReader) -> None:
        self.log = reader

    def begin(self, order: Sequence[int]) -> None:
        """Prepare nothing."""

    def ensure(self, case: int) -> None:
        """Wait for nothing."""

    def box(
        self, case: int, start: Sequence[int], stop: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a part of a case. Raises BadCaseError."""
        try:
            return self.log.boxes(case, None)(start, stop)
        except (ValueError, OSError) as error:
            raise BadCaseError(error) from error
