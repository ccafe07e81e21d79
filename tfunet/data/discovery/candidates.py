"""Patterns that fit an image and its mask, counted by how many files they pair.

Imports no TensorFlow.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import final

from tfunet.data.discovery.names import replaced, runs, shared_side
from tfunet.data.formats.container import composed, split_container, stem
from tfunet.data.layouts.file_patterns import compiled, placeholders

# A run of words in more files than these says nothing about one case.
MOST_PARTNERS = 24
# Files of each kind of name that candidates are taken from.
TRIED = 4
# With more candidates, only those that fit most of some files are counted on all files.
MOST_COUNTED = 200
SAMPLED = 200
# With more, the names say little, and files are of one kind if their folder is the same.
MOST_KINDS = 50


def count_pairs(images: Sequence[str], masks: Sequence[str]) -> dict[tuple[str, str], "Match"]:
    """Return each pair of patterns that fits a pair of files, with all files that it pairs."""
    by_run: dict[str, list[str]] = {}
    for image in images:
        path = PurePosixPath(composed(image))
        for run in {*runs(stem(path.name)), *path.parent.parts}:
            by_run.setdefault(run, []).append(image)
    candidates: set[tuple[str, str]] = set()
    for kind in by_kind(masks).values():
        for mask in spread(kind, TRIED):
            path = PurePosixPath(composed(mask))
            common = [run for run in runs(stem(path.name)) if run in by_run]
            for run in [*common[:6], *(part for part in path.parent.parts if part in by_run)]:
                for image in nearest(mask, by_run[run]):
                    candidates |= set(fitting(image, mask, run))
    matches = {}
    for image_pattern, mask_pattern in _most_fitting(candidates, images, masks):
        match = Match.of(images, masks, image_pattern, mask_pattern)
        if match.images:
            matches[image_pattern, mask_pattern] = match
    return matches


def _most_fitting(
    candidates: set[tuple[str, str]], images: Sequence[str], masks: Sequence[str]
) -> Iterable[tuple[str, str]]:
    """Return the pairs of patterns that fit most of some files, where there are many."""
    if len(candidates) <= MOST_COUNTED:
        return candidates
    some = [files[:: max(1, len(files) // SAMPLED)] for files in (images, masks)]

    def num_fitting(pair: tuple[str, str]) -> tuple[int, tuple[str, str]]:
        counts = [len(placeholder_values(*each)) for each in zip(some, pair, strict=True)]
        return min(counts), pair

    return sorted(candidates, key=num_fitting, reverse=True)[:MOST_COUNTED]


def spread(files: Sequence[str], number: int) -> list[str]:
    """Return some files: those of the first cases with all of their classes, and some of others."""
    others = files[:: max(1, len(files) // number)][:number]
    return list(dict.fromkeys([*files[: 2 * number], *others]))


def nearest(mask: str, images: Sequence[str]) -> list[str]:
    """Return the images whose folders are most like those of a mask, if they are few."""
    parts = set(PurePosixPath(mask).parent.parts)
    folders: dict[str, list[str]] = {}
    for image in images:
        folders.setdefault(image.rpartition("/")[0], []).append(image)
    shared = {folder: len(parts & set(PurePosixPath(folder).parts)) for folder in folders}
    most = max(shared.values(), default=0)
    near = [image for folder in folders if shared[folder] == most for image in folders[folder]]
    return near if len(near) <= MOST_PARTNERS else []


def fitting(image: str, mask: str, run: str) -> Iterable[tuple[str, str]]:
    """Yield the patterns that fit a pair, where `run` is the name of its case."""
    for whole in (True, False):
        named = [with_case(file, run, whole=whole) for file in (image, mask)]
        if not all("{case}" in pattern for pattern in named):
            continue
        folders = [PurePosixPath(pattern).parent.parts for pattern in named]
        shared = [part for part in folders[0] if part in folders[1] and "{" not in part]
        own = [part for part in folders[0] if part not in folders[1] and "{" not in part]
        foreign = [part for part in folders[1] if part not in folders[0] and "{" not in part]
        for first, second in itertools.product(own, foreign):
            if side := shared_side(first, second):
                marks = {part: part.replace(side, "{group}", 1) for part in (first, second)}
                pair = [_with_folders(pattern, marks) for pattern in named]
                yield pair[0], pair[1]
                inner = dict.fromkeys(shared[-1:], "{part}")
                yield _with_folders(pair[0], inner), _with_folders(pair[1], inner)
        names = dict(zip(shared, ("group", "part", "part2", "part3"), strict=False))
        for number in range(len(names) + 1):
            for chosen in itertools.combinations(names, number):
                marks = {part: f"{{{names[part]}}}" for part in chosen}
                pair = [_with_folders(pattern, marks) for pattern in named]
                yield pair[0], pair[1]
                for part in own:
                    yield _with_folders(pair[0], {part: "*"}), pair[1]


def with_case(file: str, run: str, *, whole: bool) -> str:
    """Return a file with {case} for a run of words in its name, and with `whole` in its folders."""
    path = PurePosixPath(composed(file))
    plain = stem(path.name)
    name = path.name.replace(plain, replaced(plain, run, "{case}"), 1)
    parent = path.parent.as_posix()
    if whole:
        parent = replaced(parent, run, "{case}")
    return (PurePosixPath(parent) / name).as_posix()


def _with_folders(pattern: str, marks: Mapping[str, str]) -> str:
    *folders, name = PurePosixPath(pattern).parts
    return PurePosixPath(*(marks.get(part, part) for part in folders), name).as_posix()


@final
@dataclass(frozen=True, kw_only=True)
class Match:
    """The files that two patterns pair."""

    images: frozenset[str]
    masks: frozenset[str]
    simplicity: tuple[int, int] = field(compare=False)

    @classmethod
    def of(
        cls, images: Sequence[str], masks: Sequence[str], image_pattern: str, mask_pattern: str
    ) -> "Match":
        """Count what two patterns pair."""
        names = placeholders(mask_pattern)
        by_key: dict[tuple[str, ...], list[str]] = {}
        for mask, values in placeholder_values(masks, mask_pattern).items():
            by_key.setdefault(tuple(values[name] for name in names), []).append(mask)
        paired = {}
        for image, values in placeholder_values(images, image_pattern).items():
            found = by_key.get(tuple(values.get(name, "") for name in names), [])
            if len(found) == 1:
                paired[image] = found[0]
        is_one_to_one = len(set(paired.values())) == len(paired)
        pattern = image_pattern + mask_pattern
        return cls(
            images=frozenset(paired if is_one_to_one else ()),
            masks=frozenset(paired.values()),
            simplicity=(-len(placeholders(pattern)) - pattern.count("*"), -len(pattern)),
        )


def placeholder_values(files: Iterable[str], pattern: str) -> dict[str, dict[str, str]]:
    """Return the files that a pattern matches, with the values of its placeholders."""
    expression = compiled(split_container(pattern)[0].as_posix())
    matches = {file: expression.fullmatch(file) for file in files}
    return {file: match.groupdict() for file, match in matches.items() if match}


def _kind(file: str) -> str:
    """Return a name with {case} for its numbers, or for all of it if it has none."""
    path = PurePosixPath(composed(file))
    name, plain = path.name, stem(path.name)
    shown = re.sub(r"\d+", "{case}", plain, count=1) if re.search(r"\d", plain) else "{case}"
    parent = re.sub(r"\d+", "*", path.parent.as_posix())
    return (PurePosixPath(parent) / name.replace(plain, shown, 1)).as_posix()


def by_kind(files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files by what their names have in common, the largest kinds first."""
    kinds: dict[str, list[str]] = {}
    for file in files:
        kinds.setdefault(_kind(file), []).append(file)
    if len(kinds) > MOST_KINDS:
        kinds = {}
        for file in files:
            path = PurePosixPath(composed(file))
            ending = path.name.removeprefix(stem(path.name))
            kinds.setdefault((path.parent / f"{{case}}{ending}").as_posix(), []).append(file)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))
