"""A data set whose masks are drawn from annotations: outlines and run lengths. No TensorFlow."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, final

from tfunet.config.words import near_match
from tfunet.data.defects import BadFileError, Defect, DefectsError, naming
from tfunet.data.formats import FORMATS
from tfunet.data.formats.annotations import mask_name, read
from tfunet.data.formats.container import composed
from tfunet.data.formats.drawings import Annotated, Annotations
from tfunet.data.image_files import read_header
from tfunet.data.layouts.case_files import (
    CaseFiles,
    case_id_of,
    drop_same_names,
    images_in_other_case,
    match_files,
)
from tfunet.data.layouts.case_table import CaseTable
from tfunet.data.layouts.file_patterns import find
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.folder import find_root
from tfunet.data.layouts.label_mapping import OF_NUMBERS, label_mapping
from tfunet.data.layouts.options import FileOptions, takes
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.opening import guarded
from tfunet.data.source import DataSource

SUFFIXES = tuple(suffix for suffix in FORMATS if suffix.startswith("."))
# What is said of masks, in words for annotations.
WITHOUT = "is not used: it has no annotations in"
ALONE = "annotations without their image"
OTHER = "is not used: no image has its name, and it holds no annotations of one image"
WORDS = (("missing mask: no file", WITHOUT), ("mask without its image", ALONE))
NO_FOLDERS = ("", ".", "..")
# A case, the file of its annotations, the key of its image there, and what is drawn on it.
Drawn = tuple[CaseFiles, str, str, Annotated]


@takes(FileOptions)
def open_annotated(
    *,
    root: str,
    annotations: str,
    images: str | None = None,
    classes: Mapping[str, str | Sequence[str]] | None = None,
    exclude: Sequence[str] = (),
    border: str | None = None,
    table: Mapping[str, Any] | None = None,
    options: FileOptions,
) -> DataSource:
    """Open images with outlines: COCO's JSON, LabelMe's, GeoJSON of QuPath, regions of ImageJ.

    The objects of a class are kept apart, as numbers in masks do.

    Args:
        root: The folder, as in `open_folder`.
        annotations: The file for all images (COCO), or the pattern of several, such as
            '{group}.json'; or the pattern of the file of each image, such as '{case}.json'.
        images: Pattern of the images where each has a file of its own.
        classes: Class name to its name, or names, in the annotations. By default all names.
        exclude: Patterns of images to leave out, or of files that list many.
        border: As in `open_folder`.
        table: As in `open_folder`.
        options: Further options are those of every data set of files.
    """
    folder = find_root(root)
    patterns = [images] if images is not None else []
    if images is None:
        drawn, defects, unlisted, found = _of_lists(folder, annotations, exclude)
    else:
        drawn, defects, unlisted, found = _of_pairs(folder, images, annotations, exclude)
    names = sorted({each.name for *_, own in drawn for each in own.drawings})
    if not names:
        problem = Defect(file=annotations, what="no object of a usable image is drawn in it")
        raise DefectsError(folder.resolve().name, [*defects, problem], found)
    with naming(defects):
        members = _members(classes, names)
    warnings = [*images_in_other_case(folder, patterns, [annotations, *exclude]), *unlisted]
    unused = sorted(set(names) - {name for own in members.values() for name in own})
    if unused:
        what = f"its objects of {', '.join(unused)} are left out: classes does not name them"
        warnings.append(Defect(file=annotations, what=what))
    cases, problems, remarks = _with_masks(folder, drawn, members)
    defects += problems
    warnings += remarks
    bad = {defect.case_id for defect in defects}
    cases = [case for case in cases if case.case_id not in bad]
    rows = CaseTable(folder, table) if table is not None else None
    if rows is not None:
        cases, table_defects = rows.select(cases)
        defects += table_defects
    masks = dict.fromkeys(members, annotations)
    labels = label_mapping(masks, None, None, objects=OF_NUMBERS, border=border)
    listing = Listing(root=folder, cases=cases, defects=defects, found=found, warnings=warnings)
    return open_files(listing, labels, PixelSizes(folder, options, patterns, rows), options)


def _with_masks(
    root: Path, drawn: Sequence[Drawn], members: Mapping[str, Sequence[str]]
) -> tuple[list[CaseFiles], list[Defect], list[Defect]]:
    """Return the cases with a mask for each name of a class; what is wrong, and what may be."""
    masks = [(label, part) for label, parts in enumerate(members.values(), 1) for part in parts]
    cases, defects, warnings = [], [], []
    for case, file, key, own in drawn:
        problems, remarks = _look(root, case, file, own)
        defects += problems
        warnings += remarks
        cases.append(
            replace(
                case,
                masks=tuple(mask_name(file, name, key) for _, name in masks),
                mask_labels=tuple(label for label, _ in masks),
            )
        )
    return cases, defects, warnings


def read_annotations(root: Path, file: str) -> Annotations:
    """Return what a file holds; raises BadFileError."""
    found: Annotations = guarded(root / file, read)
    return found


def _members(
    classes: Mapping[str, str | Sequence[str]] | None, names: Sequence[str]
) -> dict[str, list[str]]:
    """Return class name to its names in the annotations."""
    if classes is None:
        return {name: [name] for name in names}
    members = {
        name: [given] if isinstance(given, str) else list(given) for name, given in classes.items()
    }
    for own in members.values():
        for name in own:
            if name not in names:
                raise ValueError(
                    f"classes= names {name!r}, and no object in the annotations is called so."
                    f"{near_match(name, names)} Known: {', '.join(names) or 'none'}."
                )
    return members


def _of_lists(
    root: Path, pattern: str, exclude: Sequence[str]
) -> tuple[list[Drawn], list[Defect], list[Defect], str]:
    """Return the cases that files for many images list, the defects, a warning for each image that
    none lists, and how many there are in words."""
    files = find(root, pattern)
    if not files:
        raise ValueError(f"No file under {root} matches annotations={pattern!r}.")
    left_out = {file for each in exclude for file in find(root, each)}
    places = _Places(root)
    drawn: list[Drawn] = []
    defects: list[Defect] = []
    listed: set[str | None] = set()
    num_images = 0
    for file, values in files.items():
        try:
            content = read_annotations(root, file)
        except BadFileError as error:
            defects.append(error.defect("", root))
            continue
        if "" in content.images:
            raise ValueError(
                f"{file} is of {content.kind}, with a file for each image. Say which is whose: "
                "images = '{case}.png' and annotations = '{case}.json'."
            )
        defects += [Defect(file=file, what=what) for what in content.faults]
        for key, own in content.images.items():
            num_images += 1
            image = places.find(file, own.image)
            listed.add(image)
            if file in left_out or image in left_out:
                continue
            if image is None:
                end = "/".join(PurePosixPath(own.image.replace("\\", "/")).parts[-2:])
                what = f"missing image: it lists {own.image}, and no {end} is in the folder"
                defects.append(Defect(file=file, what=what, case_id=own.image))
                continue
            case_id = case_id_of(image)
            case = CaseFiles(
                case_id=case_id,
                group=values.get("group", case_id),
                images=(image,),
                masks=(file,),
                values=values,
                mask_labels=(1,),
            )
            drawn.append((case, file, key, own))
    cases = [case for case, *_ in drawn]
    defects += drop_same_names(cases)
    kept = set(map(id, cases))
    drawn = [each for each in drawn if id(each[0]) in kept]
    what = "is not used: no file of annotations lists it"
    unlisted = [Defect(file=file, what=what) for file in places.files if file not in listed]
    found = f"{num_images} images in {len(files)} files of annotations"
    return drawn, defects, unlisted, found


def _of_pairs(
    root: Path, images: str, pattern: str, exclude: Sequence[str]
) -> tuple[list[Drawn], list[Defect], list[Defect], str]:
    """Return the cases whose images have a file of annotations each, and the rest as `_of_lists`.

    Who annotates some images of many leaves the others without a file.
    """
    cases, found_defects, found = match_files(root, [images], [pattern], exclude)
    defects = [
        replace(each, what=each.what.replace(*WORDS[0]).replace(*WORDS[1]))
        for each in found_defects
    ]
    unlisted = [each for each in defects if each.what.startswith(WITHOUT)] if cases else []
    if unlisted:
        defects = [each for each in defects if not each.what.startswith(WITHOUT)]
    others = [each for each in defects if each.what.startswith(ALONE) and _is_other(root, each)]
    defects = [each for each in defects if each not in others]
    unlisted += [replace(each, what=OTHER) for each in others]
    drawn: list[Drawn] = []
    for case in cases:
        (file,) = case.masks
        try:
            content = read_annotations(root, file)
        except BadFileError as error:
            defects.append(error.defect(case.case_id, root))
            continue
        own = content.images.get("")
        if own is None:
            raise ValueError(
                f"{file} is of {content.kind}, a file for many images. Leave out images=, and name "
                "this file as annotations=."
            )
        if own.image and composed(PurePosixPath(own.image).stem) != composed(
            PurePosixPath(case.images[0]).stem
        ):
            what = f"says that it is of {own.image}, and its name goes with {case.images[0]}"
            defects.append(Defect(file=file, what=what, case_id=case.case_id))
        drawn.append((case, file, "", own))
    return drawn, defects, unlisted, found.replace("masks", "files of annotations")


def _is_other(root: Path, alone: Defect) -> bool:
    """Whether a file without its image holds something else than what is drawn on one."""
    try:
        return "" not in read_annotations(root, alone.file).images
    except BadFileError:
        return True


def _look(
    root: Path, case: CaseFiles, file: str, own: Annotated
) -> tuple[list[Defect], list[Defect]]:
    """Return what is wrong with the outlines of a case, and what may be a mistake."""
    faults = Counter(f"an object ({each.name}) {each.fault}" for each in own.drawings if each.fault)
    shape = own.shape
    if shape is None:
        try:
            shape = read_header(root / case.images[0]).shape
        except BadFileError:  # Whoever reads the headers of all images says it.
            shape = ()
    if len(shape) == 2:
        for each in own.drawings:
            where = "" if each.fault else each.beyond(shape)
            if where == "wholly":
                faults[f"an object ({each.name}) lies outside of the image"] += 1
    partly = sum(
        len(shape) == 2 and not each.fault and each.beyond(shape) == "partly"
        for each in own.drawings
    )
    marks = {"file": file, "case_id": case.case_id}
    where = f" ({case.images[0]})"
    defects = [
        Defect(what=f"{what}{where}" + (f", {count} such" if count > 1 else ""), **marks)
        for what, count in faults.items()
    ]
    reach = f"{partly} of its objects reach beyond the image, and are cut off{where}"
    return defects, [Defect(what=reach, **marks)] if partly else []


@final
class _Places:
    """Where the images of a folder are, by the ends of their paths."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(_images(root))
        self._by_end: dict[str, list[str]] = {}
        for file in self.files:
            for end in _ends(file):
                self._by_end.setdefault(end, []).append(file)

    def find(self, annotations: str, name: str) -> str | None:
        """Return the image that annotations name; of several, the one nearest to them.

        They may name folders above the data set's. The last one is that of the image.
        """
        near = PurePosixPath(annotations).parts[:-1]

        def rank(file: str) -> tuple[int, int]:
            parts = PurePosixPath(file).parts
            return sum(1 for a, b in zip(parts, near, strict=False) if a == b), -len(parts)

        parts = [part for part in name.replace("\\", "/").split("/") if part not in NO_FOLDERS]
        *ends, last = _ends("/".join(parts))
        found = [self._by_end.get(end, []) for end in [*ends, last]]
        if ends:  # An image without a folder can be in none that differs.
            found[-1] = [file for file in found[-1] if "/" not in file]
        return max(next(filter(None, found), []), key=rank, default=None)


def _images(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        file = path.relative_to(root)
        if path.name.lower().endswith(SUFFIXES) and not any(
            part.startswith(".") for part in file.parts
        ):
            yield file.as_posix()


def _ends(file: str) -> Iterator[str]:
    """Yield a path, and what is left of it without its first folders."""
    parts = composed(file).split("/")
    return ("/".join(parts[at:]) for at in range(len(parts)))
