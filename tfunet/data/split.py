"""Holds out whole groups of cases for validation. Imports no TensorFlow."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfunet.data.source import DataSource
from tfunet.refs import near_match

SIDES = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Split:
    """Indices of the cases to train with and of those held out, both in ascending order."""

    train: tuple[int, ...]
    validation: tuple[int, ...]


def split_cases(
    source: DataSource, *, share: float = 0.2, groups: Sequence[str] = (), seed: int = 0
) -> Split:
    """Return the split of a data set; a group is never on both sides.

    The held-out groups are those named, else `share` of all, rounded, at least one. A group's
    place follows from its name and the seed, not from a random generator's stream: adding cases
    leaves those that were there nearly where they were.

    Raises:
        ValueError: For a group that the data set does not have, and where one side would be
            empty.
    """
    known = sorted(set(source.groups))
    held_out = set(_named(source, known, groups) if groups else _drawn(source, known, share, seed))
    validation = tuple(index for index, group in enumerate(source.groups) if group in held_out)
    train = tuple(index for index, group in enumerate(source.groups) if group not in held_out)
    return Split(train=train, validation=validation)


def to_json(split: Split, source: DataSource) -> str:
    """Return the split as JSON: the case ids of each side."""
    sides = {side: [source.case_ids[index] for index in getattr(split, side)] for side in SIDES}
    return json.dumps(sides, indent=1)


def from_json(text: str, source: DataSource) -> Split:
    """Return the split that `to_json` wrote.

    Raises:
        ValueError: Unless the split names every case of the data set, and no others, once.
    """
    sides = _parsed(text)
    where = {case_id: index for index, case_id in enumerate(source.case_ids)}
    named = [case_id for side in SIDES for case_id in sides[side]]
    for case_id in named:
        if case_id not in where:
            raise ValueError(
                f"The written split names the case {case_id!r}, which the data set "
                f"{source.name!r} does not have.{near_match(case_id, where)} Restore its files, or "
                "start a new run."
            )
    twice = sorted(case_id for case_id, count in Counter(named).items() if count > 1)
    if twice:
        raise ValueError(f"The written split names cases twice: {', '.join(twice[:5])}.")
    missing = sorted(set(source.case_ids) - set(named))
    if missing:
        raise ValueError(
            f"The written split leaves out {len(missing)} cases of the data set {source.name!r}: "
            f"{', '.join(missing[:5])}. Remove their files, or start a new run."
        )
    indices = {side: tuple(sorted(where[case_id] for case_id in sides[side])) for side in SIDES}
    both = {source.groups[index] for index in indices["train"]} & {
        source.groups[index] for index in indices["validation"]
    }
    if both:
        raise ValueError(
            f"The written split has cases of the group {min(both)!r} on both sides. "
            "Start a new run."
        )
    return Split(**indices)


def _named(source: DataSource, known: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
    for group in groups:
        if group not in known:
            shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            raise ValueError(
                f"The data set {source.name!r} has no group {group!r}.{near_match(group, known)} "
                f"Known: {shown}."
            )
    if set(groups) == set(known):
        raise ValueError(
            f"validation_groups names all {len(known)} groups of the data set {source.name!r}: "
            "none is left for training. Name fewer."
        )
    return groups


def _drawn(source: DataSource, known: Sequence[str], share: float, seed: int) -> Sequence[str]:
    if len(known) < 2:
        raise ValueError(
            f"The data set {source.name!r} has a single group ({known[0]!r}), and a group is never "
            "split: training and validation need at least two. Add data, or set groups that are "
            "smaller."
        )
    count = min(max(1, round(share * len(known))), len(known) - 1)
    return sorted(known, key=lambda group: _rank(group, seed))[:count]


def _rank(group: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{group}".encode()).digest()


def _parsed(text: str) -> dict[str, list[str]]:
    try:
        sides = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"The written split is not JSON ({error}). Start a new run.") from error
    if not isinstance(sides, dict) or not all(
        isinstance(sides.get(side), list)
        and sides[side]
        and all(isinstance(case_id, str) for case_id in sides[side])
        for side in SIDES
    ):
        raise ValueError(
            'The written split must be {"train": [case ids], "validation": [case ids]}, both with '
            "at least one. Start a new run."
        )
    return sides
