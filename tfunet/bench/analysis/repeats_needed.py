"""How many repeats a precision needs, given the noise of trials."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfunet.bench.analysis.sweep_summary import families_of, groups_of, summarise
from tfunet.bench.analysis.trial_noise import Noise, finest_precision, noise_of_records
from tfunet.bench.records.sweep_record import TrialRecord, read_sweep
from tfunet.bench.study.machine_noise import measure_noise
from tfunet.bench.study.trial_plan import StudyPlan
from tfunet.learning.student_t import CONFIDENCE, MIN_INTERVAL, t_quantile

# Distance of the 10th and 90th percentile of a normal distribution, in standard deviations.
DECILES = 2.5631
MOST_REPEATS = 1000


@dataclass(frozen=True, kw_only=True)
class Need:
    """The repeats that a precision needs.

    Args:
        precision: Difference between two ways that should be detected: 0.02 is 2 %.
        repeats: Number of repeats that detect it in 95 of 100 sweeps; None above MOST_REPEATS.
        half_width: Expected half width of the 95 % interval of a ratio with these repeats.
    """

    precision: float
    repeats: int | None
    half_width: float | None
    num_comparisons: int
    noise: Noise

    def finest(self, repeats: int) -> float:
        """Return the smallest difference that so many repeats detect."""
        return finest_precision(self.noise, repeats, self.num_comparisons)


def repeats_needed(noise: Noise, precision: float, num_comparisons: int) -> Need:
    """Return how many repeats detect a difference of `precision` among all comparisons.

    This is the n for which (t(alpha) + t(power)) * deviation / sqrt(n) is the logarithm of the
    difference. alpha is divided by the number of comparisons, which is the first and hardest step
    of Holm's method. If the noise was estimated from few degrees of freedom, t has these, which
    allows for a lucky estimate (Stein 1945, doi:10.1214/aoms/1177731088).

    Raises ValueError for an impossible precision.
    """
    if not 0 < precision < 1:
        raise ValueError(f"precision must lie between 0 % and 100 %, got {precision:.0%}.")
    if noise.deviation < 0:
        raise ValueError(f"noise must be 0 % or more, got {noise.deviation:.0%}.")
    # A study of one way has a ratio too: its speed-up.
    num_comparisons = max(1, num_comparisons)
    need = Need(
        precision=precision,
        repeats=None,
        half_width=None,
        num_comparisons=num_comparisons,
        noise=noise,
    )
    if need.finest(MOST_REPEATS) > precision:
        return need
    low, high = MIN_INTERVAL - 1, MOST_REPEATS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if need.finest(middle) <= precision else (middle, high)
    half = t_quantile((1 + CONFIDENCE) / 2, high - 1) * noise.deviation / math.sqrt(high)
    return replace(need, repeats=high, half_width=math.expm1(half))


def noise_of_machine(measured: Mapping[str, Any]) -> Noise:
    """Return the noise if trials vary as much as the fixed computation of `measure_noise`."""
    return Noise(
        deviation=math.sqrt(2) * float(measured["spread"]) / DECILES,
        freedom=None,
        source=(
            "there are no recorded repeats; assuming that a trial varies as much as a short "
            f"computation on this machine just did, {float(measured['spread']):.1%} from the 10th "
            "to the 90th percentile"
        ),
    )


def assumed_noise(trial_deviation: float) -> Noise:
    """Return the noise for an assumed standard deviation of trials."""
    return Noise(
        deviation=math.sqrt(2) * trial_deviation,
        freedom=None,
        source=f"your assumption that a trial varies by {trial_deviation:.1%}",
    )


def need_of(
    planned: StudyPlan, folder: Path, precision: float, assumed: float | None = None
) -> Need:
    """Return the repeats that a plan needs for a precision.

    The noise is the `assumed` standard deviation of a trial, or that of the records in the sweep's
    folder, or that of this machine now.
    """
    noise = None if assumed is None else assumed_noise(assumed)
    if noise is None and (folder / "plan.json").is_file():
        noise = noise_of_records(summarise(read_sweep(folder)))
    if noise is None:
        noise = noise_of_machine(measure_noise())
    return repeats_needed(noise, precision, num_comparisons(planned))


def num_comparisons(planned: StudyPlan) -> int:
    """Return how many comparisons of speed the trials of a plan will give."""
    trials = [
        TrialRecord(
            id=trial.id,
            folder=Path(trial.id),
            cell=trial.cell,
            repeat=trial.repeat,
            scaling=trial.scaling,
            settings=trial.settings,
            config=trial.config,
            environment={},
        )
        for trial in planned.trials
    ]
    return sum(
        math.comb(len(cells), 2)
        for family in families_of(trials)
        for cells in groups_of(family.cells)
    )
