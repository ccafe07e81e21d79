"""Statistics of repeated runs: medians, spread, speed-up, and intervals of ratios. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

# With fewer values than this, resampling a median only ever yields the few observed values, and
# no choice of percentiles covers the truth 95 % of the time: at 3 pairs the best is 75 %.
MIN_BOOTSTRAP = 5
# Of two repeats, an honest interval reaches from a hundredth to a hundred times: it says nothing.
MIN_INTERVAL = 3
DRAWS = 10_000

Method = Literal["bootstrap", "t", "none"]
Verdict = Literal["faster", "slower", "not distinguishable", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Repeated values of one quantity, every one kept."""

    median: float
    low: float
    high: float
    lower_quartile: float
    upper_quartile: float
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A difference or a ratio of two medians, with its confidence interval.

    Args:
        value: The estimate.
        low: Lower end of the interval; NaN where the repeats are too few for one.
        high: Its upper end.
        repeats: Pairs, or values of the side that has fewer.
        paired: Whether each repeat of one side was compared with the same repeat of the other.
        method: How the interval was made.
    """

    value: float
    low: float
    high: float
    repeats: int
    paired: bool
    method: Method

    def excludes(self, value: float) -> bool:
        """Whether the interval rules a value out; never without an interval."""
        return value < self.low or value > self.high


def spread(values: Sequence[float]) -> Spread:
    """Return median, range and quartiles (linear between neighbours)."""
    if not len(values):
        raise ValueError("There is no spread of no values.")
    low, lower, median, upper, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
    return Spread(
        median=float(median),
        low=float(low),
        high=float(high),
        lower_quartile=float(lower),
        upper_quartile=float(upper),
        values=tuple(float(one) for one in values),
    )


def efficiency(speed_up: float, num_replicas: int) -> float:
    """Return speed-up per replica, 1 at best.

    Speed-up is a ratio of images per second: with a fixed replica batch (weak scaling) that is
    what the job gained in throughput; with a fixed global batch (strong) it is the same number
    as the ratio of times per step.
    """
    if num_replicas < 1:
        raise ValueError(f"num_replicas must be at least 1, got {num_replicas}.")
    return speed_up / num_replicas


def speed_verdict(ratio: Estimate) -> Verdict:
    """Return what the interval of a ratio of speeds allows one to say."""
    if ratio.method == "none":
        return "unknown"
    if not ratio.excludes(1.0):
        return "not distinguishable"
    return "faster" if ratio.low > 1 else "slower"


def ratio(
    top: Mapping[int, float],
    bottom: Mapping[int, float],
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Return how many times `bottom` the values of `top` are; both positive, by repeat.

    It is `difference` of the logarithms.
    """
    if any(value <= 0 for value in (*top.values(), *bottom.values())):
        raise ValueError("A ratio needs positive values.")
    logs = [{key: math.log(value) for key, value in side.items()} for side in (top, bottom)]
    found = difference(logs[0], logs[1], confidence, seed)
    return replace(
        found, value=math.exp(found.value), low=math.exp(found.low), high=math.exp(found.high)
    )


def difference(
    top: Mapping[int, float],
    bottom: Mapping[int, float],
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Return how much larger the values of `top` are than those of `bottom`, by repeat.

    A repeat is a block of trials that ran close in time and with the same seed. Where both sides
    have two or more of the same repeats, it is the median of the differences within repeats,
    which cancels what a block shares (a machine that slowed down, an easy split); else the
    difference of the medians.

    The interval is, from 5 repeats on, the percentile bootstrap with the percentiles moved
    outwards for small samples (Hesterberg 2015, doi:10.1080/00031305.2015.1089789, section 5.3);
    below that Student's t; of fewer than 3 there is none.
    """
    if not top or not bottom:
        raise ValueError("A comparison needs at least one value on each side.")
    common = sorted(top.keys() & bottom.keys())
    paired = len(common) >= 2
    upper = np.array([top[one] for one in (common if paired else sorted(top))])
    lower = np.array([bottom[one] for one in (common if paired else sorted(bottom))])
    # One sample of differences, or two samples.
    samples = [upper - lower] if paired else [upper, lower]
    count = min(len(one) for one in samples)
    medians = [float(np.median(one)) for one in samples]
    value = medians[0] - sum(medians[1:])
    method: Method
    if count < MIN_INTERVAL:
        low, high, method = math.nan, math.nan, "none"
    elif count < MIN_BOOTSTRAP:
        # Centred on means, it still holds the medians: of so few, they are not that far apart.
        low, high, method = *_t_interval(samples, confidence), "t"
    else:
        low, high, method = *_bootstrap_interval(samples, confidence, seed), "bootstrap"
    return Estimate(value=value, low=low, high=high, repeats=count, paired=paired, method=method)


def _bootstrap_interval(
    samples: Sequence[np.ndarray], confidence: float, seed: int
) -> tuple[float, float]:
    dice = np.random.default_rng(seed)
    medians = [
        np.median(one[dice.integers(0, len(one), (DRAWS, len(one)))], axis=1) for one in samples
    ]
    count = min(len(one) for one in samples)
    reach = math.sqrt(count / (count - 1)) * t_quantile((1 + confidence) / 2, count - 1)
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(medians[0] - sum(medians[1:]), (tail, 1 - tail))
    return float(low), float(high)


def _t_interval(samples: Sequence[np.ndarray], confidence: float) -> tuple[float, float]:
    """Return Student's interval of a mean, or Welch's of a difference of means."""
    parts = [float(one.var(ddof=1)) / len(one) for one in samples]
    weights = sum(part**2 / (len(one) - 1) for part, one in zip(parts, samples, strict=True))
    # Welch and Satterthwaite's degrees of freedom, rounded down: rather too wide. For one sample
    # they are its size less one.
    freedom = max(1, math.floor(sum(parts) ** 2 / weights + 1e-9)) if weights else 1
    means = [float(one.mean()) for one in samples]
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(sum(parts))
    centre = means[0] - sum(means[1:])
    return centre - half, centre + half


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile, for a probability of at least 0.5, of Student's t distribution."""
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _t_share(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def _t_share(t: float, freedom: int) -> float:
    """Return P(T <= t) for t >= 0 (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (cosine, 0.0) if freedom % 2 else (1.0, 0.0)
    for power in range(1 if freedom % 2 else 0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    inner = sine * total if freedom % 2 == 0 else 2 / math.pi * (angle + sine * total)
    return 0.5 + inner / 2
