"""Who meets whom in a round. It follows from (seed, round) alone, so nobody has to be asked."""

import random


def partner(trainer: int, trainers: int, *, seed: int, round: int) -> int | None:
    """Return the partner of a trainer in a round, from 1; None for the odd one out.

    Every pair is equally likely. With an odd number, each trainer is the odd one out once in every
    `trainers` rounds.
    """
    for first, second in pairs(trainers, seed=seed, round=round):
        if trainer in (first, second):
            return second if trainer == first else first
    return None


def pairs(trainers: int, *, seed: int, round: int) -> list[tuple[int, int]]:
    """Return the pairs of a round, counted from 1."""
    drawn = list(range(trainers))
    if trainers % 2:
        block, place = divmod(round - 1, trainers)
        order = list(drawn)
        dice("odd one out", seed, block).shuffle(order)
        drawn.remove(order[place])
    dice("pairs", seed, round).shuffle(drawn)
    return list(zip(drawn[::2], drawn[1::2], strict=True))


def dice(*what: object) -> random.Random:
    """Return a generator of random numbers that follows from its arguments alone."""
    # Python seeds with a text through SHA-512, in every process alike.
    return random.Random(" ".join(map(str, what)))
