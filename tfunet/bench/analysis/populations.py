"""The populations of a sweep: who met whom, and what the best of each reached at which cost."""

import contextlib
import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfunet.bench.analysis.confidence_intervals import (
    Estimate,
    adjusted_p_values,
    difference,
    ratio,
)
from tfunet.bench.records.run_tables import read_epochs, read_rounds
from tfunet.bench.records.sweep_record import SweepRecord, TrialRecord
from tfunet.config.keys import describe, show
from tfunet.config.tournament import Tournament, first_values, read_tournament
from tfunet.files.typed import RecordError
from tfunet.population.pedigree import Pedigree, Played
from tfunet.record import EARLIER, RunFolder

# Settings that a label has in words.
IN_LABEL = (
    *("backend", "num_replicas"),
    *(f"tournament.{key}" for key in ("selection", "trainers", "exchange")),
)
# (seconds since the start of training, the best mean Dice so far)
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What it took until an evaluation first reached a Dice.

    Args:
        seconds: Steps and rounds, without waiting; all trainers count as if they ran together.
        steps: Steps of the trainer that reached it.
        device_hours: Hours of all trainers' devices.
    """

    seconds: float
    steps: float
    device_hours: float


COSTS = ("seconds", "steps", "device_hours")


@dataclass(frozen=True, kw_only=True)
class Population:
    """The trainers of one tournament; a run that meets no other is a population of one.

    Args:
        label: What tells its cell apart, for tables and legends.
        number: Number of the population within its cell, from 1.
        restarts: First step of each attempt of a trainer but its first, by trainer; 1 for one that
            began anew.
    """

    label: str
    number: int
    tournament: Tournament | None
    trainers: tuple[TrialRecord, ...]
    pedigree: Pedigree
    restarts: Mapping[int, tuple[int, ...]]

    @property
    def is_independent(self) -> bool:
        """Whether these are the independent runs that tournaments are compared with."""
        return self.tournament is not None and self.tournament.selection == "none"

    @property
    def best(self) -> tuple[int, float] | None:
        """The trainer with the highest mean Dice at its end, and that Dice; None without one."""
        found = [
            (trial.result.mean_dice, -index)
            for index, trial in enumerate(self.trainers)
            if trial.result is not None and trial.result.mean_dice is not None
        ]
        if not found:
            return None
        dice, index = max(found)
        return -index, dice

    def curve(self) -> Curve:
        """Return the best Dice of all trainers over time: steps and rounds, without waiting.

        All trainers count as if they ran at the same time.
        """
        points = self._points()
        best, curve = float("-inf"), []
        for seconds, dice, _ in points:
            if dice > best:
                best = dice
                curve.append((seconds, dice))
        if curve and points[-1][0] > curve[-1][0]:
            curve.append((points[-1][0], best))
        return tuple(curve)

    def _points(self) -> list[tuple[float, float, float]]:
        """Return (seconds, mean Dice, steps) of the evaluations of all trainers, in their order."""
        return sorted(
            point
            for index, trial in enumerate(self.trainers)
            for point in _points(trial, self.pedigree.get(index, ()))
        )

    @property
    def first_values(self) -> dict[str, float]:
        """The hyperparameters that all trainers begin with and may change, but the learning rate.

        By the keys of their settings.
        """
        if self.tournament is None:
            return {}
        return first_values(self.tournament, vars(self.trainers[0].config))

    @property
    def num_devices(self) -> int:
        """Devices of all trainers."""
        return sum(trial.config.num_devices for trial in self.trainers)

    def hours(self, dice: float = math.inf) -> float | None:
        """Return the device-hours up to the first evaluation with this Dice, or to the last one.

        None for a Dice that was not reached, and without evaluations.
        """
        if math.isfinite(dice):
            cost = self.cost(dice)
            return None if cost is None else cost.device_hours
        curve = self.curve()
        return curve[-1][0] * self.num_devices / 3600 if curve else None

    def cost(self, dice: float) -> Cost | None:
        """Return what it took to a Dice; None for one that was not reached."""
        for seconds, reached, steps in self._points():
            if reached >= dice:
                hours = seconds * self.num_devices / 3600
                return Cost(seconds=seconds, steps=steps, device_hours=hours)
        return None


@dataclass(frozen=True, kw_only=True)
class PopulationsCompared:
    """The populations of a cell, compared with independent runs.

    Args:
        difference: The best Dice, minus that of independent runs; None without these.
        adjusted_p: Adjusted for all such differences of the sweep; None without an interval.
        ratios: Each of COSTS to a common Dice, over that of independent runs, by its name.
    """

    label: str
    populations: tuple[Population, ...]
    difference: Estimate | None
    adjusted_p: float | None
    ratios: Mapping[str, Estimate | None]


def compare(
    populations: Sequence[Population], dice: float | None = None
) -> list[PopulationsCompared]:
    """Compare each cell's populations with independent runs: the best Dice, and the cost of `dice`.

    The cost counts only populations that reached it.
    """
    cells: dict[str, list[Population]] = {}
    for population in populations:
        cells.setdefault(population.label, []).append(population)
    best = {
        label: {member.number: member.best[1] for member in members if member.best is not None}
        for label, members in cells.items()
    }
    independent = next(
        (population.label for population in populations if population.is_independent), None
    )
    base = best[independent] if independent is not None else {}
    differences = [
        difference(best[label], base) if label != independent and best[label] and base else None
        for label in cells
    ]
    adjusted = adjusted_p_values(differences)
    return [
        PopulationsCompared(
            label=label,
            populations=tuple(members),
            difference=estimate,
            adjusted_p=p,
            ratios={
                name: _cost_ratio(name, dice, members, cells.get(independent or "", ()))
                if label != independent
                else None
                for name in COSTS
            },
        )
        for (label, members), estimate, p in zip(cells.items(), differences, adjusted, strict=True)
    ]


def _cost_ratio(
    name: str,
    dice: float | None,
    members: Sequence[Population],
    independent: Sequence[Population],
) -> Estimate | None:
    if dice is None:
        return None
    sides = [
        {
            population.number: value
            for population in side
            if (value := getattr(population.cost(dice), name, 0)) > 0
        }
        for side in (members, independent)
    ]
    return ratio(*sides) if all(sides) else None


def common_dice(populations: Sequence[Population]) -> float | None:
    """Return the highest Dice, to two decimals, that all populations with numbers reached."""
    reached = [curve[-1][1] for population in populations if (curve := population.curve())]
    return math.floor(100 * min(reached)) / 100 if reached else None


def read_populations(sweep: SweepRecord) -> list[Population]:
    """Return the populations of a sweep in order; none for a sweep without tournaments."""
    if not any(trial.config.tournament for trial in sweep.readable):
        return []
    groups: dict[tuple[int, int], list[TrialRecord]] = {}
    for trial in sorted(sweep.readable, key=lambda trial: (trial.cell, trial.config.seed)):
        tournament = read_tournament(trial.config.tournament)
        seed = trial.config.seed
        population = seed if tournament is None else tournament.population_of(seed)
        groups.setdefault((trial.cell, population), []).append(trial)
    numbers: dict[int, int] = {}
    populations = []
    for (cell, _), trials in groups.items():
        numbers[cell] = numbers.get(cell, 0) + 1
        populations.append(_population(trials, numbers[cell]))
    return populations


def _population(trials: Sequence[TrialRecord], number: int) -> Population:
    config = trials[0].config
    tournament = read_tournament(config.tournament)
    pedigree: dict[int, tuple[Played, ...]] = {}
    restarts: dict[int, tuple[int, ...]] = {}
    if tournament is not None and tournament.selection != "none":
        for trial in trials:
            trainer = tournament.trainer_of(trial.config.seed)
            pedigree[trainer] = tuple(read_rounds(trial.folder))
            if first_steps := _restarts(trial):
                restarts[trainer] = first_steps
    return Population(
        label=_label(trials[0], tournament),
        number=number,
        tournament=tournament,
        trainers=tuple(trials),
        pedigree=pedigree,
        restarts=restarts,
    )


def _restarts(trial: TrialRecord) -> tuple[int, ...]:
    anew = list((trial.folder.parent / EARLIER).glob(f"{glob.escape(trial.id)}-[0-9]*"))
    result: Mapping[str, Any] = {}
    with contextlib.suppress(RecordError):
        result = RunFolder(trial.folder).read_result() or {}
    attempts = [step for step, _ in result.get("began_unix_seconds") or ()]
    return (*([1] * len(anew)), *attempts[1:])


def _label(trial: TrialRecord, tournament: Tournament | None) -> str:
    way = f"{trial.config.backend} x{trial.config.num_replicas}"
    kind = ""
    if tournament is not None:
        selection = "independent" if tournament.selection == "none" else tournament.selection
        rounded = "" if tournament.exchange == "weights" else ", rounded to bfloat16"
        kind = f"{tournament.trainers} trainers, {selection}{rounded}"
    others = {
        key: value
        for key, value in trial.settings.items()
        if value is not None and key not in IN_LABEL
    }
    mutated = [
        f"{key} times {' or '.join(map(show, rule['factors']))}, "
        f"{show(rule['low'])} to {show(rule['high'])}"
        for key, rule in (others.pop("tournament.mutate", None) or {}).items()
    ]
    return ", ".join(part for part in (kind, way, describe(others), *mutated) if part)


def _points(trial: TrialRecord, rounds: Sequence[Played]) -> list[tuple[float, float, float]]:
    """Return (seconds, mean Dice, steps) of the evaluations of a run."""
    if trial.result is None:
        return []
    table = read_epochs(trial.folder, list(trial.result.dice))
    points, seconds = [], 0.0
    for steps, spent, dice in zip(table["steps"], table["seconds"], table["dice"], strict=True):
        seconds += spent
        played = (row for row in rounds if row.step <= steps)
        exchange = sum(row.round_seconds - row.waited_seconds for row in played)
        if not math.isnan(dice):  # As in an epoch without evaluation.
            points.append((seconds + exchange, dice, steps))
    return points
