"""Folders that are the sides of a split: train, val and test. Imports no TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from tfunet.data.class_lines import toml_value
from tfunet.data.discovery.found_pairs import Pairs
from tfunet.data.discovery.names import SIDES
from tfunet.data.formats.container import split_container
from tfunet.data.layouts.file_patterns import compiled
from tfunet.process.terminal import counted

SCORES = "tfunet evaluate RUN test.toml --out scored"


@final
@dataclass(frozen=True, kw_only=True)
class Sides:
    """The pairs to train and to validate with.

    Args:
        pairs: Without those for tests.
        held_out: The groups that are for validation.
        exclude: Patterns of the images for tests.
        remark: What the groups of the pairs are.
        how_to_score: How to score what is for tests; empty if nothing is.
        unused: A sentence on what is not used.
    """

    pairs: Pairs
    held_out: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    remark: str = ""
    how_to_score: str = ""
    unused: str = ""


def sides_of(pairs: Pairs, files: Sequence[str]) -> Sides:
    """Return the sides that folders named train, val and test make, leaving out the last."""
    groups = _groups(pairs, files)
    sides = {group: SIDES.get(group.lower()) for group in groups}
    named = {side: [group for group in groups if sides[group] == side] for side in ("val", "test")}
    train = [group for group in groups if sides[group] == "train"]
    if not train or None in sides.values():
        return Sides(pairs=pairs, remark=_of_groups(pairs))
    tests = ", ".join(named["test"])
    unused = f"Not used: {tests}, which is left for the final score." if tests else ""
    if not named["val"]:
        if len(train) > 1 or not tests:
            return Sides(pairs=pairs, remark=_of_groups(pairs))
        chosen = _fixed(pairs, train[0])
        return Sides(
            pairs=chosen,
            remark=_of_groups(chosen),
            how_to_score=f"{tests} is left for the final score. For that, after the training, copy "
            f"this file to test.toml, write {tests} in the place of {train[0]} in its patterns, "
            f"and run: {SCORES}",
            unused=unused,
        )
    used = (*train, *named["val"])
    kept = tuple(values for values in pairs.values if values["group"] in used)
    remark = f" {{group}} is the side of the split: {', '.join(used)}."
    if not tests:
        return Sides(pairs=pairs, held_out=tuple(named["val"]), remark=remark)
    others = toml_value([_image(pairs, group) for group in used])
    return Sides(
        pairs=replace(pairs, values=kept),
        held_out=tuple(named["val"]),
        exclude=tuple(_image(pairs, group) for group in named["test"]),
        remark=remark,
        how_to_score=f"{tests} is left for the final score. For that, after the training, copy "
        f"this file to test.toml, with this line in the place of the one below:\n"
        f"exclude = {others}\nThen run: {SCORES}",
        unused=unused,
    )


def _groups(pairs: Pairs, files: Sequence[str]) -> list[str]:
    """Return the groups of all images, also of those without a mask, as those for tests may be."""
    if "{group}" not in pairs.images[0]:
        return []
    images, *masks = (
        compiled(split_container(pattern)[0].as_posix())
        for pattern in (pairs.images[0], *pairs.masks.values())
    )
    found = (
        images.fullmatch(file) for file in files if not any(mask.fullmatch(file) for mask in masks)
    )
    return sorted({match["group"] for match in found if match})


def _of_groups(pairs: Pairs) -> str:
    groups = {values["group"] for values in pairs.values if "group" in values}
    if groups:
        return f" {{group}} keeps the {counted(len(groups), 'group')} together in the split."
    return (
        " If several images are of one patient or animal, put {group} where its name stands, so "
        "that a split never divides it."
    )


def _image(pairs: Pairs, group: str) -> str:
    return pairs.images[0].replace("{group}", group)


def _fixed(pairs: Pairs, group: str) -> Pairs:
    """Return the pairs of one group, whose name stands in the patterns."""
    others = pairs.others
    return replace(
        pairs,
        others=others and {p.replace("{group}", group): others[p] for p in others},
        images=tuple(pattern.replace("{group}", group) for pattern in pairs.images),
        masks={name: mask.replace("{group}", group) for name, mask in pairs.masks.items()},
        values=tuple(
            {name: value for name, value in values.items() if name != "group"}
            for values in pairs.values
            if values["group"] == group
        ),
    )
