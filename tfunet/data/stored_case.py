"""One case as a store keeps it: its image in the smallest type, its mask in few bits.

Imports no TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np

from tfunet.data.case_signs import CaseSigns, SignsReader
from tfunet.data.foreground import ForegroundVoxels
from tfunet.data.preprocess import Intensity, Statistics, normalise

if TYPE_CHECKING:
    from tfunet.data.source import DataSource

NARROW = ("|u1", "|i1", "<u2", "<i2")
FLOAT = "<f4"
# What takes the parts of a case: their first row, image and mask, both as they are kept.
Sink = Callable[[int, np.ndarray, np.ndarray], None]


@final
@dataclass(frozen=True, kw_only=True)
class CaseFacts:
    """What is known of a case without its pixels.

    Args:
        extent: Its spatial shape; zeros for a case that cannot be used.
        dtype: Type of its image as a store keeps it. Whole numbers are not normalised yet.
        statistics: What `normalise` needs; None where it needs none.
        signs: What its pixels showed.
        foreground: Number of foreground voxels of each label from 1 whose places are kept.
        defect: Why it cannot be used; empty if it can.
    """

    extent: tuple[int, ...]
    dtype: str = FLOAT
    statistics: Statistics | None = None
    signs: CaseSigns = field(default_factory=lambda: CaseSigns(content="", label_pixels=()))
    foreground: tuple[int, ...] = ()
    defect: str = ""


class BadCaseError(Exception):
    """A case cannot be used; whoever reads it is fine."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _OtherTypeError(Exception):
    """A part of a case does not fit the type of the parts before it."""


def look_at(
    source: "DataSource",
    index: int,
    *,
    begin: Callable[[tuple[int, ...], str], Sink] | None = None,
) -> tuple[CaseFacts, list[np.ndarray]]:
    """Read a case once; return what is known of it then, and the places of its foreground.

    Args:
        source: The data set.
        index: The case.
        begin: Spatial shape and type of the case to what takes its parts, its mask packed by
            `pack_mask`. Called again where a large case turns out to need another type.

    Raises BadCaseError for a case that training cannot use.
    """
    dtype = ""
    while True:
        try:
            return _looked_at(source, index, begin, dtype)
        except _OtherTypeError:
            dtype = FLOAT


def _looked_at(
    source: "DataSource",
    index: int,
    begin: Callable[[tuple[int, ...], str], Sink] | None,
    dtype: str,
) -> tuple[CaseFacts, list[np.ndarray]]:
    with _blaming_the_case():
        case = source.to_store(index)
    voxels = ForegroundVoxels(source.num_classes)
    pixels = SignsReader(case.shape, source.channels, source.num_classes)
    bits, row, sink = mask_bits(source), 0, None
    parts = iter(case.parts)
    while True:
        with _blaming_the_case():
            part = next(parts, None)
            if part is None:
                break
            image, mask = part
            normalised = _checked(source, image, mask, case.statistics)
            voxels.add(mask)
            pixels.add(normalised, mask)
            is_whole = mask.shape == case.shape
            dtype = dtype or (case.dtype or FLOAT if not is_whole else narrow_type(image))
        if sink is None:
            sink = (lambda *_: None) if begin is None else begin(case.shape, dtype)
        kept = np.ascontiguousarray(normalised if dtype == FLOAT else image, dtype)
        if dtype != FLOAT and not is_whole and (kept != image).any():
            raise _OtherTypeError
        sink(row, kept, pack_mask(mask, bits))
        row += len(mask)
    if row != case.shape[0]:
        raise BadCaseError(ValueError(f"has {row} rows instead of {case.shape[0]}."))
    places = voxels.places()
    facts = CaseFacts(
        extent=tuple(case.shape),
        dtype=dtype,
        statistics=case.statistics,
        signs=pixels.signs(source.notes(index)),
        foreground=tuple(map(len, places)),
    )
    return facts, places


@contextmanager
def _blaming_the_case() -> Iterator[None]:
    # A reader may raise OSError: then the case's file is at fault, not the store.
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadCaseError(error) from error


def _checked(
    source: "DataSource", image: np.ndarray, mask: np.ndarray, statistics: Statistics | None
) -> np.ndarray:
    """Return a part of an image normalised. Raises ValueError for one that training cannot use."""
    rank = len(source.patch)
    if image.ndim != rank + 1 or image.shape[-1] != source.channels or not image.size:
        raise ValueError(
            f"the image has shape {image.shape}; expected {rank} spatial axes for the patch and "
            f"{source.channels} channels."
        )
    if mask.shape != image.shape[:-1]:
        raise ValueError(
            f"the mask has shape {mask.shape}, its image {image.shape[:-1]}; they must agree."
        )
    normalised = normalise(image, source.intensity, statistics)
    if not np.isfinite(normalised).all():
        raise ValueError("the image has pixels that are NaN or infinite; replace them.")
    if mask.dtype.kind not in "bui":
        raise ValueError(f"the mask has type {mask.dtype}; labels must be integers.")
    labels = mask if source.ignored is None else np.where(mask == source.ignored, 0, mask)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= source.num_classes:
        raise ValueError(
            f"the mask has labels {low}..{high}; allowed: 0..{source.num_classes - 1}."
        )
    return normalised


def narrow_type(image: np.ndarray) -> str:
    """Return the smallest type that holds all values of an image exactly; float32 if none does."""
    low, high = image.min(), image.max()
    for dtype in NARROW:
        ends = np.iinfo(dtype)
        if ends.min <= low and high <= ends.max:
            return dtype if (image.astype(dtype) == image).all() else FLOAT
    return FLOAT


def mask_bits(source: "DataSource") -> int:
    """Return how many bits a label takes: 1, 2, 4 or 8."""
    highest = max(source.num_classes - 1, source.ignored or 0, 1)
    return next(bits for bits in (1, 2, 4, 8) if highest < 2**bits)


def pack_mask(mask: np.ndarray, bits: int) -> np.ndarray:
    """Return labels (*spatial) with several in a byte along the last axis, uint8."""
    mask = np.ascontiguousarray(mask, np.uint8)
    if bits == 8:
        return mask
    if bits == 1:
        return np.packbits(mask, axis=-1)
    each = 8 // bits
    padding = [(0, 0)] * (mask.ndim - 1) + [(0, -mask.shape[-1] % each)]
    several = np.pad(mask, padding).reshape(*mask.shape[:-1], -1, each)
    return np.bitwise_or.reduce(several << _shifts(bits), axis=-1)


def unpack_mask(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return all labels of bytes that `pack_mask` made; the last axis ends with its padding."""
    if bits == 8:
        return packed
    if bits == 1:
        return np.unpackbits(packed, axis=-1)
    return _labels_of_bytes(bits).take(packed).view(np.uint8)


def packed_length(labels: int, bits: int) -> int:
    """Return the bytes of so many labels."""
    return -(-labels * bits // 8)


@lru_cache
def _labels_of_bytes(bits: int) -> np.ndarray:
    """Return the labels in each byte, as one number of as many bytes."""
    labels = (np.arange(256)[:, np.newaxis] >> _shifts(bits)) & (2**bits - 1)
    return np.ascontiguousarray(labels, np.uint8).view(f"<u{8 // bits}").reshape(-1)


def _shifts(bits: int) -> np.ndarray:
    return np.arange(8 - bits, -1, -bits, dtype=np.uint8)


@final
@dataclass(frozen=True, kw_only=True)
class KeptCase:
    """A case as a store keeps it, or some of its rows.

    Args:
        image: (rows, ..., channels) in the type of `CaseFacts.dtype`.
        mask: (rows, ..., bytes) as `pack_mask` gives it.
        bits: Bits of a label.
        intensity: How an image of whole numbers is normalised.
        statistics: Its statistics.
    """

    image: np.ndarray
    mask: np.ndarray
    bits: int
    intensity: Intensity
    statistics: Statistics | None

    def box(self, start: Sequence[int], stop: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the image (*box, channels) float32, normalised, and the mask (*box) uint8."""
        outer = tuple(map(slice, start[:-1], stop[:-1]))
        image: Any = self.image[(*outer, slice(start[-1], stop[-1]))]
        if image.dtype != np.dtype(FLOAT):
            image = normalise(image.astype(np.float32), self.intensity, self.statistics)
        first = start[-1] * self.bits // 8
        mask = self.mask[(*outer, slice(first, packed_length(stop[-1], self.bits)))]
        skipped = start[-1] - first * 8 // self.bits
        labels = unpack_mask(mask, self.bits)[..., skipped : skipped + stop[-1] - start[-1]]
        return np.ascontiguousarray(image), np.ascontiguousarray(labels)

    @property
    def num_bytes(self) -> int:
        """Bytes of the image and the mask."""
        return self.image.nbytes + self.mask.nbytes
