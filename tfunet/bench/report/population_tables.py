"""Tables and sentences on tournaments."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfunet.bench.analysis.confidence_intervals import spread
from tfunet.bench.analysis.populations import (
    COSTS,
    Population,
    PopulationsCompared,
    common_dice,
    compare,
)
from tfunet.bench.report.number_text import (
    NONE,
    estimate_text,
    p_text,
    significant,
    values_text,
)
from tfunet.learning.student_t import CONFIDENCE
from tfunet.population.pedigree import ancestors
from tfunet.process.terminal import counted


def tournament_section(
    populations: Sequence[Population], dice: float | None = None
) -> dict[str, Any] | None:
    """Return the tables and sentences on tournaments; None for a sweep without any.

    `dice` is the one whose cost is told; by default the highest that all populations reached.
    """
    if not populations:
        return None
    tables = (
        comparison_rows(populations, dice),
        cost_rows(populations, dice),
        population_rows(populations),
    )
    return {
        "tables": [rows for rows in tables if rows],
        "sentences": population_sentences(populations),
    }


def population_rows(populations: Sequence[Population]) -> list[dict[str, str]]:
    """Return a row for each population, and for each run that is compared with them."""
    return [
        {
            "runs": population.label,
            "population": str(population.number),
            "done": f"{_num_done(population)} of {len(population.trainers)}",
            "rounds": str(max((len(rows) for rows in population.pedigree.values()), default=0)),
            "models taken over": str(_num_taken(population)),
            "last models begun by": _began(population),
            "best Dice": NONE if population.best is None else f"{population.best[1]:.3f}",
            "of trainer": NONE if population.best is None else str(population.best[0]),
            "device-hours": _hours([population.hours()]),
        }
        for population in populations
    ]


def comparison_rows(
    populations: Sequence[Population], dice: float | None = None
) -> list[dict[str, str]]:
    """Return a row for each cell: its best Dice, and device-hours to a Dice."""
    dice = common_dice(populations) if dice is None else dice
    return [
        {
            "runs": comparison.label,
            "populations": str(len(comparison.populations)),
            "best Dice": values_text(
                (
                    population.best[1]
                    for population in comparison.populations
                    if population.best is not None
                ),
                3,
            ),
            "minus independent runs": _difference(comparison),
            **(
                {
                    f"device-hours to Dice {dice:g}": _hours(
                        population.hours(dice) for population in comparison.populations
                    )
                }
                if dice is not None
                else {}
            ),
        }
        for comparison in compare(populations)
    ]


def cost_rows(populations: Sequence[Population], dice: float | None = None) -> list[dict[str, str]]:
    """Return a row for each cell: time, steps and device-hours to a Dice, over independent runs."""
    dice = common_dice(populations) if dice is None else dice
    if dice is None:
        return []
    rows = []
    for comparison in compare(populations, dice):
        costs = [
            cost
            for population in comparison.populations
            if (cost := population.cost(dice)) is not None
        ]
        row = {
            f"to Dice {dice:g}": comparison.label,
            "reached": f"{len(costs)} of {len(comparison.populations)}",
        }
        for name in COSTS:
            values = [getattr(cost, name) for cost in costs]
            shown = name.replace("_", "-")
            row[shown] = significant(spread(values) if values else None)
            row[f"{shown} / independent"] = estimate_text(comparison.ratios[name])
        rows.append(row)
    return rows


def _difference(comparison: PopulationsCompared) -> str:
    estimate = comparison.difference
    if estimate is None:
        return NONE
    if not estimate.has_interval or comparison.adjusted_p is None:
        return f"{estimate.value:+.3f}"
    return (
        f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f}"
        f"{p_text(comparison.adjusted_p)})"
    )


def population_sentences(populations: Sequence[Population]) -> list[str]:
    """Return what weakens the comparison, and which rounds were not played as planned."""
    sentences = []
    if any(population.pedigree for population in populations):
        sentences.append(
            "Trainers of one population are not independent of each other. Compare populations by "
            "these tables: the intervals of scores elsewhere count each trainer as a repeat, and "
            "are too narrow."
        )
    for population in populations:
        sentences += _missed(population)
        sentences += [
            f"{population.label}, population {population.number}: trainer {trainer} was started "
            f"again {counted(len(steps), 'time')}, at step {', '.join(map(str, steps))}."
            for trainer, steps in sorted(population.restarts.items())
        ]
    return sentences


def population_answer(comparisons: Sequence[PopulationsCompared]) -> str | None:
    """Return which runs end better than independent ones; None where nothing was compared."""
    higher: list[str] = []
    lower: list[str] = []
    equal: list[str] = []
    for comparison in comparisons:
        if comparison.difference is not None and comparison.adjusted_p is not None:
            told = f"{comparison.label} ({comparison.difference.value:+.3f})"
            if comparison.adjusted_p >= 1 - CONFIDENCE:
                equal.append(comparison.label)
            else:
                (higher if comparison.difference.value > 0 else lower).append(told)
    parts = {"higher": higher, "lower": lower, "no difference can be told": equal}
    said = [f"{verdict} with {' | '.join(labels)}" for verdict, labels in parts.items() if labels]
    return f"The best Dice, against independent runs: {'; '.join(said)}." if said else None


def _missed(population: Population) -> Iterator[str]:
    for trainer, rows in sorted(population.pedigree.items()):
        alone = [row for row in rows if "missing or late" in row.reason]
        if alone:
            which = ", ".join(str(row.round) for row in alone)
            yield (
                f"{population.label}, population {population.number}: trainer {trainer} missed "
                f"others in {counted(len(alone), 'round')} ({which})."
            )


def _num_done(population: Population) -> int:
    return sum(trial.result is not None for trial in population.trainers)


def _num_taken(population: Population) -> int:
    return sum(
        row.model_of != trainer for trainer, rows in population.pedigree.items() for row in rows
    )


def _began(population: Population) -> str:
    if not population.pedigree:
        return NONE
    return ", ".join(map(str, sorted(set(ancestors(population.pedigree).values()))))


def _hours(hours: Iterable[float | None]) -> str:
    known = [value for value in hours if value is not None]
    return significant(spread(known) if known else None)
