"""How the classes of masks with a file for each class overlap. Imports no TensorFlow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np

from tfunet.data.defects import BadFileError
from tfunet.data.image_files import read_mask

# Cases that are compared.
CASES = 10
# A mask that is the union of others to this Dice.
UNION = 0.98


@final
class Overlaps:
    """Counts the pixels of classes, of pairs of them, and of each and all the others.

    Args:
        root: Folder of the files.
        files: Class name to the files of all cases, in the same order.
        threshold: Pixels above this value belong to the class.
    """

    def __init__(self, root: Path, files: Mapping[str, Sequence[str]], threshold: float) -> None:
        self._names = list(files)
        # The classes that share pixels; "" stands for all others than the first.
        self._shared: Counter[tuple[str, str]] = Counter()
        self._others: Counter[str] = Counter()
        for paths in zip(*(paths[:CASES] for paths in files.values()), strict=True):
            try:
                masks = [read_mask(root / file, fractions=True) > threshold for file in paths]
            except BadFileError:
                continue
            if len({mask.shape for mask in masks}) == 1:
                self._add(masks)

    def dice(self, first: str, second: str) -> float:
        """Return the Dice of two classes."""
        total = self._shared[first, first] + self._shared[second, second]
        return 2 * self._shared[first, second] / max(total, 1)

    def is_union(self, name: str) -> bool:
        """Whether a class is what two or more others are together."""
        total = self._shared[name, name] + self._others[name]
        return len(self._names) > 2 and 2 * self._shared[name, ""] > UNION * total

    def _add(self, masks: Sequence[np.ndarray]) -> None:
        for at, (name, mask) in enumerate(zip(self._names, masks, strict=True)):
            others = np.any([*masks[:at], *masks[at + 1 :]], axis=0)
            self._others[name] += int(others.sum())
            self._shared[name, ""] += int((mask & others).sum())
            for second, other in zip(self._names, masks, strict=True):
                self._shared[name, second] += int((mask & other).sum())
