"""How far two steps differ, as shares of the largest numbers. Pure: numbers in, numbers out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np


@final
@dataclass(frozen=True, kw_only=True)
class Difference:
    """A quantity that differs.

    Args:
        kind: "outputs", "loss", "recorded", "gradients", "states" or "updates".
        name: Name of the variable, loss or metric.
        share: The largest difference as a share of the largest number.
    """

    kind: str
    name: str
    share: float


def share_of(one: Any, other: Any, least: float = 0.0) -> float:
    """Return the largest difference of two arrays as a share of the largest number in them.

    `least` takes the place of a smaller largest number. Arrays of other shapes, and numbers that
    are finite in one only, differ by infinity.
    """
    one, other = (np.asarray(value, np.float64) for value in (one, other))
    if one.shape != other.shape:
        return np.inf
    if np.array_equal(one, other, equal_nan=True):
        return 0.0
    gap, largest = _largest(one - other), max(_largest(one), _largest(other), least)
    return float(gap / largest) if np.isfinite(gap) and largest else np.inf


def _largest(values: np.ndarray) -> float:
    """Return the largest size of the numbers; NaN if one of them is."""
    return float(max(values.max(), -values.min())) if values.size else 0.0


def of_losses(one: Mapping[str, float], other: Mapping[str, float], step: str) -> list[Difference]:
    """Return how far losses and metrics differ; names with the prefix `step` are a step's own."""
    found = []
    for name in [*one, *(name for name in other if name not in one)]:
        share = share_of(one.get(name, np.nan), other.get(name, np.nan))
        is_loss = name == f"{step}loss"
        found.append(Difference(kind="loss" if is_loss else "recorded", name=name, share=share))
    return found


def of_gradients(
    one: Mapping[int, Sequence[np.ndarray]],
    other: Mapping[int, Sequence[np.ndarray]],
    names: Sequence[str],
    small: float,
) -> list[Difference]:
    """Return how far the gradients of each variable differ.

    One that is smaller than the share `small` of the largest counts as if it were that large: it
    may be nothing but rounding, as before a normalisation.
    """
    largest = max((_largest(value) for given in other.values() for value in given), default=0.0)
    found = []
    for number in sorted({*one, *other}):
        pair = one.get(number, ()), other.get(number, ())
        shares = [share_of(*both, largest * small) for both in zip(*pair, strict=False)]
        if len(pair[0]) != len(pair[1]):
            shares.append(np.inf)
        found.append(Difference(kind="gradients", name=names[number], share=max(shares)))
    return found


def of_values(
    before: Sequence[np.ndarray],
    one: Sequence[np.ndarray],
    other: Sequence[np.ndarray],
    names: Sequence[str],
    kinds: Sequence[str],
    least: float,
) -> list[Difference]:
    """Return how far variables differ after a step.

    Changes are compared where the values before the step are known, as for the first variables. A
    change below the share `least` of its variable's largest number counts as if it were that large.
    """
    found = []
    for at, (first, second) in enumerate(zip(one, other, strict=True)):
        if first.dtype.kind not in "fiu" or np.array_equal(first, second):
            share = 0.0 if np.array_equal(first, second) else np.inf
        elif at < len(before):
            was = before[at].astype(np.float64)
            share = share_of(first - was, second - was, least * _largest(was))
        else:
            share = share_of(first, second)
        found.append(Difference(kind=kinds[at], name=names[at], share=share))
    return found


def worst(differences: Sequence[Difference]) -> dict[str, float]:
    """Return the largest share of each kind."""
    shares: dict[str, float] = {}
    for one in differences:
        shares[one.kind] = max(shares.get(one.kind, 0.0), one.share)
    return shares
