"""Splits the efficiency that a run loses into parts. Pure.

All times are of one optimizer step. Each part is the difference of two measured times, minus the
same difference of a run with one replica, so that the parts sum to the total:

    steps of the run
      | rest             steps of the run - the same steps repeated after the run
    steps on real data
      | input            steps on real data - steps on data in memory
    steps on data in memory
      | communication    - steps without averaging gradients, on the slowest process
    steps without averaging gradients, slowest process
      | halo             - steps that exchange no borders either; only where samples are split
    steps alone, slowest process
      | stragglers       slowest process - fastest process
    steps alone, fastest process
      | computation      - the same work on one replica, undisturbed
    one replica

Where the network is in stages, other parts take the place of the stragglers:

    steps that exchange across stages only, slowest process
      | transfer         - the bubble, and steps alone
      | bubble           waiting that the schedule of these stages demands
    steps alone, slowest process
      | imbalance        slowest process - mean of the processes
    steps alone, mean of the processes
      | computation      - the same work on one replica, undisturbed
    one replica

On tiles, the share of the time of steps alone that is spent on halos goes from computation to halo,
by the number of pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tfunet.bench.records.trial_result import Result


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The parts of the lost efficiency, as shares of a run's step time."""

    computation: float
    input: float
    communication: float
    stragglers: float | None = None
    rest: float
    halo: float | None = None
    transfer: float | None = None
    bubble: float | None = None
    imbalance: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """The parts that were measured, by their names."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def total(self) -> float:
        """The lost efficiency: 1 minus the efficiency."""
        return sum(self.parts.values())


def lost(run: Result, single: Result, scaling: str) -> Lost | None:
    """Return the parts that `run` loses against a `single` device; None if not measured."""
    # Devices that share a sample each have a part of its work.
    share = 1 / (run.num_parts * (run.num_replicas if scaling == "strong" else 1))
    times, single_times = _times(run), _times(single)
    if times is None or single_times is None or run.slowest_alone_seconds is None:
        return None
    step_seconds, real, synthetic, slowest, fastest = times
    single_seconds, single_real, single_synthetic, *_ = (share * value for value in single_times)
    exchanging, bubble, mean = run.exchanging_seconds, run.bubble_seconds, run.mean_alone_seconds
    parts = {
        "input": (real - synthetic) - (single_real - single_synthetic),
        "communication": synthetic - (exchanging or slowest),
        "rest": (step_seconds - real) - (single_seconds - single_real),
    }
    if bubble is None or exchanging is None or mean is None:
        if exchanging is not None:
            parts["halo"] = exchanging - slowest
        alone = fastest
        parts["stragglers"] = slowest - fastest
    else:
        crossing = exchanging
        if run.crossing_seconds is not None:
            crossing = run.crossing_seconds
            parts["halo"] = exchanging - crossing
        parts |= {
            "transfer": crossing - slowest - bubble,
            "bubble": bubble,
            "imbalance": slowest - mean,
        }
        alone = mean
    # Computing the halos of tiles counts as halo.
    parts["computation"] = alone / run.redundancy - single_synthetic / single.redundancy
    if run.redundancy > 1 or single.redundancy > 1:
        redundant = (alone - single_synthetic) - parts["computation"]
        parts["halo"] = parts.get("halo", 0.0) + redundant
    return Lost(**{name: seconds / step_seconds for name, seconds in parts.items()})


def mean_lost(repeats: Sequence[Lost]) -> Lost:
    """Return the mean of each part over repeats; the means sum to the mean total.

    Repeats are those of one way, which all measured the same parts.
    """
    return Lost(**{name: fmean(row.parts[name] for row in repeats) for name in repeats[0].parts})


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
