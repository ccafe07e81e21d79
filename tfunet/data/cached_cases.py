"""Decoded cases, wherever they are: what is known of them, and their pixels.

Imports no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, final

import numpy as np

from tfunet.data.arrays import ArraySamples
from tfunet.data.case_signs import CaseSigns
from tfunet.data.case_store import CaseStore
from tfunet.data.foreground import chosen_voxel
from tfunet.data.stored_case import BadCaseError
from tfunet.geometry.windows import padding_before

# Cases that stand for all, where reading all would take too long.
SAMPLE = 64


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CachedCases:
    """Cases whose pixels can be read in any order, padded to at least `patch`.

    Args:
        store: Where their pixels come from.
        extents: Spatial shape of each case as it was read.
        patch: Smallest spatial shape; smaller cases are padded to it, centred.
        around: Label of the padding.
        skip_bad: Whether another case takes the place of one that turns out to be of no use.
        targets: The numbers to predict of each case, (targets,) each; empty for masks.
        samples: The samples of a data set of arrays: there is no store.
    """

    store: CaseStore | None
    case_ids: tuple[str, ...]
    num_classes: int
    channels: int
    extents: tuple[tuple[int, ...], ...]
    patch: tuple[int, ...]
    around: int = 0
    skip_bad: bool = False
    targets: tuple[tuple[float, ...], ...] = ()
    samples: ArraySamples | None = None

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Spatial shape of each padded case: at least `patch`."""
        return tuple(tuple(map(max, extent, self.patch)) for extent in self.extents)

    @cached_property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """Voxel of each padded case at which the case as it was read begins."""
        return tuple(padding_before(extent, self.patch) for extent in self.extents)

    def signs(self, case: int) -> CaseSigns | None:
        """Return what the pixels of a case showed; None if nobody has read it yet."""
        if self.store is None:
            # One hash is of all of them.
            content = "" if self.samples is None else self.samples.content
            return CaseSigns(content=content, label_pixels=())
        facts = self.store.log.facts[case]
        return None if facts is None else facts.signs

    def foreground_counts(self, case: int) -> tuple[int, ...]:
        """Return the number of foreground voxels whose places are kept, of each label from 1."""
        facts = None if self.store is None else self.store.log.facts[case]
        return () if facts is None else facts.foreground

    @property
    def defects(self) -> dict[int, str]:
        """What is wrong with each case that cannot be used."""
        log = [] if self.store is None else self.store.log.facts
        return {
            case: facts.defect
            for case, facts in enumerate(log)
            if facts is not None and facts.defect
        }

    @property
    def is_known(self) -> bool:
        """Whether it is known of every case what its pixels show, or that it cannot be used."""
        return self.store is None or None not in self.store.log.facts

    def read(
        self, case: int, start: Sequence[int], extents: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a part of a padded case: image (*extents, channels) float32 and mask uint8.

        Raises BadCaseError for a case that cannot be used.
        """
        extent, origin = self.extents[case], self.origins[case]
        inner = [place - before for place, before in zip(start, origin, strict=True)]
        low = [max(place, 0) for place in inner]
        high = [
            min(place + size, length)
            for place, size, length in zip(inner, extents, extent, strict=True)
        ]
        if any(end <= begin for begin, end in zip(low, high, strict=True)):
            image = np.zeros((*extents, self.channels), np.float32)
            return image, np.full(tuple(extents), self.around, np.uint8)
        image, mask = self._store.box(case, low, high)
        if mask.shape == tuple(extents):
            return image, mask
        whole = np.zeros((*extents, self.channels), np.float32)
        labels = np.full(tuple(extents), self.around, np.uint8)
        inside = tuple(
            slice(begin - place, end - place)
            for begin, end, place in zip(low, high, inner, strict=True)
        )
        whole[inside], labels[inside] = image, mask
        return whole, labels

    def read_or_next(
        self,
        case: int,
        start: Sequence[int],
        begin: Sequence[int],
        extents: Sequence[int],
        among: Sequence[int] = (),
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Return a part of a case, from `begin` of the patch at `start`; and the case.

        With `skip_bad` the next one in `among` takes the place of a case that cannot be used;
        without others the part is empty, and the case is -1. The same in every process: each finds
        the same file of no use. Raises BadCaseError otherwise.
        """
        at = 0
        while True:
            try:
                most = np.subtract(self.shapes[case], self.patch)
                first = np.minimum(start, most) if at else np.asarray(start)
                return *self.read(case, (first + begin).tolist(), extents), case
            except BadCaseError:
                if not self.skip_bad or at > len(among) > 0:
                    raise
                if not among:
                    image = np.zeros((*extents, self.channels), np.float32)
                    return image, np.full(tuple(extents), self.around, np.uint8), -1
                at += 1
                case = among[(among.index(case) + 1) % len(among)]

    def image(self, case: int, *, padded: bool = False) -> "Voxels":
        """Return the image of a case, (*spatial, channels), of which parts are read when asked."""
        return Voxels(cases=self, case=case, part=0, padded=padded)

    def mask(self, case: int, *, padded: bool = False) -> "Voxels":
        """Return the mask of a case, (*spatial), of which parts are read when they are asked."""
        return Voxels(cases=self, case=case, part=1, padded=padded)

    def foreground_voxel(self, case: int, bits: Sequence[int]) -> list[int]:
        """Return a foreground voxel of a padded case, chosen by two random numbers.

        Each label of the case is equally likely. Where the case has none: -1 along each axis.
        """
        log = self._store.log
        self._store.ensure(case)
        facts = log.facts[case]
        chosen = chosen_voxel(() if facts is None else facts.foreground, bits)
        if chosen is None:
            return [-1] * len(self.patch)
        voxel = np.unravel_index(log.places(case, *chosen), self.extents[case])
        return [int(at) + before for at, before in zip(voxel, self.origins[case], strict=True)]

    def begin(self, order: Sequence[int]) -> None:
        """Decode what is missing in the background, in the order in which cases are needed."""
        if self.store is not None:
            self.store.begin(order)

    def learn(self, some: Sequence[int]) -> None:
        """Read at most SAMPLE of these cases, evenly spread, if some are not known yet."""
        if self.store is None or self.is_known:
            return
        for case in some[:: -(-len(some) // SAMPLE)]:
            self.store.ensure(case)

    @property
    def _store(self) -> CaseStore:
        if self.store is None:
            raise ValueError("Arrays have no store of cases.")
        return self.store

    @property
    def num_voxels(self) -> int:
        """Voxels of all padded cases."""
        return sum(map(prod, self.shapes))


@final
@dataclass(frozen=True, kw_only=True)
class Voxels:
    """An image (`part` 0) or a mask (1) whose parts are read when they are asked for."""

    cases: CachedCases
    case: int
    part: int
    padded: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, with the channels of an image."""
        spatial = self.cases.shapes if self.padded else self.cases.extents
        return (*spatial[self.case], *([self.cases.channels] if self.part == 0 else []))

    def __getitem__(self, places: tuple[slice, ...]) -> np.ndarray:
        rank = len(self.cases.patch)
        spans = [
            place.indices(size)[:2] for place, size in zip(places, self.shape[:rank], strict=True)
        ]
        before = [0] * rank if self.padded else self.cases.origins[self.case]
        start = [begin + skipped for (begin, _), skipped in zip(spans, before, strict=True)]
        box = self.cases.read(self.case, start, [end - begin for begin, end in spans])[self.part]
        return box[tuple(slice(None, None, place.step) for place in places)]

    def take(self, index: int, axis: int) -> np.ndarray:
        """Return what lies at an index along an axis, without this axis."""
        spans = [slice(None)] * len(self.cases.patch)
        spans[axis] = slice(index, index + 1)
        return self[tuple(spans)].squeeze(axis)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        whole = self[(slice(None),) * len(self.cases.patch)]
        return whole if dtype is None else whole.astype(dtype)


def cases_of_arrays(source: Any, samples: ArraySamples) -> CachedCases:
    """Return the samples of a data set of arrays as cases that are in memory, not in files."""
    return CachedCases(
        store=None,
        case_ids=source.case_ids,
        num_classes=source.num_classes,
        channels=source.channels,
        extents=(source.patch,) * len(source.case_ids),
        patch=source.patch,
        samples=samples,
    )
