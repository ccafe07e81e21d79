"""Splits the efficiency that a run loses into parts. Pure.

All times are of one optimizer step. Each part is the difference of two measured times, minus the
same difference of a run with one replica, so that the parts sum to the total:

    steps of the run
      | rest             steps of the run - the same steps repeated after the run
    steps on real data
      | input            steps on real data - steps on data in memory
    steps on data in memory
      | communication    - steps without averaging gradients, on the slowest process
    steps alone, slowest process
      | stragglers       slowest process - fastest process
    steps alone, fastest process
      | computation      - the same work on one replica, undisturbed
    one replica
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from tfunet.bench.records.trial_result import Result


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The parts of the lost efficiency, as shares of a run's step time."""

    computation: float
    input: float
    communication: float
    stragglers: float
    rest: float

    @property
    def total(self) -> float:
        """The lost efficiency: 1 minus the efficiency."""
        return sum(vars(self).values())


def lost(run: Result, single: Result, scaling: str) -> Lost | None:
    """Return the parts that `run` loses against a `single` replica; None if not measured."""
    share = 1 / run.num_replicas if scaling == "strong" else 1.0
    times, single_times = _times(run), _times(single)
    if times is None or single_times is None or run.slowest_alone_seconds is None:
        return None
    step_seconds, real, synthetic, slowest, fastest = times
    single_seconds, single_real, single_synthetic, *_ = (share * value for value in single_times)
    return Lost(
        computation=(fastest - single_synthetic) / step_seconds,
        input=((real - synthetic) - (single_real - single_synthetic)) / step_seconds,
        communication=(synthetic - slowest) / step_seconds,
        stragglers=(slowest - fastest) / step_seconds,
        rest=((step_seconds - real) - (single_seconds - single_real)) / step_seconds,
    )


def mean_lost(repeats: Sequence[Lost]) -> Lost:
    """Return the mean of each part over repeats; the means sum to the mean total."""
    return Lost(
        **{part.name: fmean(getattr(row, part.name) for row in repeats) for part in fields(Lost)}
    )


def bus_bytes_per_second(num_bytes: float, seconds: float, num_replicas: int) -> float:
    """Return the bus bandwidth of an all-reduce, as nccl-tests defines it.

    With any algorithm, each of n processes sends and receives 2 (n - 1) / n of the data.
    """
    return 2 * (num_replicas - 1) / num_replicas * num_bytes / seconds


def _times(result: Result) -> tuple[float, ...] | None:
    times = (
        result.median_step_seconds,
        result.real_seconds,
        result.synthetic_seconds,
        # One process has no other process to wait for.
        result.slowest_alone_seconds or result.synthetic_seconds,
        result.fastest_alone_seconds or result.synthetic_seconds,
    )
    return None if None in times else tuple(float(seconds or 0.0) for seconds in times)
