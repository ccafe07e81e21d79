"""A cell of a sweep: the repeats of one combination of settings; ratios of two cells. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    Spread,
    difference,
    efficiency,
    ratio,
    spread,
)
from tfunet.bench.analysis.lost_efficiency import Lost, bus_bytes_per_second, lost
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.records.trial_result import Result
from tfunet.bench.records.ways_of_training import speed_by_repeat

PHASES = ("start", "first step", "steady steps", "evaluation", "saving")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All repeats of one combination of settings.

    Args:
        way: Backend with its options: what is compared, and never drawn as one line with another.
        trials: All of them; `done` are those whose numbers count.
        speed_up: Images per second over those of the baseline; None without one.
        speed_up_repeats: The same of every repeat: over the baseline's of that repeat where it
            has one, else over its median.
        dice_difference: Mean Dice less that of the baseline; None without one.
        lost: Where efficiency is lost, of every repeat that has measured it and has a baseline.
        dice_p: p-value of `dice_difference`, adjusted for all those of the sweep; None where
            there is none.
    """

    way: str
    num_replicas: int
    replica_batch: int
    global_batch: int
    trials: tuple[TrialRecord, ...]
    is_baseline: bool
    speed_up: Estimate | None
    speed_up_repeats: tuple[float, ...]
    dice_difference: Estimate | None
    lost: tuple[Lost, ...] = ()
    dice_p: float | None = None

    @property
    def label(self) -> str:
        """Way and replicas: "horovod x2"."""
        return f"{self.way} x{self.num_replicas}"

    @property
    def done(self) -> tuple[TrialRecord, ...]:
        """The trials that ended with all their checks true."""
        return tuple(trial for trial in self.trials if trial.result is not None)

    @property
    def results(self) -> tuple[Result, ...]:
        """Their results."""
        return tuple(trial.result for trial in self.trials if trial.result is not None)

    @property
    def is_stopped(self) -> bool:
        """Whether it was given up as hopeless before all its repeats."""
        return any(trial.state == "hopeless" for trial in self.trials)

    @property
    def images_per_second(self) -> Spread | None:
        """Of all replicas together, over steady steps."""
        return _spread(result.images_per_second for result in self.results)

    @property
    def synthetic_share(self) -> Spread | None:
        """How near the steps come to those with data in memory, over the repeats."""
        return _spread(result.synthetic_share for result in self.results)

    @property
    def average_seconds(self) -> Spread | None:
        """Of the average of the gradients, alone."""
        return _spread(result.average_seconds for result in self.results)

    @property
    def bus_bytes_per_second(self) -> Spread | None:
        """Bus bandwidth of that average."""
        return _spread(
            bus_bytes_per_second(result.gradient_bytes, result.average_seconds, result.num_replicas)
            if result.gradient_bytes and result.average_seconds
            else None
            for result in self.results
        )

    @property
    def efficiency(self) -> float | None:
        """Speed-up per replica."""
        return None if self.speed_up is None else efficiency(self.speed_up.value, self.num_replicas)

    @property
    def resident_bytes(self) -> Spread | None:
        """Peak resident memory, summed over the processes."""
        return _spread(sum(result.peak_resident_bytes) or None for result in self.results)

    @property
    def device_bytes(self) -> Spread | None:
        """Peak device memory of the process that needed most."""
        return _spread(max(result.peak_device_bytes, default=None) for result in self.results)

    @property
    def device_hours(self) -> Spread | None:
        """Hours of a whole run times its replicas: what it costs, used or waiting."""
        seconds = [result.elapsed_seconds for result in self.results]
        return _spread(
            None if run_seconds is None else run_seconds * self.num_replicas / 3600
            for run_seconds in seconds
        )

    @property
    def energy_joules(self) -> Spread | None:
        """Of the training loop of a whole run, where counters could be read."""
        return _spread(result.energy_joules for result in self.results)

    @property
    def joules_per_sample(self) -> Spread | None:
        """The same over the samples that the run trained on."""
        return _spread(
            None
            if trial.result.energy_joules is None or not trial.result.steps
            else trial.result.energy_joules / (trial.result.steps * trial.config.global_samples)
            for trial in self.trials
            if trial.result is not None
        )

    @property
    def speeds(self) -> dict[int, float]:
        """Images per second by repeat."""
        return speed_by_repeat(self.trials)

    @property
    def regions(self) -> list[str]:
        """Names of the regions that were scored."""
        return list(dict.fromkeys(region for result in self.results for region in result.dice))

    def dice(self, region: str) -> Spread | None:
        """Return the mean Dice over cases, over the repeats."""
        return _spread(result.dice.get(region) for result in self.results)

    def iou(self, region: str) -> Spread | None:
        """Return the mean IoU over cases, over the repeats."""
        return _spread(result.iou.get(region) for result in self.results)

    @property
    def mean_dice(self) -> Spread | None:
        """Mean over regions of `dice`, over the repeats."""
        return _spread(result.mean_dice for result in self.results)

    @property
    def phases(self) -> dict[str, float] | None:
        """Median seconds of each phase of a run; None without results."""
        rows = [_phases(result) for result in self.results]
        if not rows:
            return None
        return {name: spread([row[name] for row in rows]).median for name in PHASES}


def speed_ratio(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> Estimate | None:
    """Return how many times as fast `upper` is; None where a side has no trial with numbers."""
    top, bottom = speed_by_repeat(upper), speed_by_repeat(lower)
    return ratio(top, bottom) if top and bottom else None


def speed_ratios(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> tuple[float, ...]:
    """Return the ratio of every repeat: over its own of `lower`, else over the median of those."""
    top, bottom = speed_by_repeat(upper), speed_by_repeat(lower)
    if not bottom:
        return ()
    typical = spread(list(bottom.values())).median
    return tuple(value / bottom.get(repeat, typical) for repeat, value in top.items())


def dice_difference(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> Estimate | None:
    """Return by how much the mean Dice of `upper` is higher; None where a side has none."""
    top, bottom = _dice_by_repeat(upper), _dice_by_repeat(lower)
    return difference(top, bottom) if top and bottom else None


def lost_by_repeat(
    trials: Iterable[TrialRecord], baseline: Iterable[TrialRecord], scaling: str
) -> tuple[Lost, ...]:
    """Return where each repeat loses efficiency, where that and the same repeat of one replica
    were measured."""
    baseline_results = {
        trial.repeat: trial.result for trial in baseline if trial.result is not None
    }
    pairs = [
        (trial.result, baseline_results.get(trial.repeat))
        for trial in trials
        if trial.result is not None
    ]
    losses = [
        lost(run, baseline_result, scaling)
        for run, baseline_result in pairs
        if baseline_result is not None
    ]
    return tuple(lost_parts for lost_parts in losses if lost_parts is not None)


def _dice_by_repeat(trials: Iterable[TrialRecord]) -> dict[int, float]:
    dice_by_repeat = {
        trial.repeat: trial.result.mean_dice for trial in trials if trial.result is not None
    }
    return {repeat: dice for repeat, dice in dice_by_repeat.items() if dice is not None}


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [float(value) for value in values if value is not None]
    return spread(known) if known else None


def _phases(result: Result) -> dict[str, float]:
    first = result.first_step_seconds or 0.0
    return {
        "start": result.start_seconds or 0.0,
        "first step": first,
        # training_seconds holds the first step too.
        "steady steps": max(0.0, (result.training_seconds or 0.0) - first),
        "evaluation": result.evaluation_seconds or 0.0,
        "saving": result.saving_seconds or 0.0,
    }
