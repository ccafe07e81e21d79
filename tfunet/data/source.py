"""What a data set gives: cases by index. Imports no TensorFlow."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class CaseParts:
    """A case that is better not held in memory as a whole.

    Args:
        shape: Spatial shape of the whole.
        parts: (image, mask) as `DataSource.read` gives them, cut along the first axis, in order.
    """

    shape: tuple[int, ...]
    parts: Iterator[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Cases (images or volumes with their masks) that can be read in any order.

    Args:
        name: For messages and records.
        case_ids: One name a case, unique.
        groups: The group of each case (animal, patient); cases of a group are never split.
        num_classes: Labels are 0..num_classes-1; 0 is background.
        channels: Channels of every image.
        regions: Region name to the labels that belong to it; scores are given for each region.
            Regions may nest.
        patch: Spatial shape that training sees if the configuration names none.
        fingerprint: Changes when a file or a setting that changes the pixels changes.
        read: Case index to (image, mask): float32 (*spatial, channels), preprocessed, and
            uint8 (*spatial). Raises ValueError, naming the file, for one that cannot be used.
            Called in any order, from several threads at once.
        read_parts: Case index to the same in parts, or None for a case that `read` should read.
    """

    name: str
    case_ids: tuple[str, ...]
    groups: tuple[str, ...]
    num_classes: int
    channels: int
    regions: Mapping[str, tuple[int, ...]]
    patch: tuple[int, ...]
    fingerprint: str
    read: Callable[[int], tuple[np.ndarray, np.ndarray]]
    read_parts: Callable[[int], CaseParts | None] = lambda index: None

    def __post_init__(self) -> None:
        if not self.case_ids:
            raise ValueError(f"The data set {self.name!r} has no cases.")
        if len(set(self.case_ids)) != len(self.case_ids):
            twice = sorted({one for one in self.case_ids if self.case_ids.count(one) > 1})
            raise ValueError(f"The data set {self.name!r} names cases twice: {twice[:5]}.")
        if len(self.groups) != len(self.case_ids):
            raise ValueError(
                f"The data set {self.name!r} has {len(self.case_ids)} cases and "
                f"{len(self.groups)} groups; give one group for each case."
            )
        if self.num_classes < 2:
            raise ValueError(
                f"num_classes counts the background: at least 2, got {self.num_classes}."
            )
        for region, labels in self.regions.items():
            if not labels or not all(1 <= label < self.num_classes for label in labels):
                raise ValueError(
                    f"Region {region!r} has labels {labels}; allowed: 1..{self.num_classes - 1}."
                )

    def chosen_patch(self, patch: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the patch that a configuration gives, or this data set's own."""
        if patch is None:
            return self.patch
        if len(patch) != len(self.patch):
            raise ValueError(
                f"patch={patch} has {len(patch)} sizes; the images of {self.name} have "
                f"{len(self.patch)} dimensions."
            )
        return patch
