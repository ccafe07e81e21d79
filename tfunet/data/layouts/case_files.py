"""Finds the files of each case by patterns. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet.data.defects import Defect
from tfunet.data.layouts.file_patterns import find, placeholders


@dataclass(frozen=True, kw_only=True)
class Case:
    """The files of one case, relative to the data set's root.

    Args:
        case_id: The values of the placeholders, joined by "_".
        group: The value of {group}, or the case's own id.
        images: One file for each image pattern.
        masks: One file for each mask pattern.
        values: The placeholders of the first image pattern.
    """

    case_id: str
    group: str
    images: tuple[str, ...]
    masks: tuple[str, ...]
    values: Mapping[str, str]


class Found:
    """The files of one pattern, found by the values of its placeholders."""

    def __init__(self, root: Path, pattern: str) -> None:
        self.pattern = pattern
        self.names = placeholders(pattern)
        self.files = find(root, pattern)
        self._by_key: dict[tuple[str, ...], list[str]] = {}
        for file, values in self.files.items():
            self._by_key.setdefault(self.key(values), []).append(file)

    def key(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return what tells this pattern's files apart, from a case's placeholders."""
        return tuple(values[name] for name in self.names)

    def matching(self, values: Mapping[str, str]) -> list[str]:
        """Return the files whose placeholders have the case's values."""
        return self._by_key.get(self.key(values), [])

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the pattern with the case's values in it, for messages."""
        text = self.pattern
        for name in self.names:
            text = text.replace(f"{{{name}}}", values.get(name, f"{{{name}}}"))
        return text


def pair(
    root: Path, images: Sequence[str], masks: Sequence[str]
) -> tuple[list[Case], list[Defect], str]:
    """Return the complete cases, the defects, and the numbers of files in words.

    The first image pattern names the cases; in every other pattern, equal placeholders have
    equal values. A file that matches a mask pattern is never taken for an image.
    """
    _check_patterns(images, masks)
    found_masks = [Found(root, pattern) for pattern in masks]
    found_images = [Found(root, pattern) for pattern in images]
    taken = {file for one in found_masks for file in one.files}
    leading = {file: at for file, at in found_images[0].files.items() if file not in taken}
    if not leading:
        raise ValueError(
            f"No image under {root} matches {images[0]!r}. {_contents(root)} "
            "A pattern is relative to root: 'imagesTr/{case}.nii.gz'."
        )
    cases: list[Case] = []
    defects: list[Defect] = []
    for file, values in leading.items():
        others = [_only(one, "image", values) for one in found_images[1:]]
        mates = [_only(one, "mask", values) for one in found_masks]
        wrong = [what for _, what in others + mates if what]
        case_id = "_".join(values.values())
        defects += [Defect(file=file, what=what, case_id=case_id) for what in wrong]
        if not wrong:
            cases.append(
                Case(
                    case_id=case_id,
                    group=values.get("group", case_id),
                    images=(file, *(name for name, _ in others)),
                    masks=tuple(name for name, _ in mates),
                    values=values,
                )
            )
    defects += _orphans(found_images[1:], "image", leading) + _orphans(found_masks, "mask", leading)
    numbers = (
        f"{len(leading)} images and {'/'.join(str(len(one.files)) for one in found_masks)} masks"
    )
    defects += without_same_names(cases)
    return cases, defects, numbers


def without_same_names(cases: list[Case]) -> list[Defect]:
    """Take away each case that is named as an earlier one, and return a defect for it."""
    first: dict[str, Case] = {}
    defects = []
    for case in cases:
        if first.setdefault(case.case_id, case) is not case:
            what = (
                f"named {case.case_id!r}, as is {first[case.case_id].images[0]}; put a placeholder "
                "where their names differ"
            )
            defects.append(Defect(file=case.images[0], what=what))
    cases[:] = first.values()
    return defects


def _only(found: Found, kind: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return the one file that belongs to a case, or what is wrong."""
    files = found.matching(values)
    if not files:
        return "", f"missing {kind}: no file {found.filled(values)}"
    if len(files) > 1:
        return "", f"{len(files)} files match {found.filled(values)}: {', '.join(files[:3])}"
    return files[0], ""


def _orphans(
    found: Sequence[Found], kind: str, leading: Mapping[str, Mapping[str, str]]
) -> list[Defect]:
    defects = []
    for one in found:
        known = {one.key(values) for values in leading.values()}
        defects += [
            Defect(file=file, what=f"{kind} without its image")
            for file, values in one.files.items()
            if one.key(values) not in known and file not in leading
        ]
    return defects


def _check_patterns(images: Sequence[str], masks: Sequence[str]) -> None:
    names = placeholders(images[0])
    if not names:
        raise ValueError(
            f"images={images[0]!r} has no placeholder. Write {{case}} where the files' names "
            "differ; it names the cases and finds their masks."
        )
    for pattern in [*images[1:], *masks]:
        others = placeholders(pattern)
        if not others or not set(others) <= set(names):
            raise ValueError(
                f"The pattern {pattern!r} has the placeholders {list(others)}; it needs one or "
                f"more of those of images={images[0]!r}: {list(names)}."
            )
        if pattern in images and pattern in masks:
            raise ValueError(f"images= and masks= both name {pattern!r}. Give each its own.")


def _contents(root: Path) -> str:
    names = sorted(
        path.name + ("/" if path.is_dir() else "")
        for path in root.iterdir()
        if not path.name.startswith(".")
    )
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"It holds {', '.join(names[:8]) or 'nothing'}{more}."
