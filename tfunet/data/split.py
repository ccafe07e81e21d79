"""Splits the cases of a data set into training and validation, by groups. No TensorFlow."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfunet.config.data_keys import SplitKeys
from tfunet.config.words import near_match
from tfunet.data.arrays import SIDES
from tfunet.data.defects import Defect, lines_by_cause, naming
from tfunet.data.source import DataSource
from tfunet.files.printable import printable
from tfunet.process.terminal import counted

# With more groups, a line names the first ones only.
MOST_NAMED = 10
# What comes before the name or number of what must not be on both sides of a split.
GROUP = re.compile(
    r"((?:patient|pat|subject|subj|sub|animal|mouse|rat|donor|slide|scan|volume|vol)[-_]?"
    r"[A-Za-z]*\d+)([-_].+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Indices of the training and of the validation cases, both in ascending order."""

    train: tuple[int, ...]
    validation: tuple[int, ...]


def split_of(config: SplitKeys, source: DataSource) -> Split:
    """Return the split that a configuration describes."""
    return split_cases(
        source,
        share=config.validation_share,
        groups=config.validation_groups,
        folds=config.folds,
        fold=config.fold,
        seed=config.split_seed,
    )


def split_cases(
    source: DataSource,
    *,
    share: float = 0.2,
    groups: Sequence[str] = (),
    folds: int | None = None,
    fold: int = 0,
    seed: int = 0,
) -> Split:
    """Return the split of a data set; a group is never on both sides.

    The validation groups are `groups`, else part `fold` (from 0) of `folds` equal parts, else
    `share` of all groups, rounded, at least one. A group's place follows from its name and the
    seed, not from a random generator's stream, so adding cases moves few others.

    Raises:
        ValueError: For an unknown group, for more folds than groups, and if one side is empty.
    """
    known = sorted(set(source.groups))
    if source.samples is not None and source.samples.num_train:
        _check_given(source, groups, folds)
        groups = SIDES[1:]
    with naming(source.defects):
        if groups:
            held_out = set(_named(source, known, groups))
        elif folds is not None:
            held_out = set(_fold(source, known, folds, fold, seed))
        else:
            held_out = set(_drawn(source, known, share, seed))
    validation = tuple(index for index, group in enumerate(source.groups) if group in held_out)
    train = tuple(index for index, group in enumerate(source.groups) if group not in held_out)
    return Split(train=train, validation=validation)


def _check_given(source: DataSource, groups: Sequence[str], folds: int | None) -> None:
    """Raise ValueError where the data set has validation samples of its own, and others are asked
    for.
    """
    if groups or folds is not None:
        raise ValueError(
            f"The data set {source.name!r} has validation samples of its own. Leave out "
            f"{'validation_groups' if groups else 'folds'}, or return (x, y) only."
        )


def leave_out(split: Split, source: DataSource, bad: Mapping[int, str]) -> Split:
    """Return the split without the cases that cannot be used; `bad` says what is wrong with each.

    Raises ValueError if no case is left on a side.
    """
    sides = {
        side: tuple(index for index in getattr(split, side) if index not in bad) for side in SIDES
    }
    for side, left in sides.items():
        if not left:
            names = {index: source.case_ids[index] for index in getattr(split, side)}
            shown = lines_by_cause(
                [Defect(file=name, what=bad[index], case_id=name) for index, name in names.items()]
            )[:5]
            raise ValueError(
                f"No case of {source.name!r} is left for {side}: {'; '.join(shown)}. Correct some."
            )
    return Split(**sides)


def left_out(source: DataSource, bad: Mapping[int, str]) -> list[Defect]:
    """Return why cases are left out: defects at opening the data set and at decoding."""
    decoded = [
        Defect(file=source.case_ids[index], what=what, case_id=source.case_ids[index])
        for index, what in bad.items()
    ]
    return [*source.defects, *decoded]


def to_table(split: Split, source: DataSource, left_out: Sequence[Defect] = ()) -> dict[str, Any]:
    """Return the split as JSON types: the case ids of each side, the groups of the validation if
    cases name groups, and why others are left out.
    """
    sides = {side: [source.case_ids[index] for index in getattr(split, side)] for side in SIDES}
    groups = list(_held_out(split, source))
    return {
        **sides,
        **({"validation_groups": groups} if groups else {}),
        "left_out": [asdict(defect) for defect in left_out],
    }


def held_out_line(split: Split, source: DataSource) -> str:
    """Return which groups are held out, with the number of their cases; "" without groups."""
    groups = _held_out(split, source)
    named = [
        f"{printable(group) or '(no name)'} ({counted(number, 'case')})"
        for group, number in groups.items()
    ]
    if not named:
        return ""
    if len(named) > MOST_NAMED:
        return f"Held out: {counted(len(named), 'group')}, {', '.join(named[:MOST_NAMED])}, ..."
    return f"Held out: {', '.join(named)}"


def _held_out(split: Split, source: DataSource) -> dict[str, int]:
    """Return the groups of the validation, and how many cases each has there."""
    if source.groups == source.case_ids or source.samples is not None:
        return {}
    return dict(sorted(Counter(source.groups[index] for index in split.validation).items()))


def to_json(split: Split, source: DataSource, left_out: Sequence[Defect] = ()) -> str:
    """Return `to_table` as text."""
    return json.dumps(to_table(split, source, left_out), indent=1)


def from_json(text: str, source: DataSource, bad: Mapping[int, str] | None = None) -> Split:
    """Return the split that `to_json` wrote; `bad` says what is wrong with cases that cannot be
    used here.

    Raises ValueError unless the split names exactly the cases of the data set, each once, and all
    of them can be used.
    """
    sides = _parsed(text)
    index_of = {case_id: index for index, case_id in enumerate(source.case_ids)}
    excluded = {defect["case_id"] for defect in sides.pop("left_out", [])}
    named = [case_id for side in SIDES for case_id in sides[side]]
    for case_id in named:
        if case_id not in index_of:
            raise ValueError(
                f"The written split names the case {case_id!r}, which the data set "
                f"{source.name!r} does not have.{near_match(case_id, index_of)} Restore its files, "
                "or start a new run."
            )
        if bad and index_of[case_id] in bad:
            raise ValueError(
                f"The written split names the case {case_id!r}, which cannot be used here: "
                f"{bad[index_of[case_id]]} Restore its files, or start a new run."
            )
    twice = sorted(case_id for case_id, count in Counter(named).items() if count > 1)
    if twice:
        raise ValueError(f"The written split names cases twice: {', '.join(twice[:5])}.")
    missing = sorted(set(source.case_ids) - set(named) - excluded)
    if missing:
        raise ValueError(
            f"The written split leaves out {len(missing)} cases of the data set {source.name!r}: "
            f"{', '.join(missing[:5])}. Remove their files, or start a new run."
        )
    indices = {side: tuple(sorted(index_of[case_id] for case_id in sides[side])) for side in SIDES}
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
            f"The data set {source.name!r} has a single group ({known[0]!r}). Training and "
            "validation need at least two, because a group is never split. Add data, or use "
            "smaller groups."
        )
    count = min(max(1, round(share * len(known))), len(known) - 1)
    return sorted(known, key=lambda group: _rank(group, seed))[:count]


def _fold(
    source: DataSource, known: Sequence[str], folds: int, fold: int, seed: int
) -> Sequence[str]:
    if folds > len(known):
        raise ValueError(
            f"folds={folds} needs as many groups, and the data set {source.name!r} has "
            f"{len(known)} groups. Choose at most {len(known)}."
        )
    return sorted(known, key=lambda group: _rank(group, seed))[fold::folds]


def _rank(group: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{group}".encode()).digest()


def _parsed(text: str) -> dict[str, list[Any]]:
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
            'The written split must be {"train": [case ids], "validation": [case ids]}, with at '
            "least one case each. Start a new run."
        )
    return sides
