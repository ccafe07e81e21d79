"""A cell of a study: statistics over the repeats of one combination of settings. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfunet.bench.analysis import confidence_intervals as intervals
from tfunet.bench.analysis.folds import num_folds
from tfunet.bench.analysis.lost_efficiency import Lost, bus_bytes_per_second, lost
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.bench.records.trial_result import Result
from tfunet.bench.records.ways_of_training import by_repeat, speed_by_repeat

PHASES = ("start", "first step", "steady steps", "evaluation", "saving")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All repeats of one combination of settings.

    Args:
        speed_up_repeats: Speed-up of every repeat, against the same repeat of the baseline, or
            against its median.
        score_difference: The main score (mean Dice) minus that of the baseline; None without a
            baseline.
        lost: Lost efficiency of every repeat that measured it and has a baseline.
        score_p: p-value of `score_difference`, adjusted for all those of the sweep, or None.
    """

    way: str
    num_replicas: int
    replica_batch: int
    global_batch: int
    trials: tuple[TrialRecord, ...]
    is_baseline: bool
    speed_up: intervals.Estimate | None
    speed_up_repeats: tuple[float, ...]
    score_difference: intervals.Estimate | None
    lost: tuple[Lost, ...] = ()
    score_p: float | None = None

    @property
    def label(self) -> str:
        """Way and number of replicas: "horovod x2"."""
        return f"{self.way} x{self.num_replicas}"

    @property
    def num_folds(self) -> int:
        """Folds that its runs held out; 1 without a cross-validation."""
        return num_folds(self.trials)

    @property
    def num_devices(self) -> int:
        """Devices of all replicas; more than these if samples are split."""
        return self.trials[0].config.num_devices

    @property
    def done(self) -> tuple[TrialRecord, ...]:
        """The trials that ended with all checks true."""
        return tuple(trial for trial in self.trials if trial.result is not None)

    @property
    def results(self) -> tuple[Result, ...]:
        """The results of the trials that are done."""
        return tuple(trial.result for trial in self.trials if trial.result is not None)

    @property
    def images_per_second(self) -> intervals.Spread | None:
        """Speed of all replicas together, from steady steps."""
        return _spread(result.images_per_second for result in self.results)

    @property
    def synthetic_share(self) -> intervals.Spread | None:
        """Time of a step on data in memory divided by that of a step on real data."""
        return _spread(result.synthetic_share for result in self.results)

    @property
    def average_seconds(self) -> intervals.Spread | None:
        """Time of averaging the gradients alone."""
        return _spread(result.average_seconds for result in self.results)

    @property
    def bus_bytes_per_second(self) -> intervals.Spread | None:
        """Bus bandwidth of averaging the gradients."""
        return _spread(
            bus_bytes_per_second(result.gradient_bytes, result.average_seconds, self.num_devices)
            if result.gradient_bytes and result.average_seconds
            else None
            for result in self.results
        )

    @property
    def efficiency(self) -> float | None:
        """Speed-up per device."""
        return (
            None
            if self.speed_up is None
            else intervals.efficiency(self.speed_up.value, self.num_devices)
        )

    @property
    def resident_bytes(self) -> intervals.Spread | None:
        """Peak resident memory, summed over the processes."""
        return _spread(sum(result.peak_resident_bytes) or None for result in self.results)

    @property
    def device_bytes(self) -> intervals.Spread | None:
        """Peak device memory of the process that needs most."""
        return _spread(max(result.peak_device_bytes, default=None) for result in self.results)

    @property
    def device_hours(self) -> intervals.Spread | None:
        """Hours of a run times its devices."""
        seconds = [result.elapsed_seconds for result in self.results]
        return _spread(
            None if run_seconds is None else run_seconds * self.num_devices / 3600
            for run_seconds in seconds
        )

    @property
    def energy_joules(self) -> intervals.Spread | None:
        """Energy of the training loop, if counters could be read."""
        return _spread(result.energy_joules for result in self.results)

    @property
    def joules_per_sample(self) -> intervals.Spread | None:
        """Energy divided by the samples that the run trained on."""
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
        """Names of the scored regions."""
        return list(dict.fromkeys(region for result in self.results for region in result.dice))

    def dice(self, region: str) -> intervals.Spread | None:
        """Return the mean Dice over cases of each repeat."""
        return _spread(result.dice.get(region) for result in self.results)

    def iou(self, region: str) -> intervals.Spread | None:
        """Return the mean IoU over cases of each repeat."""
        return _spread(result.iou.get(region) for result in self.results)

    @property
    def targets(self) -> list[str]:
        """Names of the predicted numbers; none for masks."""
        return list(dict.fromkeys(target for result in self.results for target in result.mae))

    def mae(self, target: str) -> intervals.Spread | None:
        """Return the mean absolute error over cases of each repeat."""
        return _spread(result.mae.get(target) for result in self.results)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the results have, by the names that callbacks see."""
        return tuple(dict.fromkeys(name for result in self.results for name in result.metrics))

    def metric(self, name: str) -> intervals.Spread | None:
        """Return a metric of each repeat in which it is defined."""
        return _spread(result.metrics.get(name) for result in self.results)

    @property
    def scores(self) -> dict[str, str | None]:
        """The scores of runs on arrays, as in `Result`."""
        return {name: mode for result in self.results for name, mode in result.scores.items()}

    def score(self, name: str) -> intervals.Spread | None:
        """Return one of `scores` of each repeat in which it is defined."""
        return _spread(result.value_of(name) for result in self.results)

    @property
    def main_score(self) -> intervals.Spread | None:
        """The score by which runs are compared; see `Result`."""
        return _spread(result.main_score for result in self.results)

    @property
    def mean_dice(self) -> intervals.Spread | None:
        """Mean of `dice` over regions."""
        return _spread(result.mean_dice for result in self.results)

    @property
    def miou(self) -> intervals.Spread | None:
        """Mean of the dataset IoU over regions."""
        return _spread(result.miou for result in self.results)

    @property
    def phases(self) -> dict[str, float] | None:
        """Median seconds of each phase of a run; None without results."""
        rows = [_phases(result) for result in self.results]
        if not rows:
            return None
        return {name: intervals.spread([row[name] for row in rows]).median for name in PHASES}


def speed_ratio(
    upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]
) -> intervals.Estimate | None:
    """Return how many times as fast `upper` is; None if a side has no trial with numbers."""
    top, bottom = speed_by_repeat(upper), speed_by_repeat(lower)
    return intervals.ratio(top, bottom) if top and bottom else None


def speed_ratios(upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]) -> tuple[float, ...]:
    """Return the ratio of every repeat to the same repeat of `lower`, or else to their median."""
    top, bottom = speed_by_repeat(upper), speed_by_repeat(lower)
    if not bottom:
        return ()
    typical = intervals.spread(list(bottom.values())).median
    return tuple(value / bottom.get(repeat, typical) for repeat, value in top.items())


def score_difference(
    upper: Iterable[TrialRecord], lower: Iterable[TrialRecord]
) -> intervals.Estimate | None:
    """Return the difference of the main score; None if a side has none."""
    top, bottom = (by_repeat(side, lambda result: result.main_score) for side in (upper, lower))
    return intervals.difference(top, bottom) if top and bottom else None


def lost_by_repeat(
    trials: Iterable[TrialRecord], baseline: Iterable[TrialRecord], scaling: str
) -> tuple[Lost, ...]:
    """Return the lost efficiency of each repeat that was measured, as was the baseline's."""
    runs, singles = (by_repeat(side, lambda result: result) for side in (trials, baseline))
    losses = [
        lost(run, singles[repeat], scaling) for repeat, run in runs.items() if repeat in singles
    ]
    return tuple(parts for parts in losses if parts is not None)


def _spread(values: Iterable[float | None]) -> intervals.Spread | None:
    known = [float(value) for value in values if value is not None]
    return intervals.spread(known) if known else None


def _phases(result: Result) -> dict[str, float]:
    first = result.first_step_seconds or 0.0
    return {
        "start": result.start_seconds or 0.0,
        "first step": first,
        # training_seconds includes the first step.
        "steady steps": max(0.0, (result.training_seconds or 0.0) - first),
        "evaluation": result.evaluation_seconds or 0.0,
        "saving": result.saving_seconds or 0.0,
    }
