"""Removes connected components of predicted labels. Needs scipy; no TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which components of each label become background. Voxels connect across corners.

    Args:
        largest: Labels of which only the largest component is kept.
        min_voxels: For other labels, the least voxels of a component that is kept.
    """

    largest: tuple[int, ...] = ()
    min_voxels: Mapping[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.largest or self.min_voxels)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        sizes = {str(label): size for label, size in sorted(self.min_voxels.items())}
        return {"largest": list(self.largest), "min_voxels": sizes}

    def keeps(self, label: int, sizes: np.ndarray) -> np.ndarray:
        """Return which components of a label are kept, by their numbers of voxels."""
        if label in self.largest:
            kept = np.zeros(len(sizes), bool)
            kept[sizes.argmax() if len(sizes) else slice(0)] = True
            return kept
        return sizes >= self.min_voxels.get(label, 0)

    def apply(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels without the components that are not kept."""
        cleaned = labels.copy()
        for label in sorted({*self.largest, *self.min_voxels}):
            numbered, sizes = components(labels == label)
            kept = np.concatenate([[True], self.keeps(label, sizes)])
            cleaned[~kept[numbered]] = 0
        return cleaned


def components(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each voxel's component, from 1, and the voxels of each component."""
    ndimage = _ndimage()
    numbered, count = ndimage.label(mask, np.ones((3,) * mask.ndim))
    return numbered, np.bincount(numbered.ravel(), minlength=count + 1)[1:]


def _ndimage() -> ModuleType:
    try:
        from scipy import ndimage
    except ModuleNotFoundError as error:
        raise ValueError(
            "Components need scipy, which is not installed. Install it with: "
            "pip install 'tfunet[metrics]'"
        ) from error
    return ndimage
