"""Tables and sentences on tournaments."""

from collections.abc import Iterator, Sequence

from tfunet.bench.analysis.populations import Population
from tfunet.bench.report.number_text import NONE
from tfunet.population.pedigree import ancestors
from tfunet.process.terminal import counted


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
            "device-hours": _hours(population),
        }
        for population in populations
    ]


def population_sentences(populations: Sequence[Population]) -> list[str]:
    """Return what weakens the comparison, and which rounds were not played as planned."""
    sentences = []
    if any(population.pedigree for population in populations):
        sentences.append(
            "Trainers of one population are not independent of each other. Compare populations by "
            "the rows of this table; the intervals of scores elsewhere count each trainer as a "
            "repeat, and are too narrow."
        )
    for population in populations:
        sentences += _missed(population)
    return sentences


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


def _hours(population: Population) -> str:
    curve = population.curve()
    return f"{curve[-1][0] * population.num_devices / 3600:.3g}" if curve else NONE
