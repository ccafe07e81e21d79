"""Finds which files are images, and which are their masks, by their names. Imports no TensorFlow.

Names give candidates, and counting decides: of all patterns that fit some pair, those that pair the
most files.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import final

from tfunet.data.discovery.candidates import Match, by_kind, count_pairs, placeholder_values
from tfunet.data.discovery.case_folders import find_case_folders
from tfunet.data.discovery.found_pairs import Pairs, with_short_names, without_kinds
from tfunet.data.discovery.names import (
    are_channels,
    are_classes,
    beside,
    differing,
    is_of_masks,
    is_of_region,
    plain_name,
    shared_start,
)
from tfunet.data.discovery.object_files import find_objects, objects_of
from tfunet.data.formats import FORMATS
from tfunet.data.formats.container import stem
from tfunet.data.image_files import read_header
from tfunet.data.layouts.file_patterns import placeholders
from tfunet.process.terminal import counted

SUFFIXES = tuple(suffix for suffix in FORMATS if suffix.startswith("."))
# In these, an array has a name that only the user knows.
CONTAINERS = (".h5", ".hdf5")
LISTED = 8
# Names of folders that are tried as those of masks.
TRIED_FOLDERS = 6


def list_files(root: Path) -> list[str]:
    """Return the image files under a folder, relative to it, without hidden ones.

    Links are followed; a folder that several lead to is listed once.
    """
    files, seen = [], set()
    for folder, inner, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner[:] = []
            continue
        seen.add(real)
        stores = [name for name in inner if name.lower().endswith(".zarr")]
        inner[:] = sorted(set(inner) - set(stores) - {n for n in inner if n.startswith(".")})
        for name in (*names, *stores):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                files.append((Path(folder) / name).relative_to(root).as_posix())
    return sorted(files)


def find_pairs(
    files: Sequence[str],
    images: Sequence[str] = (),
    masks: Sequence[str] = (),
    *,
    root: Path,
) -> Pairs:
    """Return the patterns that pair the most images with masks.

    Args:
        files: Relative paths.
        images: Patterns of the images, if the user names them.
        masks: Patterns of the masks, if the user names them.
        root: Where some files are read, if their names do not say enough.

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
    by_words = set(masks_by_words(files))
    mask_files = _matching(files, masks) if masks else sorted(by_words)
    image_files = _matching(files, images)
    if not images:
        others = [file for file in files if file not in set(mask_files)]
        image_files = [file for file in others if file not in by_words] or others
    search = _PairSearch(files, images, masks, root, tuple(image_files), tuple(mask_files))
    finders = (_of_objects, _by_patterns) if image_files and mask_files else (_by_folders,)
    reason = ""
    for find in finders:
        found = find(search)
        if isinstance(found, Pairs):
            return found
        reason = reason or found
    raise ValueError(reason)


@final
@dataclass(frozen=True)
class _PairSearch:
    """What is known before a finder looks: it returns pairs, or a reason why there are none.

    Args:
        files: Relative paths.
        images: Patterns of the images, if the user names them.
        masks: Patterns of the masks, if the user names them.
        root: Where some files are read.
        image_files: Files that are images, as the user or their names say.
        mask_files: Files that are masks, as the user or their names say.
    """

    files: Sequence[str]
    images: Sequence[str]
    masks: Sequence[str]
    root: Path
    image_files: Sequence[str]
    mask_files: Sequence[str]

    @cached_property
    def counted(self) -> Mapping[tuple[str, str], Match]:
        """Each pair of patterns that fits some files, with what it pairs."""
        return count_pairs(self.image_files, self.mask_files)


def _by_folders(search: _PairSearch) -> Pairs | str:
    """Find pairs where no name says which files are the images, or the masks."""
    files, root = search.files, search.root
    said = (
        search.image_files if search.images else (),
        search.mask_files if search.masks else (),
    )
    found = None if search.images or search.masks else _objects_in_a_folder(files, root)
    if found := found or find_case_folders(files, *said, root):
        return with_short_names(found)
    return _what_is_there(files, "images" if search.mask_files else "masks")


def _of_objects(search: _PairSearch) -> Pairs | str:
    """Find a mask for each object, where there are more masks than images, or most are left."""
    images, masks = search.image_files, search.mask_files
    if len(masks) <= len(images):
        most = max((len(match.masks) for match in search.counted.values()), default=0)
        if 2 * most >= len(masks):
            return ""
    is_said = any("*" in mask for mask in search.masks)
    found = find_objects(images, masks, search.root, is_said=is_said)
    return with_short_names(found) if found else ""


def _by_patterns(search: _PairSearch) -> Pairs | str:
    """Find the patterns that pair most images and masks."""
    files, masks, root = search.files, search.masks, search.root
    if not search.counted:
        return (
            f"No image and mask have a part of their names in common, such as "
            f"{search.image_files[0]} and {search.mask_files[0]}. Say which belong together with "
            "--images PATTERN --masks PATTERN, with {case} where the name of the case stands; or "
            "list the pairs in a table: docs/data.md."
        )
    image_patterns, mask_patterns = _families(search.counted)
    if not masks:
        mask_patterns = [p for p in mask_patterns if not is_of_region(p)] or mask_patterns
    if not search.images and len(image_patterns) > 1 and not are_channels(image_patterns):
        if plain := plain_name(image_patterns):
            image_patterns = [plain]
        elif found := find_case_folders(files, (), search.mask_files if masks else (), root):
            return with_short_names(found)
        else:
            return _which(files, "images", image_patterns)
    if not masks and len(mask_patterns) > 1:
        mask_patterns = _readable(files, mask_patterns, root) or mask_patterns
    if not masks and len(mask_patterns) > 1 and not are_classes(mask_patterns):
        return _which(files, "masks", mask_patterns)
    pairs = _pairs(files, image_patterns, mask_patterns, classes=len(mask_patterns) > 1)
    return pairs if search.images or masks else without_kinds(pairs)


def masks_by_words(files: Sequence[str]) -> list[str]:
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


def _objects_in_a_folder(files: Sequence[str], root: Path) -> Pairs | None:
    """Return the pairs if the files in folders of one name hold single objects."""
    names = Counter(part for file in files for part in set(file.split("/")[:-1]))
    for name, _ in names.most_common(TRIED_FOLDERS):
        masks = [file for file in files if name in file.split("/")[:-1]]
        inside = set(masks)
        images = [file for file in files if file not in inside]
        if images and (found := find_objects(images, masks, root)):
            return found
    return None


def _what_is_there(files: Sequence[str], missing: str) -> str:
    kinds = list(by_kind(files).items())
    lines = [f"  '{kind}'  ({counted(len(found), 'file')})" for kind, found in kinds[:LISTED]]
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


def _matching(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    files = list(files)
    return [file for pattern in patterns for file in placeholder_values(files, pattern)]


def _families(counted: Mapping[tuple[str, str], Match]) -> tuple[list[str], list[str]]:
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


def _readable(files: Sequence[str], patterns: Sequence[str], root: Path) -> list[str]:
    """Return the patterns whose first file is an image: a .npy may hold objects of Python."""
    readable = []
    for pattern in patterns:
        first = min(placeholder_values(files, pattern))
        with suppress(ValueError):
            read_header(root / first)
            readable.append(pattern)
    return readable


def _which(files: Sequence[str], kind: str, patterns: Sequence[str]) -> str:
    lines = [
        f"  --{kind} '{pattern}'  ({counted(len(placeholder_values(files, pattern)), 'file')})"
        for pattern in patterns
    ]
    starred = {
        pattern.replace(part, "*")
        for pattern, part in zip(patterns, differing(patterns), strict=True)
    }
    if kind == "masks" and len(starred) == 1:
        lines.append(f"  --masks '{starred.pop()}'  if each file is of one object")
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
        (
            placeholders(mask),
            {tuple(found.values()) for found in placeholder_values(files, mask).values()},
        )
        for mask in masks
    ]
    values = [
        found
        for file, found in placeholder_values(files, images[0]).items()
        if file not in mask_files
        and all(tuple(found.get(name, "") for name in held) in keys for held, keys in known)
    ]
    images_only = [file for file in files if file not in mask_files]
    several = [objects_of(images_only, sorted(mask_files), images[0], mask) for mask in masks]
    return with_short_names(
        Pairs(
            images=tuple(images),
            masks=dict(zip(names, masks, strict=True)),
            values=tuple(values),
            objects=any("*" in mask for mask in masks) and all(map(_have_several, several)),
        )
    )


def _have_several(masks: Mapping[str, Sequence[str]]) -> bool:
    """Whether most images have more than one of the masks."""
    return 2 * sum(len(files) > 1 for files in masks.values()) > len(masks)
