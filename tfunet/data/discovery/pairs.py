"""Finds which files are images, and which are their masks, by their names. Imports no TensorFlow.

Names give candidates, and counting decides: of all patterns that fit some pair, those that pair the
most files.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import final

from tfunet.data.discovery.found_pairs import Pairs, with_short_names
from tfunet.data.discovery.names import (
    CHANNEL,
    RATER,
    beside,
    differing,
    is_of_masks,
    replaced,
    runs,
    shared_side,
    shared_start,
)
from tfunet.data.formats import FORMATS
from tfunet.data.formats.container import split_container, stem
from tfunet.data.layouts.file_patterns import compiled, placeholders

SUFFIXES = tuple(suffix for suffix in FORMATS if suffix.startswith("."))
# In these, an array has a name that only the user knows.
CONTAINERS = (".h5", ".hdf5")
# A run of words in more files than these says nothing about one case.
MOST_PARTNERS = 24
# Files of each kind of name that candidates are taken from.
TRIED = 4
LISTED = 8
# With more, the names say little, and files are of one kind if their folder is the same.
MOST_KINDS = 50


def list_files(root: Path) -> list[str]:
    """Return the image files under a folder, relative to it, without hidden ones."""
    files = []
    for folder, inner, names in os.walk(root):
        stores = [name for name in inner if name.lower().endswith(".zarr")]
        inner[:] = sorted(set(inner) - set(stores) - {n for n in inner if n.startswith(".")})
        for name in (*names, *stores):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                files.append((Path(folder) / name).relative_to(root).as_posix())
    return sorted(files)


def find_pairs(
    files: Sequence[str], images: Sequence[str] = (), masks: Sequence[str] = ()
) -> Pairs:
    """Return the patterns that pair the most images with masks.

    Args:
        files: Relative paths.
        images: Patterns of the images, if the user names them.
        masks: Patterns of the masks, if the user names them.

    Raises ValueError, with the candidates, for what the names do not say.
    """
    if any(file.lower().endswith(CONTAINERS) for file in files) and not (images and masks):
        raise ValueError(
            "HDF5 files hold arrays under names. Say which are images and masks: "
            "--images '{case}.h5:NAME' --masks '{case}.h5:NAME'."
        )
    if not files:
        raise ValueError(
            f"The folder holds no file that tfunet can read. Known: {', '.join(SUFFIXES)}."
        )
    if images and masks:
        return _pairs(files, list(images), list(masks), classes=len(masks) > 1)
    by_words = set(_masks_by_words(files))
    mask_files = _matching(files, masks) if masks else sorted(by_words)
    image_files = _matching(files, images)
    if not images:
        others = [file for file in files if file not in set(mask_files)]
        image_files = [file for file in others if file not in by_words] or others
    if not mask_files or not image_files:
        raise ValueError(_what_is_there(files, "masks" if not mask_files else "images"))
    counted = _counted(image_files, mask_files)
    if not counted:
        raise ValueError(
            f"No image and mask have a part of their names in common, such as {image_files[0]} and "
            f"{mask_files[0]}. Say which belong together with --images PATTERN --masks PATTERN, "
            "with {case} where the name of the case stands; or list the pairs in a table: "
            "docs/data.md."
        )
    image_patterns, mask_patterns = _families(counted)
    if not images and len(image_patterns) > 1 and not _are_channels(image_patterns):
        raise ValueError(_which(files, "images", image_patterns))
    if not masks and len(mask_patterns) > 1 and not _are_classes(mask_patterns):
        raise ValueError(_which(files, "masks", mask_patterns))
    return _pairs(files, image_patterns, mask_patterns, classes=len(mask_patterns) > 1)


def _masks_by_words(files: Sequence[str]) -> list[str]:
    """Return the files whose folders, or else names, say that they are masks."""
    paths = [PurePosixPath(file) for file in files]
    depth = shared_start([path.parent.parts for path in paths])
    siblings: dict[PurePosixPath, set[str]] = {}
    for folder in {folder for path in paths for folder in path.parents}:
        siblings.setdefault(folder.parent, set()).add(folder.name)
    of_masks = {
        folder
        for parent, names in siblings.items()
        for folder in (parent / name for name in names)
        if len(folder.parts) > depth
        and (is_of_masks(folder.name) or beside(folder.name, names - {folder.name}))
    }
    for says in (
        lambda path: not of_masks.isdisjoint(path.parents),
        lambda path: is_of_masks(stem(path.name)),
    ):
        found = [str(path) for path in paths if says(path)]
        if 0 < len(found) < len(files):
            return found
    return []


def _kind(file: str) -> str:
    """Return a name with {case} for its numbers, or for all of it if it has none."""
    path = PurePosixPath(file)
    name, plain = path.name, stem(path.name)
    shown = re.sub(r"\d+", "{case}", plain, count=1) if re.search(r"\d", plain) else "{case}"
    parent = re.sub(r"\d+", "*", path.parent.as_posix())
    return (PurePosixPath(parent) / name.replace(plain, shown, 1)).as_posix()


def _by_kind(files: Sequence[str]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for file in files:
        kinds.setdefault(_kind(file), []).append(file)
    if len(kinds) > MOST_KINDS:
        kinds = {}
        for file in files:
            path = PurePosixPath(file)
            ending = path.name.removeprefix(stem(path.name))
            kinds.setdefault((path.parent / f"{{case}}{ending}").as_posix(), []).append(file)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))


def _what_is_there(files: Sequence[str], missing: str) -> str:
    kinds = list(_by_kind(files).items())
    lines = [f"  '{kind}'  ({_count(len(found), 'file')})" for kind, found in kinds[:LISTED]]
    if len(kinds) > LISTED:
        lines.append(f"  and {len(kinds) - LISTED} more kinds of names")
    return "\n".join(
        [
            f"The names do not say which files are the {missing}. Here are:",
            *lines,
            "Say it with --images PATTERN --masks PATTERN, with {case} where the name of the case "
            f"stands.{_example(kinds)}",
        ]
    )


def _example(kinds: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return what to try where two folders hold files of the same names."""
    names = {
        kind: {stem(PurePosixPath(file).name) for file in files}
        for kind, files in kinds
        if "/" in kind
    }
    for first, second in itertools.combinations(names, 2):
        if len(names[first] & names[second]) > 1:
            images, masks = sorted((first, second), key=lambda kind: (len(kind), kind))
            folder = PurePosixPath(images).parent.name
            if PurePosixPath(masks).parent.name.startswith(folder):
                images, masks = (
                    kind.replace(f"{folder}", "{group}", 1) for kind in (images, masks)
                )
            return f" For instance: --images '{images}' --masks '{masks}'."
    return ""


def _counted(images: Sequence[str], masks: Sequence[str]) -> dict[tuple[str, str], "_Match"]:
    """Return each pair of patterns that fits a pair of files, with all files that it pairs."""
    by_run: dict[str, list[str]] = {}
    for image in images:
        path = PurePosixPath(image)
        for run in {*runs(stem(path.name)), *path.parent.parts}:
            by_run.setdefault(run, []).append(image)
    candidates = set()
    for kind in _by_kind(masks).values():
        for mask in _spread(kind, TRIED):
            path = PurePosixPath(mask)
            common = [run for run in runs(stem(path.name)) if run in by_run]
            for run in [*common[:6], *(part for part in path.parent.parts if part in by_run)]:
                for image in _nearest(mask, by_run[run]):
                    candidates |= set(_patterns(image, mask, run))
    matches = {}
    for image_pattern, mask_pattern in candidates:
        match = _Match.of(images, masks, image_pattern, mask_pattern)
        if match.images:
            matches[image_pattern, mask_pattern] = match
    return matches


def _spread(files: Sequence[str], number: int) -> list[str]:
    """Return some files: those of the first cases with all of their classes, and some of others."""
    others = files[:: max(1, len(files) // number)][:number]
    return list(dict.fromkeys([*files[: 2 * number], *others]))


def _nearest(mask: str, images: Sequence[str]) -> list[str]:
    """Return the images whose folders are most like those of a mask, if they are few."""
    parts = set(PurePosixPath(mask).parent.parts)
    shared = {image: len(parts & set(PurePosixPath(image).parent.parts)) for image in images}
    near = [image for image in images if shared[image] == max(shared.values())]
    return near if len(near) <= MOST_PARTNERS else []


def _patterns(image: str, mask: str, run: str) -> Iterable[tuple[str, str]]:
    """Yield the patterns that fit a pair, where `run` is the name of its case."""
    for whole in (True, False):
        named = [_with_case(file, run, whole=whole) for file in (image, mask)]
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


def _with_case(file: str, run: str, *, whole: bool) -> str:
    path = PurePosixPath(file)
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
class _Match:
    """The files that two patterns pair."""

    images: frozenset[str]
    masks: frozenset[str]
    simplicity: tuple[int, int] = field(compare=False)

    @classmethod
    def of(
        cls, images: Sequence[str], masks: Sequence[str], image_pattern: str, mask_pattern: str
    ) -> "_Match":
        names = placeholders(mask_pattern)
        by_key: dict[tuple[str, ...], list[str]] = {}
        for mask, values in _values(masks, mask_pattern).items():
            by_key.setdefault(tuple(values[name] for name in names), []).append(mask)
        paired = {}
        for image, values in _values(images, image_pattern).items():
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


def _values(files: Iterable[str], pattern: str) -> dict[str, dict[str, str]]:
    expression = compiled(split_container(pattern)[0].as_posix())
    matches = {file: expression.fullmatch(file) for file in files}
    return {file: match.groupdict() for file, match in matches.items() if match}


def _matching(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    files = list(files)
    return [file for pattern in patterns for file in _values(files, pattern)]


def _families(counted: Mapping[tuple[str, str], _Match]) -> tuple[list[str], list[str]]:
    """Return the image and the mask patterns that go with the pair that pairs the most files."""

    def rank(pair: tuple[str, str]) -> tuple[int, tuple[int, int], tuple[str, str]]:
        match = counted[pair]
        return len(match.images), match.simplicity, pair

    ranked = sorted(counted, key=rank, reverse=True)
    best = counted[ranked[0]]
    simplest: dict[tuple[frozenset[str], frozenset[str]], tuple[str, str]] = {}
    for pair in ranked:
        match = counted[pair]
        if 2 * len(match.images) >= len(best.images):
            simplest.setdefault((match.images, match.masks), pair)
    sets = list(simplest)
    kept = [
        simplest[pair]
        for pair in sets
        if not any(pair[0] <= other[0] and pair[1] <= other[1] and pair != other for other in sets)
    ]
    first_image, first_mask = kept[0]
    images = sorted({image for image, mask in kept if mask == first_mask})
    masks = sorted({mask for image, mask in kept if image == first_image})
    return images, masks


def _are_channels(patterns: Sequence[str]) -> bool:
    return all(CHANNEL.fullmatch(re.split(r"[-_./ ]", part)[-1]) for part in differing(patterns))


def _are_classes(patterns: Sequence[str]) -> bool:
    return not any(RATER.fullmatch(name) or "{" in name for name in differing(patterns))


def _which(files: Sequence[str], kind: str, patterns: Sequence[str]) -> str:
    lines = [
        f"  --{kind} '{pattern}'  ({_count(len(_values(files, pattern)), 'file')})"
        for pattern in patterns
    ]
    several = "channels of one image" if kind == "images" else "masks of one class each"
    return "\n".join(
        [
            f"Several sets of files can be the {kind}:",
            *lines,
            f"Say which. If they are {several}, name each of them, one --{kind} after the other.",
        ]
    )


def _pairs(
    files: Sequence[str], images: Sequence[str], masks: Sequence[str], *, classes: bool
) -> Pairs:
    """Return the pairs that patterns make; with `classes` each mask pattern is a class."""
    names = [re.sub(r"\W+", "_", name) for name in differing(masks)] if classes else [""]
    mask_files = set(_matching(files, masks))
    known = [
        (placeholders(mask), {tuple(found.values()) for found in _values(files, mask).values()})
        for mask in masks
    ]
    values = [
        found
        for file, found in _values(files, images[0]).items()
        if file not in mask_files
        and all(tuple(found.get(name, "") for name in held) in keys for held, keys in known)
    ]
    return with_short_names(
        Pairs(
            images=tuple(images), masks=dict(zip(names, masks, strict=True)), values=tuple(values)
        )
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
