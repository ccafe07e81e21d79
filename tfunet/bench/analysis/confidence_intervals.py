"""Confidence intervals of ratios (speed-ups) and differences over repeats, and verdicts. Pure.

Why Student's t on logarithms, and no bootstrap: a sweep has 3 to 10 repeats, and a percentile
bootstrap of so few values cannot reach beyond them. With 5 values no p-value is below 6 %, so no
verdict could be adjusted for the number of comparisons. The intervals of t have their nominal
coverage for 3 to 10 repeats (tests/bench/analysis/test_coverage.py), and t gives p-values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, TypeVar

import numpy as np

from tfunet.learning.student_t import CONFIDENCE, MIN_INTERVAL, half_width, t_share

# Repeats by number, cases by name.
Key = TypeVar("Key", int, str)
Verdict = Literal["faster", "slower", "not distinguishable", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The values of a quantity over repeats, with median, range and quartiles."""

    median: float
    low: float
    high: float
    lower_quartile: float
    upper_quartile: float
    values: tuple[float, ...]

    def scaled(self, factor: float) -> "Spread":
        """Return the spread in another unit: of all values times `factor`."""
        return spread([factor * value for value in self.values])


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A difference of means or a ratio of geometric means, with its confidence interval.

    Args:
        low, high: NaN with too few repeats, as `error`.
        repeats: Number of pairs, or of values of the side with fewer.
        paired: Whether each repeat of one side is compared with the same repeat of the other.
        effect: The difference, or the logarithm of the ratio.
        error, freedom: Standard error of `effect`, and its degrees of freedom.
    """

    value: float
    low: float
    high: float
    repeats: int
    paired: bool
    effect: float
    error: float
    freedom: int

    @property
    def has_interval(self) -> bool:
        """Whether there are enough repeats for an interval, and so for a verdict."""
        return not math.isnan(self.error)

    def within(self, least: float, most: float) -> "Estimate":
        """Return the estimate with its interval cut at the ends of what is possible."""
        low, high = (min(max(end, least), most) for end in (self.low, self.high))
        return replace(self, low=low, high=high) if self.has_interval else self

    def p_value(self, slack: float = 0.0) -> float:
        """Return the two-sided probability that chance alone is this far beyond `slack`.

        Raises ValueError with too few repeats.
        """
        if not self.has_interval:
            raise ValueError(f"A p-value needs {MIN_INTERVAL} or more repeats, got {self.repeats}.")
        beyond = abs(self.effect) - slack
        if beyond <= 0:
            return 1.0
        return 2 * (1 - t_share(beyond / self.error, self.freedom)) if self.error else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Return median, range and quartiles (linear between neighbours)."""
    if not len(values):
        raise ValueError("A spread needs at least one value, got none.")
    low, lower, median, upper, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
    return Spread(
        median=float(median),
        low=float(low),
        high=float(high),
        lower_quartile=float(lower),
        upper_quartile=float(upper),
        values=tuple(float(value) for value in values),
    )


def efficiency(speed_up: float, num_replicas: int) -> float:
    """Return speed-up per replica: 1 is ideal.

    Speed-up is a ratio of images per second: with a fixed replica batch (weak scaling), that of
    throughput; with a fixed global batch (strong scaling), it equals the ratio of step times.
    """
    if num_replicas < 1:
        raise ValueError(f"num_replicas must be at least 1, got {num_replicas}.")
    return speed_up / num_replicas


def ratio(top: Mapping[int, float], bottom: Mapping[int, float]) -> Estimate:
    """Return the ratio of `top` to `bottom`; both are positive and given by repeat.

    It is the `difference` of logarithms, and so a geometric mean of ratios, whose inverse is the
    ratio of `bottom` to `top` (Fleming and Wallace 1986, doi:10.1145/5666.5673).
    """
    if any(value <= 0 for value in (*top.values(), *bottom.values())):
        raise ValueError("A ratio needs positive values.")
    logs = [{key: math.log(value) for key, value in side.items()} for side in (top, bottom)]
    log_ratio = difference(*logs)
    value, low, high = map(math.exp, (log_ratio.value, log_ratio.low, log_ratio.high))
    return replace(log_ratio, value=value, low=low, high=high)


def difference(top: Mapping[Key, float], bottom: Mapping[Key, float]) -> Estimate:
    """Return the difference of `top` and `bottom`, which are given by repeat, or by case.

    A repeat is a block of trials that ran close in time and with the same seed. With two or more
    common repeats, this is the mean difference within repeats, which cancels what a block shares (a
    slower machine, an easier split), with Student's interval. Otherwise it is the difference of the
    means, with Welch's interval.
    """
    if not top or not bottom:
        raise ValueError("A comparison needs at least one value on each side.")
    common = sorted(top.keys() & bottom.keys())
    paired = len(common) >= 2
    # One sample of differences, or two samples.
    samples = [[top[repeat] - bottom[repeat] for repeat in common]] if paired else []
    samples = samples or [list(top.values()), list(bottom.values())]
    count = min(len(sample) for sample in samples)
    effect = fmean(samples[0]) - sum(fmean(sample) for sample in samples[1:])
    error, freedom = _error(samples) if count >= MIN_INTERVAL else (math.nan, 0)
    half = half_width(error, freedom) if freedom else math.nan
    return Estimate(
        value=effect,
        low=effect - half,
        high=effect + half,
        repeats=count,
        paired=paired,
        effect=effect,
        error=error,
        freedom=freedom,
    )


def mean(values: Mapping[int, float]) -> Estimate:
    """Return the mean over repeats, with Student's interval."""
    return difference(values, dict.fromkeys(values, 0.0))


def holm(p_values: Sequence[float], num_others: int = 0) -> list[float]:
    """Return p-values adjusted for their number, by Holm's step-down procedure.

    They control the probability of any false verdict, however the comparisons depend on each other,
    and are never weaker than Bonferroni's (Holm 1979, jstor.org/stable/4615733).

    `num_others` are made, too, and not known. Each is taken for larger, which can only raise these.
    """
    adjusted, number = [0.0] * len(p_values), len(p_values) + num_others
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (number - rank) * p_values[at]))
        adjusted[at] = largest
    return adjusted


def adjusted_p_values(
    estimates: Sequence[Estimate | None], slack: float = 0.0, num_others: int = 0
) -> list[float | None]:
    """Return the adjusted p-value of every estimate; None for estimates without an interval.

    `num_others` as for `holm`.
    """
    known = [estimate for estimate in estimates if estimate is not None and estimate.has_interval]
    adjusted = iter(holm([estimate.p_value(slack) for estimate in known], num_others))
    return [
        next(adjusted) if estimate is not None and estimate.has_interval else None
        for estimate in estimates
    ]


def speed_verdict(ratio: Estimate, adjusted_p: float | None) -> Verdict:
    """Return the verdict on a ratio of speeds, given its adjusted p-value if it has one."""
    if adjusted_p is None:
        return "unknown"
    if adjusted_p >= 1 - CONFIDENCE:
        return "not distinguishable"
    return "faster" if ratio.effect > 0 else "slower"


def _error(samples: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return standard error and degrees of freedom of a mean, or of a difference of two means."""
    parts = [_variance(sample) / len(sample) for sample in samples]
    weights = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True))
    # Welch and Satterthwaite's degrees of freedom, rounded down for an interval that is rather too
    # wide. For one sample they are its size less one.
    freedom = max(1, math.floor(sum(parts) ** 2 / weights + 1e-9)) if weights else 1
    return math.sqrt(sum(parts)), freedom


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
