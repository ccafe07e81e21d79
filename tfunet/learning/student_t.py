"""Student's t distribution, and the spread of a score over cases. No TensorFlow."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# An interval of two values reaches from a hundredth to a hundred times: it says nothing.
MIN_INTERVAL = 3
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class CaseSpread:
    """A score over cases; NaN where there are too few.

    Attributes:
        cases: Number of cases in which the score is defined.
        sd: Sample standard deviation, of at least two cases.
        low, high: Confidence interval of the mean, of at least MIN_INTERVAL cases.
    """

    cases: int
    mean: float
    sd: float
    median: float
    low: float
    high: float


def case_spread(
    values: Iterable[float], least: float = -math.inf, most: float = math.inf
) -> CaseSpread:
    """Return the spread of a score that lies between `least` and `most`; NaN is left out.

    The interval is Student's, cut at the ends of what is possible.
    """
    defined = np.array([value for value in values if not math.isnan(value)])
    count = len(defined)
    mean = float(defined.mean()) if count else math.nan
    sd = float(defined.std(ddof=1)) if count > 1 else math.nan
    half = half_width(sd / math.sqrt(count), count - 1) if count >= MIN_INTERVAL else math.nan
    return CaseSpread(
        cases=count,
        mean=mean,
        sd=sd,
        median=float(np.median(defined)) if count else math.nan,
        # In this order: max(NaN, x) is NaN.
        low=max(mean - half, least),
        high=min(mean + half, most),
    )


def half_width(error: float, freedom: int) -> float:
    """Return half the width of the interval of a mean, from its standard error."""
    return t_quantile((1 + CONFIDENCE) / 2, freedom) * error


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution for a probability of at least 0.5."""
    low, high = 0.0, 1.0
    while t_share(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if t_share(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def t_share(t: float, freedom: int) -> float:
    """Return P(T <= t) for t >= 0 (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (cosine, 0.0) if freedom % 2 else (1.0, 0.0)
    for power in range(1 if freedom % 2 else 0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    inner = sine * total if freedom % 2 == 0 else 2 / math.pi * (angle + sine * total)
    return 0.5 + inner / 2
