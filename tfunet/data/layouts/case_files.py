"""Finds the files of each case by patterns. Imports no TensorFlow."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from tfunet.data.defects import Defect
from tfunet.data.formats.container import composed, split_container, stem
from tfunet.data.layouts.file_patterns import compiled, find, in_other_case, placeholders
from tfunet.files.printable import NO_UTF8, is_utf8

# Follows what is missing where each object has a file.
OF_NO_OBJECT = ". If the image shows no object, store one mask of zeros"


@dataclass(frozen=True, kw_only=True)
class CaseFiles:
    """The files of one case, relative to the data set's root.

    Args:
        case_id: The values of the placeholders, joined by "_".
        group: The value of {group}, or the case's own id.
        images: One file for each image pattern.
        masks: One file for each mask pattern, or all files of its objects.
        values: The placeholders of the first image pattern, or the case's row of a table.
        mask_labels: The class of each mask file, from 1, in the order of the mask patterns.
    """

    case_id: str
    group: str
    images: tuple[str, ...]
    masks: tuple[str, ...]
    values: Mapping[str, str]
    mask_labels: tuple[int, ...]

    def masks_of(self, label: int) -> list[str]:
        """Return the mask files of a class."""
        pairs = zip(self.masks, self.mask_labels, strict=True)
        return [mask for mask, of in pairs if of == label]


class PatternFiles:
    """The files that match one pattern, looked up by the values of its placeholders."""

    def __init__(self, root: Path, pattern: str) -> None:
        self.pattern = pattern
        self.names = placeholders(pattern)
        self.files = find(root, pattern)
        self._by_key: dict[tuple[str, ...], list[str]] = {}
        for file, values in self.files.items():
            self._by_key.setdefault(self.key(values), []).append(file)

    def key(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return a case's values of this pattern's placeholders."""
        return tuple(values[name] for name in self.names)

    def prefer(self, cases: Sequence[Mapping[str, str]]) -> None:
        """Take placeholders as long as possible where this is the name of a case.

        In 'masks/{case}_*.png' the case of a_b_1.png may be a, or a_b.
        """
        known = {self.key(values) for values in cases}
        outside, _ = split_container(self.pattern)
        expression = compiled(outside.as_posix(), longest=True)
        self._by_key = {}
        for file, values in self.files.items():
            match = expression.fullmatch(split_container(file)[0].as_posix())
            longest = match.groupdict() if match else values
            self.files[file] = longest if self.key(longest) in known else values
            self._by_key.setdefault(self.key(self.files[file]), []).append(file)

    def matching(self, values: Mapping[str, str]) -> list[str]:
        """Return the files whose placeholders have the case's values."""
        return self._by_key.get(self.key(values), [])

    def num_beside(self, excluded: Sequence[Mapping[str, str]]) -> int:
        """Return the number of files, without those of excluded cases."""
        keys = {self.key(values) for values in excluded}
        return sum(self.key(values) not in keys for values in self.files.values())

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the pattern with the case's values in it, for messages."""
        text = self.pattern
        for name in self.names:
            text = text.replace(f"{{{name}}}", values.get(name, f"{{{name}}}"))
        return text


def match_files(
    root: Path,
    images: Sequence[str],
    masks: Sequence[str],
    exclude: Sequence[str] = (),
    *,
    objects: bool = False,
) -> tuple[list[CaseFiles], list[Defect], str]:
    """Return the complete cases, the defects, and the numbers of files in words.

    The first image pattern names the cases. Equal placeholders have equal values in every pattern.
    A file that matches a mask pattern, or one of `exclude`, is never taken for an image. The other
    files of an excluded image are left out with it. With `objects` a case has a mask file for each
    object, and at least one.
    """
    _check_patterns(images, masks)
    mask_files = [PatternFiles(root, pattern) for pattern in masks]
    image_files = [PatternFiles(root, pattern) for pattern in images]
    all_masks = {file for pattern in mask_files for file in pattern.files}
    left_out = {file for pattern in exclude for file in find(root, pattern)}
    named = {file: image_files[0].files[file] for file in image_files[0].files.keys() - all_masks}
    excluded = [values for file, values in named.items() if file in left_out]
    leading = {file: named[file] for file in sorted(named.keys() - left_out)}
    if excluded and not leading:
        raise ValueError(
            f"exclude leaves out all {len(excluded)} images under {root} that match {images[0]!r}. "
            "Leave fewer out."
        )
    if not leading:
        raise ValueError(
            f"No image under {root} matches {images[0]!r}. {_contents(root)} "
            "A pattern is relative to root: 'imagesTr/{case}.nii.gz'."
        )
    for pattern in mask_files if objects else []:
        pattern.prefer([*leading.values(), *excluded])
    cases: list[CaseFiles] = []
    defects: list[Defect] = []
    for file, values in leading.items():
        case, problems = _case(file, values, image_files[1:], mask_files, objects=objects)
        defects += problems
        cases += [] if problems else [case]
    for kind, patterns in (("image", image_files[1:]), ("mask", mask_files)):
        defects += _orphans(patterns, kind, leading, excluded)
    mask_counts = "/".join(str(pattern.num_beside(excluded)) for pattern in mask_files)
    defects += drop_same_names(cases)
    return cases, defects, f"{len(leading)} images and {mask_counts} masks"


def _case(
    file: str,
    values: Mapping[str, str],
    images: Sequence[PatternFiles],
    masks: Sequence[PatternFiles],
    *,
    objects: bool,
) -> tuple[CaseFiles, list[Defect]]:
    """Return the case of a first image, and what is wrong with its other files."""
    other_images = [_only_file(pattern, "image", values) for pattern in images]
    case_masks = [_mask_files(pattern, values, objects=objects) for pattern in masks]
    if objects and any(found for found, _ in case_masks):
        # The image shows no object of the other classes.
        case_masks = [(found, "") for found, _ in case_masks]
    problems = [what for _, what in (*other_images, *case_masks) if what]
    problems += [] if is_utf8(file) else [NO_UTF8]
    case_id = "_".join(values.values())
    case = CaseFiles(
        case_id=case_id,
        group=values.get("group", case_id),
        images=(file, *(image for image, _ in other_images)),
        masks=tuple(mask for found, _ in case_masks for mask in found),
        values=values,
        mask_labels=tuple(label for label, (found, _) in enumerate(case_masks, 1) for _ in found),
    )
    return case, [Defect(file=file, what=what, case_id=case_id) for what in problems]


def images_in_other_case(root: Path, images: Sequence[str], others: Sequence[str]) -> list[Defect]:
    """Return a warning for each file that is no image because its suffix is in upper case, say.

    Files that match `others`, such as the masks' patterns, are no images anyway.
    """
    no_images = [compiled(split_container(pattern)[0].as_posix(), re.I) for pattern in others]
    return [
        Defect(
            file=file,
            what=f"is left out: it matches {pattern!r} only if upper and lower case are the same. "
            "Rename it and its mask",
        )
        for pattern in images
        for file in in_other_case(root, pattern)
        if not any(expression.fullmatch(file) for expression in no_images)
    ]


def listed_cases(
    root: Path, listed: Iterable[CaseFiles], where: str
) -> tuple[list[CaseFiles], list[Defect]]:
    """Return the usable ones of cases that the file `where` lists, and the defects."""
    cases, defects = [], []
    for case in listed:
        missing = [file for file in (*case.images, *case.masks) if not is_stored(root, file)]
        both = set() if missing else set(case.images) & set(case.masks)
        problems = dict.fromkeys(missing, f"missing: {where} lists it, and there is no such file")
        problems |= dict.fromkeys(both, f"{where} lists it as image and as mask")
        defects += [
            Defect(file=file or case.images[0] or case.case_id, what=what, case_id=case.case_id)
            for file, what in problems.items()
        ]
        cases += [] if problems else [case]
    return cases, defects + drop_same_names(cases)


def listed_case(
    images: Sequence[str], masks: Sequence[str], case_id: str = "", group: str = ""
) -> CaseFiles:
    """Return a case that a file lists, by default in a group of its own."""
    case_id = case_id or case_id_of(images[0])
    return CaseFiles(
        case_id=case_id,
        group=group or case_id,
        images=tuple(images),
        masks=tuple(masks),
        values={},
        mask_labels=tuple(range(1, len(masks) + 1)),
    )


def case_id_of(file: str) -> str:
    """Return a file's name without its suffixes, after the names of its folders."""
    path, _ = split_container(file)
    folders = [part for part in path.parent.parts if part not in (path.anchor, "..", "imagesTr")]
    return composed("_".join([*folders, stem(file)]))


def stored_path(folder: Path, file: str) -> str:
    """Return a path as this system writes it, if there is such a file.

    Windows separates folders by backslashes, and macOS writes "ö" as two characters.
    """
    for name in (file, file.replace("\\", "/")):
        for form in (name, normalize("NFC", name), normalize("NFD", name)):
            if is_stored(folder, form):
                return form
    return file


def is_stored(folder: Path, file: str) -> bool:
    """Whether there is such a file."""
    return bool(file) and split_container(folder / file)[0].exists()


def cases_without_group(cases: Sequence[CaseFiles]) -> list[Defect]:
    """Return a warning for each case whose group is empty, as a cell of a table may be."""
    what = "its group is empty; all such cases are one group in the split"
    return [
        Defect(file=case.images[0], what=what, case_id=case.case_id)
        for case in cases
        if not case.group
    ]


def masks_of_several(cases: Sequence[CaseFiles]) -> list[Defect]:
    """Return a warning for each mask file that is listed for several images."""
    listed: dict[str, list[str]] = {}
    for case in cases:
        for mask in case.masks:
            listed.setdefault(mask, []).append(case.images[0])
    return [
        Defect(file=mask, what=f"is the mask of {len(images)} images: {', '.join(images[:3])}")
        for mask, images in listed.items()
        if len(set(images)) > 1
    ]


def drop_same_names(cases: list[CaseFiles]) -> list[Defect]:
    """Remove each case that has the name of an earlier one, and return a defect for it."""
    first: dict[str, CaseFiles] = {}
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


def _only_file(pattern: PatternFiles, kind: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return the one file of a case that matches the pattern, and what is wrong."""
    files = pattern.matching(values)
    if not files:
        return "", f"missing {kind}: no file {pattern.filled(values)}"
    if len(files) > 1:
        return "", f"{len(files)} files match {pattern.filled(values)}: {', '.join(files[:3])}"
    return files[0], ""


def _mask_files(
    pattern: PatternFiles, values: Mapping[str, str], *, objects: bool
) -> tuple[list[str], str]:
    """Return the mask files of a case that match the pattern, and what is wrong."""
    if objects and (files := pattern.matching(values)):
        return files, ""
    file, what = _only_file(pattern, "mask", values)
    if what.startswith("missing"):
        return [], f"{what}{OF_NO_OBJECT if objects else ''}"
    if what:
        what += '. If each is of one object, say objects = "files"'
    return [file], what


def _orphans(
    patterns: Sequence[PatternFiles],
    kind: str,
    leading: Mapping[str, Mapping[str, str]],
    excluded: Sequence[Mapping[str, str]],
) -> list[Defect]:
    """Return a defect for each file whose case has no first image, not even an excluded one."""
    defects = []
    for pattern in patterns:
        known = {pattern.key(values) for values in (*leading.values(), *excluded)}
        defects += [
            Defect(file=file, what=f"{kind} without its image")
            for file, values in pattern.files.items()
            if pattern.key(values) not in known and file not in leading
        ]
    return defects


def _check_patterns(images: Sequence[str], masks: Sequence[str]) -> None:
    names = placeholders(images[0])
    if not names:
        raise ValueError(
            f"images={images[0]!r} has no placeholder. Write {{case}} where the file names differ: "
            "it names the cases and finds their masks."
        )
    for pattern in [*images[1:], *masks]:
        others = placeholders(pattern)
        if not others or not set(others) <= set(names):
            raise ValueError(
                f"The pattern {pattern!r} has the placeholders {list(others)}; it needs one or "
                f"more of those in images={images[0]!r}: {list(names)}."
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
