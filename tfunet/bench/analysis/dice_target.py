"""What it took to reach a Dice: samples, seconds of training and device-hours."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfunet.bench.analysis.confidence_intervals import Spread, spread
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.records.run_tables import read_epochs
from tfunet.bench.records.sweep_record import TrialRecord


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a run had used up: samples and seconds of training, on so many replicas.

    Args:
        samples: Of all replicas together.
        seconds: Of training alone, the first step (tracing) with it, evaluation without.
        device_hours: The same hours of every replica's device, used or waiting.
    """

    samples: int
    seconds: float
    device_hours: float


# Mean Dice and the effort so far, after every evaluation.
Curve = Sequence[tuple[float, Effort]]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The efforts of a cell's repeats to reach a Dice.

    Args:
        num_reached: Repeats that reached it; the spreads are theirs.
        num_repeats: Repeats with a Dice at all.
    """

    num_reached: int
    num_repeats: int
    samples: Spread
    seconds: Spread
    device_hours: Spread


def dice_curve(trial: TrialRecord) -> Curve:
    """Return mean Dice and effort after every evaluation of a trial; empty without a record."""
    if trial.result is None:
        return ()
    table = read_epochs(trial.folder, list(trial.result.dice))
    curve = []
    seconds = 0.0
    for steps, dice, spent in zip(table["steps"], table["dice"], table["seconds"], strict=True):
        seconds += spent
        hours = seconds * trial.config.num_replicas / 3600
        samples = int(steps) * trial.config.global_samples
        if not math.isnan(dice):
            curve.append((dice, Effort(samples=samples, seconds=seconds, device_hours=hours)))
    return curve


def common_target(curves: Iterable[Curve]) -> float | None:
    """Return the highest Dice, rounded down to a hundredth, that every curve reached.

    None where one never came so far, or there are no curves.
    """
    best = [max(dice for dice, _ in curve) for curve in curves if curve]
    # 100 * 0.29 is a little less than 29.
    return math.floor(100 * min(best) + 1e-9) / 100 or None if best else None


def reach(curve: Curve, target: float) -> Effort | None:
    """Return the effort at the first evaluation whose Dice is `target` or more."""
    return next((effort for dice, effort in curve if dice >= target), None)


def target_of(cells: Iterable[Cell]) -> float | None:
    """Return the `common_target` of all trials of these cells."""
    return common_target(dice_curve(trial) for cell in cells for trial in cell.done)


def reached(cell: Cell, target: float | None) -> Reached | None:
    """Return what a cell's repeats needed for `target`; None where none reached it."""
    if target is None:
        return None
    curves = [curve for trial in cell.done if (curve := dice_curve(trial))]
    efforts = [effort for curve in curves if (effort := reach(curve, target)) is not None]
    if not efforts:
        return None
    return Reached(
        num_reached=len(efforts),
        num_repeats=len(curves),
        samples=spread([float(effort.samples) for effort in efforts]),
        seconds=spread([effort.seconds for effort in efforts]),
        device_hours=spread([effort.device_hours for effort in efforts]),
    )
