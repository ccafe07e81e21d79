"""Who descends from whom: models after each round, from what every trainer wrote of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a trainer wrote of a round.

    Args:
        partner: The trainer whose model it looked at; None if there was none.
        own_score: Score of its own model; may be NaN.
        partner_score: Score of its partner's model, on its own cases where these decide.
        model_of: The trainer whose model it went on with.
        learning_rate: The rate with which it went on.
        hyperparameters: Others with which it went on, by the keys of their settings.
        training_seconds: Time of all steps up to the round.
        round_seconds: Duration of the round, with `waited_seconds` for other trainers.
    """

    round: int
    step: int
    partner: int | None
    own_score: float
    partner_score: float | None
    model_of: int
    reason: str
    learning_rate: float
    hyperparameters: Mapping[str, float]
    training_seconds: float
    round_seconds: float
    waited_seconds: float


# What each trainer wrote, by trainer.
Pedigree = Mapping[int, tuple[Played, ...]]


def arrows(pedigree: Pedigree) -> Iterator[tuple[int, int, int]]:
    """Yield (round, giver, trainer): that trainer's model after the round comes from the giver's.

    The first are those of round 1.
    """
    for trainer, rows in sorted(pedigree.items()):
        for row in rows:
            yield row.round, row.model_of, trainer


def origins(pedigree: Pedigree) -> dict[tuple[int, int], int]:
    """Return the trainer that began the model after each (round, trainer), from round 0.

    A round that a trainer did not write changed nothing.
    """
    came_from = {(round, trainer): giver for round, giver, trainer in arrows(pedigree)}
    begun_by = {(0, trainer): trainer for trainer in pedigree}
    for round in range(1, num_rounds(pedigree) + 1):
        for trainer in pedigree:
            giver = came_from.get((round, trainer), trainer)
            begun_by[round, trainer] = begun_by.get((round - 1, giver), giver)
    return begun_by


def num_rounds(pedigree: Pedigree) -> int:
    """Return the last round that a trainer wrote; 0 without any."""
    return max((row.round for rows in pedigree.values() for row in rows), default=0)


def ancestors(pedigree: Pedigree) -> dict[int, int]:
    """Return the trainer that began each trainer's last model."""
    begun_by, last = origins(pedigree), num_rounds(pedigree)
    return {trainer: begun_by[last, trainer] for trainer in pedigree}
