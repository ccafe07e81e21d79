"""What a report knows of tournaments, with unrounded numbers, for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tfunet.bench.analysis.populations import (
    COSTS,
    Population,
    PopulationsCompared,
    common_dice,
    compare,
)
from tfunet.bench.report.number_text import interval_facts
from tfunet.population.pedigree import Played, ancestors


def tournament_facts(
    populations: Sequence[Population], dice: float | None = None
) -> dict[str, Any]:
    """Return the comparison of cells, and every population with its pedigree.

    `dice` is the one whose cost is told; by default the highest that all reached.
    """
    dice = common_dice(populations) if dice is None else dice
    return {
        "dice": dice,
        "cells": [_cell(comparison, dice) for comparison in compare(populations, dice)],
        "populations": [_population(population) for population in populations],
    }


def _cell(comparison: PopulationsCompared, dice: float | None) -> dict[str, Any]:
    costs = [
        None if dice is None else population.cost(dice) for population in comparison.populations
    ]
    facts: dict[str, Any] = {
        "runs": comparison.label,
        "best_dice": [
            None if population.best is None else population.best[1]
            for population in comparison.populations
        ],
        "costs": [None if cost is None else asdict(cost) for cost in costs],
        "adjusted_p": comparison.adjusted_p,
    }
    estimates = {"difference": comparison.difference}
    estimates |= {f"{name}_ratio": comparison.ratios[name] for name in COSTS}
    for name, estimate in estimates.items():
        facts[name] = None if estimate is None else estimate.value
        facts |= {} if estimate is None else interval_facts(name, estimate)
    return facts


def _population(population: Population) -> dict[str, Any]:
    tournament, best = population.tournament, population.best
    return {
        "runs": population.label,
        "population": population.number,
        "tournament": None if tournament is None else asdict(tournament),
        "trials": [trial.id for trial in population.trainers],
        "done": [trial.result is not None for trial in population.trainers],
        "best": None if best is None else {"trainer": best[0], "dice": best[1]},
        "device_hours": population.hours(),
        "begun_by": {str(key): value for key, value in ancestors(population.pedigree).items()},
        "restarts": {
            str(trainer): list(steps) for trainer, steps in sorted(population.restarts.items())
        },
        "pedigree": [
            {"trainer": trainer, **_round(row)}
            for trainer, rows in sorted(population.pedigree.items())
            for row in rows
        ],
    }


def _round(row: Played) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }
