"""Finds the largest network and batch whose step fits in a memory. Pure."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import final

from tfunet.config.amount import MIB


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network on a patch, and how many samples it takes at once."""

    patch: tuple[int, ...]
    levels: int
    filters: int
    batch: int

    @property
    def size(self) -> int:
        """About in proportion to the memory of a step."""
        return math.prod(self.patch) * self.filters * self.batch


@final
@dataclass(frozen=True, kw_only=True)
class Fitting:
    """A candidate, and the predicted bytes of its step."""

    candidate: Candidate
    total_bytes: int


def largest_fitting(
    candidates: Iterable[Candidate],
    predict: Callable[[Candidate], int],
    memory_bytes: int,
    most_batch: Callable[[Candidate], int],
) -> Fitting:
    """Return the first candidate that fits, with the largest batch that does.

    Args:
        candidates: From the one that is wanted most.
        predict: Returns the bytes of a step; takes seconds, so few candidates are asked for.
        memory_bytes: What a step may take.
        most_batch: Returns the largest batch that a candidate should have.

    Raises ValueError where none fits.
    """
    left = list(candidates)
    while True:
        first = left[0]
        needed = predict(first)
        if needed <= memory_bytes:
            break
        # A part of the memory does not shrink with the candidate, so no fitting one is passed over.
        most = first.size * memory_bytes / needed
        left = [candidate for candidate in left[1:] if candidate.size <= most] or left[1:]
        if not left:
            raise ValueError(
                f"No network fits in {memory_bytes / MIB:,.1f} MiB. The smallest, with "
                f"{first.filters} filters on patches of {' x '.join(map(str, first.patch))}, needs "
                f"{needed / MIB:,.1f} MiB. Give more --memory, or use large-model support (swap)."
            )
    return _with_largest_batch(
        Fitting(candidate=first, total_bytes=needed), predict, memory_bytes, most_batch(first)
    )


def _with_largest_batch(
    fitting: Fitting, predict: Callable[[Candidate], int], memory_bytes: int, most: int
) -> Fitting:
    """Return the candidate with the largest batch up to `most` that fits."""
    best, too_many = fitting, most + 1
    # As if all of it grew with the batch; then by how much it does.
    sample_bytes = fitting.total_bytes / fitting.candidate.batch
    while best.candidate.batch < too_many - 1:
        room = int((memory_bytes - best.total_bytes) / sample_bytes)
        batch = min(best.candidate.batch + max(room, 1), too_many - 1)
        candidate = replace(best.candidate, batch=batch)
        larger = Fitting(candidate=candidate, total_bytes=predict(candidate))
        more = larger.total_bytes - best.total_bytes
        sample_bytes = max(1.0, more / (batch - best.candidate.batch))
        if larger.total_bytes > memory_bytes:
            too_many = batch
        else:
            best = larger
    return best
