"""Compares the cells of two sweeps: did a change make training faster or slower?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfunet import exit_codes
from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    adjusted_p_values,
    ratio,
    speed_verdict,
    spread,
)
from tfunet.bench.analysis.folds import folds_as_repeats, num_folds
from tfunet.bench.analysis.sweep_summary import shared_environment
from tfunet.bench.records.proofs import not_proved
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord, read_sweep
from tfunet.bench.records.ways_of_training import speed_by_repeat
from tfunet.bench.study.machine_noise import NOISY
from tfunet.config.keys import describe


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """One cell of both sweeps.

    Args:
        speeds: Median images per second in both sweeps; None without a done trial.
        ratio: How many times as fast the second is; None if a side has no done trial.
        adjusted_p: p-value of a ratio beyond the tolerance, adjusted for all cells.
        verdict: On the second sweep: "faster", "slower", "within tolerance", "not
            distinguishable" or "unknown".
    """

    settings: Mapping[str, Any]
    speeds: tuple[float | None, float | None]
    ratio: Estimate | None
    adjusted_p: float | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class SweepChange:
    """Two sweeps compared: cells of both, and sentences on other cells and on doubts."""

    folders: tuple[str, str]
    tolerance: float
    cells: tuple[CellChange, ...]
    unmatched: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """SLOWER if a cell is, else CANNOT_TELL if one has no verdict, else OK."""
        verdicts = {cell.verdict for cell in self.cells}
        if "slower" in verdicts:
            return exit_codes.SLOWER
        return exit_codes.CANNOT_TELL if "unknown" in verdicts else exit_codes.OK


def compare_sweeps(first: str | Path, second: str | Path, tolerance: float = 0.0) -> SweepChange:
    """Compare the speeds of two sweeps' cells of equal settings: of the folders before and after a
    change.

    A change within `tolerance` does not matter: 0.03 is 3 % slower, or as much faster. Raises
    ValueError if a folder has no records, or the sweeps have no common cell.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 % and 100 %, got {tolerance:.0%}.")
    sweeps = (read_sweep(first), read_sweep(second))
    ours, theirs = _cells(sweeps[0]), _cells(sweeps[1])
    common = [key for key in ours if key in theirs]
    if not common:
        raise ValueError(
            f"{first} and {second} have no cell with equal settings, so there is nothing to "
            "compare. Run the same study in both."
        )
    slack = -math.log1p(-tolerance)
    ratios = [_ratio(ours[key], theirs[key]) for key in common]
    adjusted = adjusted_p_values(ratios, slack)
    return SweepChange(
        folders=(str(first), str(second)),
        tolerance=tolerance,
        cells=tuple(
            CellChange(
                settings=_settings(ours[key]),
                speeds=(_median(ours[key]), _median(theirs[key])),
                ratio=estimate,
                adjusted_p=p_value,
                verdict=_verdict(estimate, p_value, slack),
            )
            for key, estimate, p_value in zip(common, ratios, adjusted, strict=True)
        ),
        unmatched=(*_unmatched(ours, theirs, first), *_unmatched(theirs, ours, second)),
        doubts=tuple(_doubts(sweeps)),
    )


def _cells(sweep: SweepRecord) -> dict[str, list[TrialRecord]]:
    cells: dict[str, list[TrialRecord]] = {}
    for trial in sorted(folds_as_repeats(sweep.readable), key=lambda trial: trial.cell):
        cells.setdefault(repr(replace(trial.config, seed=0, fold=0)), []).append(trial)
    return cells


def _settings(trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return the settings of a cell; folds are its repeats."""
    left_out = ("fold",) if num_folds(trials) > 1 else ()
    return {key: value for key, value in trials[0].settings.items() if key not in left_out}


def _ratio(ours: Sequence[TrialRecord], theirs: Sequence[TrialRecord]) -> Estimate | None:
    before, after = speed_by_repeat(ours), speed_by_repeat(theirs)
    # Repeats of two sweeps did not run side by side: other numbers keep them from being paired.
    after = {-repeat: speed for repeat, speed in after.items()}
    return ratio(after, before) if after and before else None


def _verdict(estimate: Estimate | None, adjusted_p: float | None, slack: float) -> str:
    if estimate is None:
        return "unknown"
    verdict = speed_verdict(estimate, adjusted_p)
    is_inside = -slack < math.log(estimate.low) and math.log(estimate.high) < slack
    return "within tolerance" if verdict == "not distinguishable" and is_inside else verdict


def _median(trials: Sequence[TrialRecord]) -> float | None:
    speeds = list(speed_by_repeat(trials).values())
    return spread(speeds).median if speeds else None


def _unmatched(
    ours: Mapping[str, Sequence[TrialRecord]],
    theirs: Mapping[str, Sequence[TrialRecord]],
    folder: str | Path,
) -> Iterator[str]:
    only = [describe(_settings(trials)) for key, trials in ours.items() if key not in theirs]
    if only:
        more = f" and {len(only) - 3} more" if len(only) > 3 else ""
        yield f"Only {folder} has: {'; '.join(only[:3])}{more}."


def _doubts(sweeps: tuple[SweepRecord, SweepRecord]) -> Iterator[str]:
    yield (
        "The sweeps ran one after the other: every ratio includes what changed on the machine in "
        "between."
    )
    for sweep in sweeps:
        yield from (f"In {sweep.folder}: {fault}." for fault in sweep.faults)
        unread = [trial for trial in sweep.trials if not trial.is_readable]
        yield from (f"In {sweep.folder}, {trial.id}: {trial.reason}." for trial in unread)
        yield from (f"In {sweep.folder}: {line}" for line in not_proved(sweep.trials))
    _, different = shared_environment([*sweeps[0].trials, *sweeps[1].trials])
    for key, counts in different.items():
        values = "; ".join(f"{value} ({count} trials)" for value, count in counts.items())
        yield f"{key} differs between trials: {values}."
    counts_all = [
        {trial.result.warm_up_steps is None for trial in sweep.trials if trial.result is not None}
        for sweep in sweeps
    ]
    if all(counts_all) and counts_all[0] != counts_all[1]:
        yield (
            "Trials of one sweep are older records, in which the first steps of a run still count: "
            "they look slower."
        )
    before, after = (_machine_seconds(sweep) for sweep in sweeps)
    if before and after and abs(math.log(after / before)) > math.log1p(NOISY):
        yield (
            f"A fixed computation took {after / before:.2f} times as long during the second sweep "
            "as during the first: the machine changed, not only the code."
        )


def _machine_seconds(sweep: SweepRecord) -> float | None:
    known = [
        float(measurement["median_seconds"])
        for measurement in sweep.noise
        if measurement.get("median_seconds")
    ]
    return spread(known).median if known else None
