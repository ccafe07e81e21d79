"""How much training it took to reach a Dice: samples, seconds and device-hours."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfunet.bench.analysis.confidence_intervals import Spread, spread
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.records.run_tables import read_epochs
from tfunet.bench.records.sweep_record import TrialRecord


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a run had trained so far: samples of all replicas together, seconds without
    evaluation but with the first step (tracing), and device_hours, the same time times the
    replicas.
    """

    samples: int
    seconds: float
    device_hours: float


# Mean Dice, and the effort so far, after every evaluation.
Curve = Sequence[tuple[float, Effort]]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The efforts of those of a cell's repeats that reached a Dice; `num_repeats` have one."""

    num_reached: int
    num_repeats: int
    samples: Spread
    seconds: Spread
    device_hours: Spread


@dataclass(frozen=True, kw_only=True)
class DiceTarget:
    """A Dice, and what it took each cell of a family to reach it.

    Args:
        dice: None if the cells have no common one.
        reached: By label of the cell; cells that did not reach it are missing.
    """

    dice: float | None
    reached: Mapping[str, Reached]


def read_dice_target(cells: Iterable[Cell], dice: float | None = None) -> DiceTarget:
    """Return what it took the cells of a family to reach `dice`, from the records of their trials.

    By default, it is the highest Dice that all trials reached (`common_target`).
    """
    curves = {cell.label: curves_of(cell) for cell in cells}
    if dice is None:
        dice = common_target(curve for cell_curves in curves.values() for curve in cell_curves)
    if dice is None:
        return DiceTarget(dice=None, reached={})
    efforts = {label: reached(cell_curves, dice) for label, cell_curves in curves.items()}
    return DiceTarget(dice=dice, reached={key: value for key, value in efforts.items() if value})


def dice_curve(trial: TrialRecord) -> Curve:
    """Return mean Dice and effort after every evaluation of a trial; empty without a record."""
    if trial.result is None:
        return ()
    table = read_epochs(trial.folder, list(trial.result.dice))
    curve = []
    seconds = 0.0
    for steps, dice, spent in zip(table["steps"], table["dice"], table["seconds"], strict=True):
        seconds += spent
        hours = seconds * trial.config.num_devices / 3600
        samples = int(steps) * trial.config.global_samples
        if not math.isnan(dice):
            curve.append((dice, Effort(samples=samples, seconds=seconds, device_hours=hours)))
    return curve


def common_target(curves: Iterable[Curve]) -> float | None:
    """Return the highest Dice, rounded down to a hundredth, that all curves reached.

    None if that is 0, or if there are no curves.
    """
    best = [max(dice for dice, _ in curve) for curve in curves if curve]
    # 100 * 0.29 is slightly less than 29.
    return math.floor(100 * min(best) + 1e-9) / 100 or None if best else None


def reach(curve: Curve, target: float) -> Effort | None:
    """Return the effort at the first evaluation whose Dice is `target` or more."""
    return next((effort for dice, effort in curve if dice >= target), None)


def curves_of(cell: Cell) -> list[Curve]:
    """Return the curve of each repeat of a cell that has one."""
    return [curve for trial in cell.done if (curve := dice_curve(trial))]


def reached(curves: Sequence[Curve], target: float) -> Reached | None:
    """Return the efforts of a cell's repeats to reach `target`; None if none of them did."""
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
