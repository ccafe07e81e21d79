"""Collects foreground voxels, on which samples are centred. Imports no TensorFlow."""

from collections.abc import Sequence
from typing import final

import numpy as np

# For each label in each case; nnU-Net keeps some of each class too.
MOST_VOXELS = 4096


@final
class ForegroundVoxels:
    """Keeps indices of voxels of each label: at most MOST_VOXELS, drawn evenly from all.

    The choice depends only on the indices, so that a mask in parts gives the same voxels.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._next = 0
        self._kept: dict[int, np.ndarray] = {}

    def add(self, mask: np.ndarray) -> None:
        """Add the next part of the mask, uint8, along its first axis."""
        flat = mask.ravel()
        foreground = np.flatnonzero(flat != 0)
        labels = flat[foreground]
        foreground += self._next
        for label in np.flatnonzero(np.bincount(labels)):
            places = foreground[labels == label]
            places = np.concatenate([self._kept.get(int(label), places[:0]), places])
            if len(places) > MOST_VOXELS:
                lowest = np.argpartition(_scattered(places), MOST_VOXELS)[:MOST_VOXELS]
                places = places[lowest]
            self._kept[int(label)] = places
        self._next += flat.size

    def places(self) -> list[np.ndarray]:
        """Return for each label from 1 its sorted indices in the flattened mask, int64."""
        none = np.zeros(0, np.int64)
        return [np.sort(self._kept.get(label, none)) for label in range(1, self._num_classes)]


def chosen_voxel(counts: Sequence[int], bits: Sequence[int]) -> tuple[int, int] | None:
    """Return a label from 0, each with voxels equally likely, and the number of one of its voxels.

    None where there are no voxels.

    Args:
        counts: Number of voxels of each label.
        bits: Two random numbers.
    """
    labels = [label for label, count in enumerate(counts) if count]
    if not labels:
        return None
    label = labels[bits[0] % len(labels)]
    return label, bits[1] % counts[label]


def _scattered(places: np.ndarray) -> np.ndarray:
    """Return a pseudo-random number for each index: the finalizer of SplitMix64."""
    bits = places.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits
