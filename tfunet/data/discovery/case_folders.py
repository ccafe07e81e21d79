"""Finds images and masks in folders of cases whose files have the same names everywhere.

Names say which files are alike, and the values in some of them say which are masks. Imports no
TensorFlow.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import final

import numpy as np

from tfunet.data.class_lines import inline_table, toml_value
from tfunet.data.defects import BadFileError
from tfunet.data.discovery.found_pairs import MOST_KINDS, Pairs
from tfunet.data.discovery.mask_contents import MOST_CLASSES
from tfunet.data.discovery.names import (
    SIDES,
    are_classes,
    differing,
    is_of_masks,
    is_of_region,
    replaced,
)
from tfunet.data.formats.container import composed, stem
from tfunet.data.image_files import read_image
from tfunet.process.terminal import counted

# More kinds of files are no channels and masks of a case.
MOST_ROLES = 24
# A kind of file is in this share of the cases at least; those for tests have no mask.
LEAST_SHARE = 0.2
# Cases whose files are read.
READ = 3
# Every so many pixels are looked at first.
STRIDE = 97
# A name whose last word, or number, is what the file is.
ENDING = re.compile(r"(.+)([-_. ][^\W\d_]\w*?)")

# The pattern of a kind of file to its files, by the values of the placeholders.
Roles = dict[str, dict[tuple[str, ...], str]]


def find_case_folders(
    files: Sequence[str], images: Sequence[str], masks: Sequence[str], root: Path
) -> Pairs | None:
    """Return the pairs of folders of cases; None where files lie otherwise.

    Args:
        files: Relative paths.
        images: Files that are images, if the user says so.
        masks: Files that are masks, if the user says so.
        root: Where some files are read.
    """
    depth = max((file.count("/") for file in files), default=0)
    levels = itertools.product(range(depth, 0, -1), (False, True), (False, True))
    layouts = itertools.chain(
        (_roles(files, level, is_number=n, is_loose=loose) for level, n, loose in levels),
        (named(files) for named in (_roles_by_folder, _roles_by_ending)),
    )
    for names, roles in layouts:
        pairs = _pairs(names, roles, set(images), set(masks), root) if roles else None
        if pairs is not None:
            return pairs
    return None


def masks_reason(pairs: Pairs) -> str:
    """Return why these are the masks, and what to write for others; "" where names said it."""
    if pairs.others is None:
        return ""
    names = ", ".join(PurePosixPath(pattern).name for pattern in pairs.masks.values())
    reason = f"The values say which files are masks: those of {names} are few whole numbers."
    for pattern, values in pairs.others.items():
        count = f"{counted(len(values), 'value')} besides 0"
        classes = {f"class_{value}": value for value in values}
        classes = {"foreground": values[0]} if len(values) == 1 else classes
        reason += (
            f" So are those of {PurePosixPath(pattern).name}, with {count}. For these write:\n"
            f"masks = {toml_value(pattern)}\nclasses = {inline_table(classes)}\n"
        )
    return reason.rstrip()


def _roles(
    files: Sequence[str], level: int, *, is_number: bool, is_loose: bool
) -> tuple[tuple[str, ...], Roles]:
    """Return the placeholders and the kinds of files in folders this deep; none if they differ.

    Args:
        files: Relative paths.
        level: Number of folders down to those of cases.
        is_number: Whether a case is the last number in the name of its folder, or else the name.
        is_loose: Whether long numbers in the names of files mean nothing.
    """
    split = [(parts, file) for file in files if len(parts := composed(file).split("/")) > level]
    folders = sorted({tuple(parts[:level]) for parts, _ in split})
    varied = [at for at in range(level) if len({folder[at] for folder in folders}) > 1]
    if not varied:
        return (), {}
    at = varied[-1]
    names = _placeholders([tuple(folder[place] for place in varied) for folder in folders])
    roles: Roles = {}
    for parts, file in split:
        case = parts[at]
        if is_number:
            numbers = re.findall(r"\d+", case)
            if not numbers:
                return (), {}
            case = numbers[-1]
        marks = {place: f"{{{name}}}" for place, name in zip(varied, names, strict=True)}
        marks[at] = replaced(parts[at], case, "{case}")
        inner = [replaced(part, case, "{case}") for part in parts[level:]]
        if is_loose:
            inner = [re.sub(r"\d{3,}", "*", part) for part in inner]
        outer = [marks.get(place, part) for place, part in enumerate(parts[:level])]
        key = (*(parts[place] for place in varied[:-1]), case)
        same = roles.setdefault("/".join(outer + inner), {})
        if key in same:
            return (), {}
        same[key] = file
    return names, _usual(roles, len(files))


def _roles_by_folder(files: Sequence[str]) -> tuple[tuple[str, ...], Roles]:
    """Return the kinds of files where each has a folder, with a file of the same name a case."""
    split = [(*composed(file).rpartition("/")[::2], file) for file in files]
    return _roles_of((folder, "", stem(name), file) for folder, name, file in split)


def _roles_by_ending(files: Sequence[str]) -> tuple[tuple[str, ...], Roles]:
    """Return the kinds of files where names end in what they are: a_t1.nii.gz."""
    split = [(*composed(file).rpartition("/")[::2], file) for file in files]
    matches = [(folder, ENDING.fullmatch(stem(name)), file) for folder, name, file in split]
    return _roles_of((folder, m[2], m[1], file) for folder, m, file in matches if m)


def _roles_of(
    named: Iterable[tuple[str, str, str, str]],
) -> tuple[tuple[str, ...], Roles]:
    """Return the kinds of files, of which each has (folder, end of its name, case, file)."""
    roles: Roles = {}
    num_files = 0
    for folder, end, case, file in named:
        num_files += 1
        parts = folder.split("/")
        sides = [part for part in parts if part.lower() in SIDES][:1]
        marked = ["{group}" if [part] == sides else part for part in parts if part]
        suffix = file.rpartition("/")[2].removeprefix(f"{case}{end}")
        pattern = "/".join([*marked, f"{{case}}{end}{suffix}"])
        same = roles.setdefault(pattern, {})
        if (*sides, case) in same:
            return (), {}
        same[(*sides, case)] = file
    roles = _usual(roles, num_files)
    num_names = {len(key) for role in roles.values() for key in role}
    return ("group", "case")[-max(num_names, default=1) :], roles if len(num_names) == 1 else {}


def _usual(roles: Roles, num_files: int) -> Roles:
    """Return the kinds of files that enough cases have; none if these are few files."""
    num_cases = len({key for role in roles.values() for key in role})
    least = max(2, LEAST_SHARE * num_cases)
    kept = {pattern: role for pattern, role in roles.items() if len(role) >= least}
    is_covered = 2 * sum(map(len, kept.values())) > num_files
    return kept if 2 <= len(kept) <= MOST_ROLES and is_covered else {}


def _placeholders(folders: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return a name for each level of folders that differ; the last is that of the case."""
    *above, _ = zip(*folders, strict=True)
    is_side = [set(map(str.lower, level)) <= SIDES.keys() for level in above]
    # Many folders are patients with their visits, and few are kinds of patients.
    is_many = [len(set(level)) > MOST_KINDS for level in above]
    group = next((at for claims in (is_side, is_many) for at, c in enumerate(claims) if c), None)
    parts = iter(("part", "part2", "part3", *(f"part{at}" for at in range(4, len(above) + 4))))
    return (*("group" if at == group else next(parts) for at in range(len(above))), "case")


@final
@dataclass(frozen=True, kw_only=True)
class _Look:
    """What some files of one kind hold.

    Args:
        shapes: Spatial shape of each case.
        channels: Channels of the first.
        values: All values, if they are a few whole numbers; () for others.
    """

    shapes: tuple[tuple[int, ...], ...]
    channels: int
    values: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """Number of values besides 0."""
        return len(set(self.values) - {0})

    @property
    def is_of_labels(self) -> bool:
        """Whether it can be a mask."""
        return self.channels == 1 and self.num_classes > 0


def _look(paths: Iterable[Path]) -> _Look | None:
    """Look at files; None if one cannot be read."""
    shapes, channels = [], []
    values: set[int] | None = set()
    for path in paths:
        try:
            pixels = read_image(path, fill=0)
        except (BadFileError, OSError):
            return None
        shapes.append(pixels.shape[:-1])
        channels.append(pixels.shape[-1])
        own = _few_values(pixels)
        values = None if own is None or values is None else values | own
    if values is None or len(values) > MOST_CLASSES + 1:
        values = set()
    return _Look(
        shapes=tuple(shapes),
        channels=channels[0],
        values=tuple(sorted(values)),
    )


def _few_values(pixels: np.ndarray) -> set[int] | None:
    """Return the values of an image if they are whole numbers, and few; None for others."""
    flat = pixels.ravel()
    for some in (flat[::STRIDE], flat):  # Most images show what they are in some pixels.
        whole = np.rint(some)
        if not np.array_equal(whole, some) or whole.min(initial=0) < 0:
            return None
        distinct = np.unique(whole)
        if len(distinct) > MOST_CLASSES + 1:
            return None
    return set(map(int, distinct))


def _pairs(
    names: tuple[str, ...], roles: Roles, images: set[str], masks: set[str], root: Path
) -> Pairs | None:
    """Return the pairs that kinds of files make; None if they cannot be images and masks."""
    said_masks = _said(roles, masks)
    cases = sorted(
        {key for role in roles.values() for key in role},
        key=lambda key: (-sum(key in role for role in roles.values()), key),
    )
    # The first have files of all kinds, if a case has.
    num_full = sum(all(key in role for role in roles.values()) for key in cases)
    full = cases[:num_full]
    some = full[:: max(1, len(full) // READ)][:READ] if full else cases[:1]
    looks = {}
    for pattern, role in roles.items():
        paths = [root / role[key] for key in some if key in role]
        if paths and (look := _look(paths)):
            looks[pattern] = look
    chosen = said_masks or _mask_roles(looks, _said(roles, images))
    of_cases = {key for pattern in chosen for key in roles[pattern]}
    shapes = {looks[pattern].shapes for pattern in chosen if pattern in looks}
    others = _said(roles, images) or [
        pattern
        for pattern, look in looks.items()
        if pattern not in chosen
        and not look.is_of_labels
        and look.shapes in shapes
        and 2 * len(of_cases & roles[pattern].keys()) >= len(of_cases)
    ]
    if not chosen or not others:
        return None
    if len(others) > 1 and any(looks[p].channels > 1 for p in others if p in looks):
        return None  # Pictures of one thing, one of which may show its outlines.
    keys = [key for key in roles[others[0]] if all(key in roles[pattern] for pattern in chosen)]
    classes = {_class_name(pattern, chosen): pattern for pattern in chosen}
    return Pairs(
        images=tuple(others),
        masks={"": chosen[0]} if len(chosen) == 1 else classes,
        values=tuple(dict(zip(names, key, strict=True)) for key in keys),
        others=None
        if said_masks
        else {
            pattern: [value for value in look.values if value]
            for pattern, look in looks.items()
            if look.is_of_labels and pattern not in chosen
        },
    )


def _said(roles: Roles, files: set[str]) -> list[str]:
    """Return the kinds of files that hold some of these files."""
    return sorted(p for p, role in roles.items() if not files.isdisjoint(role.values()))


def _mask_roles(looks: Mapping[str, _Look], images: Sequence[str]) -> list[str]:
    """Return the kinds of files that are the masks, by their values and then by their names."""
    labels = {p: look for p, look in looks.items() if look.is_of_labels and p not in images}
    if not labels:
        return []
    named = [p for p in labels if is_of_masks(p) and not is_of_region(p)]
    labels = {p: labels[p] for p in named or labels}
    most = max(look.num_classes for look in labels.values())
    best = [pattern for pattern, look in labels.items() if look.num_classes == most]
    what = [pattern for pattern in best if not is_of_region(pattern)]
    best = sorted(what or best)
    if len(best) > 1 and (most > 1 or not are_classes(best)):
        others = [p for p in looks if p not in labels or p in images]
        if not others:
            return []
        shown = " ".join(f"--images '{pattern}'" for pattern in others)
        raise ValueError(
            "\n".join(
                [
                    "Several kinds of files can be the masks, by their values. Say one of:",
                    *(f"  {shown} --masks '{pattern}'" for pattern in best),
                ]
            )
        )
    return best


def _class_name(pattern: str, patterns: Sequence[str]) -> str:
    return re.sub(r"\W+", "_", differing(patterns)[list(patterns).index(pattern)]).strip("_")
