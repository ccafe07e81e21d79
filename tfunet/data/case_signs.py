"""What decoding a case showed that may be a mistake. Imports no TensorFlow."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tfunet.data.defects import Defect

COUNTED = 2**20


@final
@dataclass(frozen=True, kw_only=True)
class CaseSigns:
    """What decoding a case showed.

    Args:
        content: Hash of its pixels.
        label_pixels: Pixels of each label in its mask, background first, without those to ignore.
        constant: Channels in which all pixels have one value.
        ends: The least and the largest value of its image.
        notes: What its files show.
    """

    content: str
    label_pixels: tuple[int, ...]
    constant: tuple[int, ...] = ()
    ends: tuple[float, ...] = ()
    notes: tuple[Defect, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        notes = [[note.file, note.what, note.case_id] for note in self.notes]
        return {**vars(self), "notes": notes}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CaseSigns":
        """Return what `to_json` gave."""
        lists = {name: tuple(stored[name]) for name in ("label_pixels", "constant", "ends")}
        notes = (
            Defect(file=file, what=what, case_id=case_id) for file, what, case_id in stored["notes"]
        )
        return cls(content=stored["content"], notes=tuple(notes), **lists)


@final
class SignsReader:
    """Looks at a case part by part."""

    def __init__(self, shape: Sequence[int], channels: int, num_classes: int) -> None:
        self._digest = hashlib.blake2b(repr((*shape, channels)).encode(), digest_size=16)
        self._is_constant = np.ones(channels, bool)
        self._first: np.ndarray | None = None
        self._ends: list[float] = []
        self._label_pixels = np.zeros(num_classes, np.int64)

    def add(self, image: np.ndarray, mask: np.ndarray) -> None:
        """Look at a part of the image (rows, ..., channels) and of the mask (rows, ...)."""
        num_classes = len(self._label_pixels)
        labels = mask.reshape(-1)
        for first in range(0, len(labels), COUNTED):  # Counting takes eight bytes a pixel.
            some = labels[first : first + COUNTED].astype(np.intp)
            self._label_pixels += np.bincount(some, minlength=num_classes)[:num_classes]
        self._digest.update(np.ascontiguousarray(image, np.float32).data)
        ends = (*self._ends, float(image.min()), float(image.max()))
        self._ends = [min(ends), max(ends)]
        pixels = image.reshape(-1, image.shape[-1])
        if self._first is None:
            self._first = pixels[0].copy()
        for some in (pixels[:64], pixels):  # Most differ in the first ones.
            if self._is_constant.any():
                self._is_constant &= (some == self._first).all(0)

    def signs(self, notes: Sequence[Defect]) -> CaseSigns:
        """Return what all parts showed, and the notes of whoever read the files."""
        constant = tuple(map(int, np.flatnonzero(self._is_constant)))
        return CaseSigns(
            content=self._digest.hexdigest(),
            label_pixels=tuple(map(int, self._label_pixels)),
            constant=constant,
            ends=tuple(self._ends),
            notes=tuple(notes),
        )
