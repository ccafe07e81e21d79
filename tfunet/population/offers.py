"""The models that trainers offer to each other, as files in the folder where they meet."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tfunet.files.arrays import FACTS, load_arrays
from tfunet.files.atomic import replacing, writing
from tfunet.files.typed import DAMAGED, Finite, RecordError, typed
from tfunet.population.meeting import PopulationFolder

# Bytes that a trainer's words and the headers of its arrays may take.
MOST_WORDS = 2**20


@dataclass(frozen=True)
class Offer:
    """What a trainer says of its model at the end of a round.

    Args:
        score: On the cases that decide the round; None if it is not a number.
        hyperparameters: What the model was trained with, by name.
        is_rounded: Whether the numbers are rounded to bfloat16.
    """

    score: Finite | None
    hyperparameters: dict[str, Finite]
    is_rounded: bool


def publish(
    meeting: PopulationFolder, round: int, values: Sequence[np.ndarray], offer: Offer
) -> None:
    """Offer a model to the others."""
    path = meeting.offer_path(round, meeting.trainer)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    kept = [to_bfloat16(value) if _rounds(offer, value) else value for value in values]
    arrays = {f"variable_{index:05d}": value for index, value in enumerate(kept)}
    facts = np.frombuffer(json.dumps(asdict(offer)).encode(), np.uint8)
    with replacing(path) as partial:
        np.savez(partial, **{FACTS: facts}, **arrays)


def read(meeting: PopulationFolder, round: int, trainer: int) -> Offer:
    """Return what a trainer says of its model. Raises RecordError."""
    path = meeting.offer_path(round, trainer)
    try:
        return _offer(load_arrays(path, MOST_WORDS, [FACTS]))
    except (OSError, *DAMAGED) as error:
        raise RecordError(path, error) from error


def load(
    meeting: PopulationFolder, round: int, trainer: int, like: Sequence[np.ndarray]
) -> tuple[Offer, list[np.ndarray]]:
    """Return what a trainer says of its model, and the model, which has variables as `like`.

    Both are of one file: a trainer that was killed may offer the same round again. Raises
    RecordError.
    """
    path = meeting.offer_path(round, trainer)
    try:
        # No model of this shape takes more.
        arrays = load_arrays(path, sum(own.nbytes for own in like) + MOST_WORDS)
        offer = _offer(arrays)
        values = [arrays[name] for name in sorted(arrays)]
    except (OSError, *DAMAGED) as error:
        raise RecordError(path, error) from error
    if len(values) == len(like):
        values = [
            from_bfloat16(value) if _rounds(offer, own) and value.dtype == np.uint16 else value
            for value, own in zip(values, like, strict=True)
        ]
    kinds = [(value.shape, value.dtype) for value in values]
    if kinds != [(own.shape, own.dtype) for own in like]:
        raise RecordError(path, "it is of another model or optimizer")
    return offer, values


def _offer(arrays: dict[str, np.ndarray]) -> Offer:
    return typed(json.loads(arrays.pop(FACTS).tobytes()), Offer)


def _rounds(offer: Offer, value: np.ndarray) -> bool:
    return offer.is_rounded and value.dtype == np.float32


def to_bfloat16(value: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16 of each float32; ties to even. NaN stays NaN."""
    # Not numpy.ascontiguousarray, which gives a scalar, as the loss scale is, another shape.
    bits = np.asarray(value, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.asarray(np.where(np.isnan(value), 0x7FC0, rounded).astype(np.uint16))


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 bits."""
    wide = np.left_shift(bits.astype(np.uint32), np.uint32(16))
    return np.asarray(wide, np.uint32).view(np.float32)
