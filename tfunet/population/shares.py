"""Which training cases a trainer trains on, and which decide its rounds."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tfunet.config.tournament import Tournament


@dataclass(frozen=True, kw_only=True)
class Share:
    """Indices of the cases of a trainer, in ascending order: to train on, and to decide rounds."""

    train: tuple[int, ...]
    deciding: tuple[int, ...]


def share_of(
    tournament: Tournament, cases: Sequence[int], groups: Sequence[str], *, seed: int, trainer: int
) -> Share:
    """Return the share of a trainer of the training cases `cases`.

    `groups` has the group of every case of the data set. A group is never divided. A group's place
    follows from its name and `seed`, which is that of the split.

    Raises ValueError for too few groups.
    """
    if not tournament.partition:
        train, deciding = _held_out(tournament, cases, groups, seed)
        return Share(train=train, deciding=deciding)
    if tournament.has_own_cases:
        shares = _divided(tournament, cases, groups, seed, least=2)
        train, deciding = _held_out(tournament, shares[trainer], groups, seed)
        return Share(train=train, deciding=deciding)
    rest, deciding = _held_out(tournament, cases, groups, seed, least=tournament.trainers)
    return Share(train=_divided(tournament, rest, groups, seed)[trainer], deciding=deciding)


def _held_out(
    tournament: Tournament,
    cases: Sequence[int],
    groups: Sequence[str],
    seed: int,
    least: int = 1,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the cases to train on, of at least `least` groups, and those that decide rounds."""
    names = _ranked({groups[case] for case in cases}, seed)
    count = min(max(1, round(tournament.share * len(names))), len(names) - least)
    if count < 1:
        raise ValueError(_too_few(tournament, len(names), least + 1))
    held_out = set(names[:count])
    return (
        tuple(sorted(case for case in cases if groups[case] not in held_out)),
        tuple(sorted(case for case in cases if groups[case] in held_out)),
    )


def _divided(
    tournament: Tournament,
    cases: Sequence[int],
    groups: Sequence[str],
    seed: int,
    least: int = 1,
) -> list[tuple[int, ...]]:
    """Return the cases of each trainer, of at least `least` groups each."""
    names = _ranked({groups[case] for case in cases}, seed)
    if len(names) < least * tournament.trainers:
        raise ValueError(_too_few(tournament, len(names), least * tournament.trainers))
    members = {name: [case for case in cases if groups[case] == name] for name in names}
    shares: list[list[int]] = [[] for _ in range(tournament.trainers)]
    num_groups = [0] * tournament.trainers
    # The largest groups first, each to the trainer with the fewest cases, gives even shares.
    for number, name in enumerate(sorted(names, key=lambda name: -len(members[name]))):
        left = len(names) - number
        missing = [max(0, least - count) for count in num_groups]
        open_to = [
            trainer
            for trainer in range(tournament.trainers)
            if missing[trainer] or left > sum(missing)
        ]
        chosen = min(open_to, key=lambda trainer: (len(shares[trainer]), trainer))
        shares[chosen] += members[name]
        num_groups[chosen] += 1
    return [tuple(sorted(share)) for share in shares]


def _ranked(names: set[str], seed: int) -> list[str]:
    def rank(name: str) -> bytes:
        return hashlib.sha256(f"tournament:{seed}:{name}".encode()).digest()

    return sorted(names, key=rank)


def _too_few(tournament: Tournament, num_groups: int, least: int) -> str:
    shared = ", partition = true" if tournament.partition else ""
    return (
        f"A tournament of {tournament.trainers} trainers{shared} needs at least {least} groups of "
        f"training cases, and there are {num_groups}: each trainer needs some to train on, and "
        "some decide the rounds. Add cases, choose fewer trainers, or set partition = false."
    )
