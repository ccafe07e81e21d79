"""Pairs of images and masks as patterns, with names that say only what tells cases apart."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from tfunet.data.discovery.candidates import placeholder_values
from tfunet.data.discovery.names import SIDES, shared_start
from tfunet.data.split import GROUP

# Kinds of patients: at most so many, with so many cases each.
MOST_KINDS = 4
LEAST_CASES = 5


@final
@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Which files belong together.

    Args:
        images: One pattern for each channel.
        masks: Class name to pattern, or a single pattern under the name "".
        values: The placeholders of each image that has all its masks.
        objects: Whether the files that match a mask pattern are one object each.
        others: Patterns of files that can be masks as well by their values, with those besides 0.
            None where the names said which files are masks.
    """

    images: tuple[str, ...]
    masks: Mapping[str, str]
    values: tuple[Mapping[str, str], ...]
    objects: bool = False
    others: Mapping[str, Sequence[int]] | None = None


def with_short_names(pairs: Pairs) -> Pairs:
    """Return the pairs with groups where names show them, and without what all names share."""
    values = pairs.values
    if not values or "case" not in values[0]:
        return pairs
    if "group" in values[0]:
        parts = [
            (placeholders["group"], placeholders["case"].removeprefix(placeholders["group"]))
            for placeholders in values
        ]
        # Not where a group is only a part of a longer number.
        has_group = all(
            rest != placeholders["case"] and not rest[:1].isalnum()
            for (_, rest), placeholders in zip(parts, values, strict=True)
        )
    else:
        matches = [GROUP.fullmatch(placeholders["case"]) for placeholders in values]
        parts = [(match[1], match[2]) for match in matches if match]
        groups = {group for group, _ in parts}
        has_group = len(parts) == len(values) and 1 < len(groups) < len(values)
    if has_group:
        pairs = _renamed(pairs, "case", "{group}{case}")
        pairs = replace(
            pairs,
            values=tuple(
                {**placeholders, "group": group, "case": rest}
                for placeholders, (group, rest) in zip(values, parts, strict=True)
            ),
        )
    for name in pairs.values[0]:
        pairs = _without_shared(pairs, name)
    return pairs


def derived(pairs: Pairs, files: Sequence[str]) -> list[str]:
    """Return patterns of files that were made of the images: 1_flows.tif beside 1.tif.

    The images' pattern matches them, too. They have no masks, and the names of images with one
    ending, in letters, which several images have.
    """
    (first, *_) = pairs.images
    known = {tuple(sorted(values.items())) for values in pairs.values}
    endings: Counter[str] = Counter()
    masks = {mask for each in pairs.masks.values() for mask in placeholder_values(files, each)}
    for file, values in placeholder_values(files, first).items():
        if file in masks or "case" not in values or tuple(sorted(values.items())) in known:
            continue
        for match in re.finditer(r"[-_. ]+(?=[^\W\d_])", values["case"]):
            image = {**values, "case": values["case"][: match.start()]}
            if tuple(sorted(image.items())) in known:
                endings[values["case"][match.start() :]] += 1
    return [
        first.replace("{case}", f"{{case}}{end}") for end, count in endings.items() if count > 1
    ]


def without_kinds(pairs: Pairs) -> Pairs:
    """Return the pairs with {part} for groups that are kinds of patients, such as HGG and LGG.

    They are few, of many cases each, and have no number. The sides of a split are groups.
    """
    groups = [placeholders.get("group", "") for placeholders in pairs.values]
    names = set(groups)
    are_kinds = 0 < len(names) <= MOST_KINDS and len(groups) >= LEAST_CASES * len(names)
    if not are_kinds or any(
        not name or name.lower() in SIDES or re.search(r"\d", name) for name in names
    ):
        return pairs
    free = next(name for name in ("part", "part2", "part3", "part4") if name not in pairs.values[0])
    values = ({free if key == "group" else key: own[key] for key in own} for own in pairs.values)
    return replace(_renamed(pairs, "group", f"{{{free}}}"), values=tuple(values))


def _without_shared(pairs: Pairs, name: str) -> Pairs:
    """Return the pairs with what all values of a placeholder share in the patterns instead."""
    values = [placeholders[name] for placeholders in pairs.values]
    if len(set(values)) < 2:
        return pairs
    before = _whole_words(values[0][: shared_start(values)])
    rests = [value[len(before) :][::-1] for value in values]
    after = _whole_words(rests[0][: shared_start(rests)])[::-1]
    pairs = _renamed(pairs, name, f"{before}{{{name}}}{after}")
    shorter = [
        {
            **placeholders,
            name: placeholders[name][len(before) : len(placeholders[name]) - len(after)],
        }
        for placeholders in pairs.values
    ]
    return replace(pairs, values=tuple(shorter))


def _whole_words(text: str) -> str:
    """Return a text up to its last separator."""
    return text[: max(map(text.rfind, "-_. ")) + 1]


def _renamed(pairs: Pairs, name: str, text: str) -> Pairs:
    old = f"{{{name}}}"
    return replace(
        pairs,
        images=tuple(pattern.replace(old, text) for pattern in pairs.images),
        masks={key: pattern.replace(old, text) for key, pattern in pairs.masks.items()},
        others=pairs.others
        and {pattern.replace(old, text): values for pattern, values in pairs.others.items()},
    )
