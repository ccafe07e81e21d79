"""The noise of trials, and which differences it lets so many repeats detect."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfunet.bench.analysis.sweep_summary import Summary
from tfunet.learning.student_t import CONFIDENCE, t_quantile

# Share of sweeps in which a difference as large as the precision is detected.
POWER = 0.95
# Nobody runs more repeats than this to tell two ways apart, unless the study has more already.
FEASIBLE_REPEATS = 20


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Variation of the ratio of two trials of the same repeat.

    Args:
        deviation: Standard deviation of its logarithm: 0.02 is 2 %.
        freedom: Degrees of freedom of that estimate; None for an assumption.
    """

    deviation: float
    freedom: int | None
    source: str


def finest_precision(noise: Noise, repeats: int, num_comparisons: int) -> float:
    """Return the smallest difference that so many repeats detect among all comparisons; 1 if it is
    100 % or more.
    """
    freedom = min(repeats - 1, noise.freedom or repeats - 1)
    alpha = (1 - CONFIDENCE) / (2 * max(1, num_comparisons))
    quantiles = t_quantile(1 - alpha, freedom) + t_quantile(POWER, freedom)
    effect = quantiles * noise.deviation / math.sqrt(repeats)
    return math.expm1(min(effect, math.log(2)))


def block_noise(speeds: Sequence[Mapping[int, float]]) -> tuple[float, int]:
    """Return the variance of the log ratio of two cells within a repeat, and its freedom.

    With cells as rows and repeats as columns of `speeds`, the residual of the logarithms after
    subtracting the means of both is the noise of one cell. A ratio has twice its variance.
    """
    common = sorted(set.intersection(*(set(by_repeat) for by_repeat in speeds)))
    freedom = (len(speeds) - 1) * (len(common) - 1)
    if freedom < 1:
        return 0.0, 0
    logs = np.log([[by_repeat[repeat] for repeat in common] for by_repeat in speeds])
    rest = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    return 2 * float((rest**2).sum()) / freedom, freedom


def noise_of_records(summary: Summary) -> Noise | None:
    """Return the pooled noise within repeats; None without two cells and two repeats."""
    parts = []
    for family in summary.families:
        speeds = [cell.speeds for cell in family.cells if cell.results]
        if speeds:
            parts.append(block_noise(speeds))
    freedom = sum(part for _, part in parts)
    if not freedom:
        return None
    pooled = sum(variance * part for variance, part in parts) / freedom
    return Noise(
        deviation=math.sqrt(pooled),
        freedom=freedom,
        source=f"from the records in {summary.sweep.folder}, {freedom} degrees of freedom",
    )
