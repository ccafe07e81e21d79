"""Compares the Dice of every case at two resolutions: is the higher one worth it?

The networks see the same patches of the same cases, at full or lower resolution, and are scored on
the same masks. Pure but for reading.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from tfunet.bench.analysis.case_dice import dice_by_case
from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    adjusted_p_values,
    difference,
)
from tfunet.bench.notebooks.growth import ended
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.bench.records.ways_of_training import by_repeat
from tfunet.bench.report.number_text import p_text
from tfunet.config.keys import flat
from tfunet.files.typed import FieldError, Positive, RecordError, typed
from tfunet.learning.student_t import CONFIDENCE, MIN_INTERVAL
from tfunet.record import RunFolder

# Option of the model: so many voxels along each axis become one.
COARSER = "model_options.coarser"


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The runs of one data set at one resolution.

    Args:
        shape: Spatial shape of what the network sees.
        failed: How the other runs ended: "without support: out of memory".
    """

    coarser: int
    shape: tuple[int, ...]
    trained: tuple[TrialRecord, ...]
    failed: tuple[str, ...]

    @property
    def label(self) -> str:
        """The shape that the network sees: "24 x 24 x 24"."""
        return " x ".join(map(str, self.shape))

    def case_dice(self, region: str) -> dict[str, float]:
        """Return the mean Dice over the runs, by case."""
        values: dict[str, list[float]] = {}
        for trial in self.trained:
            for case, regions in dice_by_case(trial.folder).items():
                if region in regions:
                    values.setdefault(case, []).append(regions[region])
        return {case: fmean(run_dice) for case, run_dice in values.items()}

    def mean_dice(self, region: str) -> dict[int, float]:
        """Return the mean Dice over the cases, by repeat."""
        return by_repeat(self.trained, lambda result: result.dice.get(region))


@dataclass(frozen=True, kw_only=True)
class DataSetResolutions:
    """A data set at full resolution, which is the first, and at lower ones."""

    data: str
    regions: tuple[str, ...]
    resolutions: tuple[Resolution, ...]


def read_resolutions(sweep: SweepRecord, key: str = COARSER) -> tuple[DataSetResolutions, ...]:
    """Return the data sets of a sweep with finished runs at two or more resolutions.

    `key` is the setting of the model that makes its input coarser; 1 by default. Raises ValueError
    if there is no such data set.
    """
    groups: dict[str, dict[int, list[TrialRecord]]] = {}
    for trial in sweep.readable:
        if trial.state not in ("waiting", "running"):
            try:
                data = _data(trial)
                coarser = typed(flat(vars(trial.config)).get(key, 1), Positive, key)
            except (RecordError, FieldError) as error:
                warnings.warn(f"{trial.id} is left out: {error}", stacklevel=2)
                continue
            groups.setdefault(data["name"], {}).setdefault(coarser, []).append(trial)
    compared = []
    for name, by_resolution in sorted(groups.items()):
        resolutions = tuple(_resolution(*group) for group in sorted(by_resolution.items()))
        trained = [trial for resolution in resolutions for trial in resolution.trained]
        regions = dict.fromkeys(
            region for trial in trained if trial.result is not None for region in trial.result.dice
        )
        if sum(bool(resolution.trained) for resolution in resolutions) > 1:
            compared.append(
                DataSetResolutions(data=name, regions=tuple(regions), resolutions=resolutions)
            )
    if not compared:
        raise ValueError(
            f"{sweep.folder} has no data set with finished runs at two resolutions. Give the study "
            f'"{key}" = [1, 2] in its [grid].'
        )
    return tuple(compared)


def resolution_rows(compared: Sequence[DataSetResolutions]) -> list[dict[str, str]]:
    """Return a row for each data set, region and resolution: the Dice of the cases."""
    return [
        {
            "data": data_set.data,
            "region": region,
            "the network sees": resolution.label,
            "runs": str(len(resolution.trained)),
            "cases": str(len(dice)),
            "mean Dice": f"{np.mean(dice):.3f}",
            "quartiles": " to ".join(f"{part:.3f}" for part in np.quantile(dice, (0.25, 0.75))),
            "lowest": f"{min(dice):.3f}",
        }
        for data_set in compared
        for region in data_set.regions
        for resolution in data_set.resolutions
        if (dice := list(resolution.case_dice(region).values()))
    ]


def resolution_sentences(compared: Sequence[DataSetResolutions]) -> list[str]:
    """Return a sentence on each pair of resolutions, and on each run that did not train.

    A resolution is better if the difference over the cases is significant (p-values adjusted for
    all pairs; a case counts with its mean over the runs) and has the same sign for every seed.
    """
    pairs = [
        (data_set, region, data_set.resolutions[0], lower)
        for data_set in compared
        for region in data_set.regions
        for lower in data_set.resolutions[1:]
        if data_set.resolutions[0].mean_dice(region) and lower.mean_dice(region)
    ]
    estimates = [_over_cases(region, full, lower) for _, region, full, lower in pairs]
    adjusted = adjusted_p_values(estimates)
    lines = [
        _sentence(*pair, estimate, p)
        for pair, estimate, p in zip(pairs, estimates, adjusted, strict=True)
    ]
    for data_set in compared:
        for resolution in data_set.resolutions:
            for words in resolution.failed:
                lines.append(f"{data_set.data} at {resolution.label} {words}.")
    return lines


def _over_cases(region: str, full: Resolution, lower: Resolution) -> Estimate:
    upper, lower_dice = full.case_dice(region), lower.case_dice(region)
    cases = sorted(upper.keys() & lower_dice.keys())
    return difference(
        {at: upper[case] for at, case in enumerate(cases)},
        {at: lower_dice[case] for at, case in enumerate(cases)},
    )


def _sentence(
    data_set: DataSetResolutions,
    region: str,
    full: Resolution,
    lower: Resolution,
    estimate: Estimate,
    adjusted_p: float | None,
) -> str:
    upper, lower_dice = full.case_dice(region), lower.case_dice(region)
    common = upper.keys() & lower_dice.keys()
    better = sum(upper[case] > lower_dice[case] for case in common)
    highest, lowest = full.mean_dice(region), lower.mean_dice(region)
    runs = [highest[repeat] - lowest[repeat] for repeat in sorted(highest.keys() & lowest.keys())]
    seeds = ", ".join(f"{value:+.3f}" for value in runs) or "none in common"
    interval = (
        f"95 % interval over cases {estimate.low:.3f} to {estimate.high:.3f}{p_text(adjusted_p)}"
        if estimate.has_interval
        else "too few cases for an interval"
    )
    return (
        f"{data_set.data}, {region}: Dice {fmean(upper.values()):.3f} at {full.label} and "
        f"{fmean(lower_dice.values()):.3f} at {lower.label}, {estimate.value:+.3f} ({interval}; "
        f"by seed {seeds}), better in {better} of {len(common)} cases: "
        f"{_verdict(estimate, adjusted_p, runs)}."
    )


def _verdict(estimate: Estimate, adjusted_p: float | None, runs: Sequence[float]) -> str:
    if adjusted_p is None or len(runs) < MIN_INTERVAL:
        return "more cases or repeats are needed to tell"
    agree = all(difference * estimate.value > 0 for difference in runs)
    if adjusted_p >= 1 - CONFIDENCE or not agree:
        return "not distinguishable"
    return "the higher resolution is better" if estimate.value > 0 else "the lower one is better"


def _resolution(coarser: int, trials: Sequence[TrialRecord]) -> Resolution:
    failed: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        if trial.result is None:
            swap = trial.config.swap
            how = "without support" if swap is None else f"with swap {swap}"
            cap = trial.config.cpu_memory
            failed.setdefault(f"{how}{f' in {cap}' if cap else ''}", []).append(trial)
    return Resolution(
        coarser=coarser,
        shape=tuple(size // coarser for size in _data(trials[0])["patch"]),
        trained=tuple(trial for trial in trials if trial.result is not None),
        failed=tuple(f"{how}: {ended(group)}" for how, group in failed.items()),
    )


def _data(trial: TrialRecord) -> dict[str, Any]:
    data = RunFolder(trial.folder).read_data()
    if data is None:
        raise ValueError(
            f"{trial.folder} has no data.json, which names the data and its shape: the run ended "
            "before it had read its data."
        )
    if missing := [key for key in ("name", "patch") if key not in data]:
        raise RecordError(trial.folder / "data.json", f"it has no {missing[0]}")
    return data
