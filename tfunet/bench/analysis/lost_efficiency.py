"""Splits the efficiency that a run loses into where it is lost. Pure.

All times are of one optimizer step. Each part is one measured time less another one, less the same
of one replica, so that they sum to the whole:

    the run's steps
      | rest             the run's steps less the same steps after it
    steps on its data
      | input            less those with data in memory
    steps with data in memory
      | communication    less those that average nothing, on the slowest process
    alone, the slowest process
      | stragglers       less those on the fastest process
    alone, the fastest process
      | computation      less what the work takes on one replica, undisturbed
    one replica
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from tfunet.bench.records.trial_result import Result


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Shares of a run's step time: 1 less its efficiency, and the parts that sum to that."""

    computation: float
    input: float
    communication: float
    stragglers: float
    rest: float

    @property
    def whole(self) -> float:
        """The efficiency that is lost."""
        return sum(vars(self).values())


def lost(run: Result, single: Result, scaling: str) -> Lost | None:
    """Return where `run` loses efficiency against `one` replica; None if it was not measured."""
    share = 1 / run.num_replicas if scaling == "strong" else 1.0
    times, alone = _times(run), _times(single)
    if times is None or alone is None or run.slowest_alone_seconds is None:
        return None
    step_seconds, real, synthetic, slowest, fastest = times
    one_whole, one_real, one_synthetic, *_ = (share * value for value in alone)
    return Lost(
        computation=(fastest - one_synthetic) / step_seconds,
        input=((real - synthetic) - (one_real - one_synthetic)) / step_seconds,
        communication=(synthetic - slowest) / step_seconds,
        stragglers=(slowest - fastest) / step_seconds,
        rest=((step_seconds - real) - (one_whole - one_real)) / step_seconds,
    )


def mean_lost(repeats: Sequence[Lost]) -> Lost:
    """Return the mean of each part over repeats; means sum to the mean of the whole."""
    return Lost(
        **{part.name: fmean(getattr(row, part.name) for row in repeats) for part in fields(Lost)}
    )


def bus_bytes_per_second(num_bytes: float, seconds: float, num_replicas: int) -> float:
    """Return the bus bandwidth of an all-reduce, as nccl-tests defines it.

    Each of n processes must send and receive 2 (n - 1) / n of the data, whatever the algorithm.
    """
    return 2 * (num_replicas - 1) / num_replicas * num_bytes / seconds


def _times(result: Result) -> tuple[float, ...] | None:
    times = (
        result.median_step_seconds,
        result.real_seconds,
        result.synthetic_seconds,
        # Of one replica, and of several in one process: there is nobody to wait for.
        result.slowest_alone_seconds or result.synthetic_seconds,
        result.fastest_alone_seconds or result.synthetic_seconds,
    )
    return None if None in times else tuple(float(seconds or 0.0) for seconds in times)
