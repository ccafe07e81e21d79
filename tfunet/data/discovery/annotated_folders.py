"""Finds annotations that are outlines, not masks, and whose they are. Imports no TensorFlow."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tfunet.data.defects import BadFileError
from tfunet.data.discovery.candidates import by_kind, count_pairs, placeholder_values
from tfunet.data.discovery.found_pairs import Pairs, with_short_names
from tfunet.data.discovery.names import LETTERS, SIDES
from tfunet.data.discovery.split_folders import sides_of
from tfunet.data.formats import OUTLINES
from tfunet.data.layouts.annotated import read_annotations
from tfunet.files.regular import open_to_read

# Bytes at the beginning of a file that say what it is.
HEAD = 2**16
# Annotations that are not drawn here: suffix, what such a file holds, name, how to export.
OTHERS = (
    (
        ".xml",
        r"<annotations>[\s\S]*<image\b",
        "CVAT's XML",
        'export the task again as "COCO 1.0" or as "Segmentation mask 1.1"',
    ),
    (".xml", r"<bndbox\b", "boxes of Pascal VOC", "they have no outlines: draw some, or masks"),
    (
        ".xml",
        r"<(ASAP_)?Annotations\b",
        "XML of ASAP or Aperio",
        "open the slide with it in QuPath, and export GeoJSON (File > Export objects)",
    ),
    (
        ".txt",
        r"\A\s*\d+(\s+[\d.]+){6,}\s*$",
        "outlines of YOLO",
        "export COCO's JSON from the program that wrote them (CVAT, Roboflow and Label Studio can)",
    ),
    (
        ".txt",
        r"\A\s*\d+(\s+[\d.]+){4}\s*$",
        "boxes of YOLO",
        "they have no outlines: draw some, or masks",
    ),
    (
        ".csv",
        r"\A.*(EncodedPixels|\brle\b)",
        "run lengths in a table, as on Kaggle",
        "draw masks with a few lines of Python: docs/data.md has them",
    ),
    (
        ".csv",
        r"\A.*shape-type.*vertex-index",
        "shapes of napari",
        "make a labels layer of them (Layers > Convert to Labels), and save that as TIFF",
    ),
    (
        ".csv",
        r"\A.*region_shape_attributes",
        "VIA's table",
        "export COCO's JSON from VIA (Annotation > Export Annotations)",
    ),
    (
        ".json",
        r"\"(_via_img_metadata|shape_attributes)\"",
        "VIA's JSON",
        "export COCO's JSON from VIA (Annotation > Export Annotations)",
    ),
    (
        ".json",
        r"\"(original_width|from_name)\"",
        "JSON of Label Studio",
        'export as "COCO", or as "Brush labels to PNG"',
    ),
    (
        ".json",
        r"\"(classTitle|classId)\"",
        "JSON of Supervisely",
        'export "as masks", or as COCO',
    ),
    (
        ".json",
        r"\"labelbox|\"data_row\"",
        "JSON of Labelbox",
        "export masks, or convert to COCO with its library",
    ),
    (".ndjson", r"\"data_row\"", "JSON of Labelbox", "export masks, or convert to COCO"),
    (
        "_seg.npy",
        r"",
        "what Cellpose's window saves",
        "save masks there (File > Save masks as PNG/tif)",
    ),
    (".ilp", r"", "a project of ilastik", 'export "Simple Segmentation" as TIFF'),
    (".qpdata", r"", "a project of QuPath", "export GeoJSON there (File > Export objects)"),
    (".ndpa", r"", "annotations of NDP.view", "open the slide in QuPath, and export GeoJSON"),
)


@final
@dataclass(frozen=True, kw_only=True)
class Found:
    """Options of the data set, and what is said of them.

    Args:
        options: Option to (value, reason).
        held_out: Groups for validation.
        unused: A sentence on what is not used; empty if all is.
    """

    options: Mapping[str, tuple[Any, str]]
    held_out: tuple[str, ...] = ()
    unused: str = ""


def find_annotated(root: Path, images: Sequence[str]) -> Found | None:
    """Return the options for a folder with annotations that can be drawn; None without."""
    kinds: dict[str, list[str]] = {}
    is_of_many: dict[str, bool] = {}
    for files in by_kind(sorted(_files(root, tuple(OUTLINES)))).values():
        try:
            content = read_annotations(root, files[0])
        except BadFileError as error:
            if "pip install" in str(error):
                raise
            continue  # JSON may hold anything.
        kinds.setdefault(content.kind, []).extend(files)
        is_of_many[content.kind] = "" not in content.images
    for kind, files in kinds.items():
        found = _of_many(kind, files) if is_of_many[kind] else _of_each(kind, files, images)
        if found is not None:
            return found
    return None


def other_annotations(root: Path) -> str:
    """Return what annotations are there that are not drawn here, and what to do; "" for none."""
    suffixes = {suffix for suffix, *_ in OTHERS}
    for files in by_kind(sorted(_files(root, tuple(suffixes)))).values():
        with open_to_read(root / files[0]) as file:
            head = file.read(HEAD).decode("utf-8", "replace")
        for suffix, holds, name, how in OTHERS:
            if files[0].lower().endswith(suffix) and re.search(holds, head, re.MULTILINE):
                return (
                    f"{files[0]} ({len(files)} such file{'s' * (len(files) > 1)}) holds {name}, "
                    f"which tfunet does not draw: {how}."
                )
    return ""


def _files(root: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in names:
            path = Path(folder) / name
            if name.lower().endswith(suffixes) and not name.startswith(".") and path.is_file():
                yield path.relative_to(root).as_posix()


def _of_many(kind: str, files: Sequence[str]) -> Found:
    """Return the options for files that list many images each."""
    reason = f"{kind}'s JSON, which names the images and the classes."
    if len(files) == 1:
        return Found(options={"annotations": (files[0], reason)})
    for file in files:
        for word in re.findall(LETTERS, file):
            pattern = file.replace(word, "{group}")
            matches = placeholder_values(files, pattern)
            groups = sorted({values["group"] for values in matches.values()})
            sides = {group: SIDES.get(group.lower()) for group in groups}
            if len(matches) == len(files) and "train" in sides.values():
                held_out = tuple(group for group in groups if sides[group] == "val")
                tests = [group for group in groups if sides[group] == "test"]
                said = f" {{group}} is the side of the split: {', '.join(groups)}."
                options: dict[str, tuple[Any, str]] = {"annotations": (pattern, reason + said)}
                if tests:
                    left_out = [pattern.replace("{group}", group) for group in tests]
                    options["exclude"] = (left_out, "They are left for the final score.")
                return Found(options=options, held_out=held_out)
    shown = "\n".join(f"  annotations = {json.dumps(file)}" for file in files[:8])
    raise ValueError(
        f"Several files list images of {kind}:\n{shown}\nWrite one of them into a run.toml, with "
        'data = "annotations": docs/data.md.'
    )


def _of_each(kind: str, files: Sequence[str], images: Sequence[str]) -> Found | None:
    """Return the options where each image has a file of its own; None without pairs."""
    counted = count_pairs(images, files)
    if not counted:
        return None
    best = max(
        counted, key=lambda pair: (len(counted[pair].images), counted[pair].simplicity, pair)
    )
    match, (image, pattern) = counted[best], best
    values = tuple(placeholder_values(sorted(match.images), image).values())
    sides = sides_of(
        with_short_names(Pairs(images=(image,), masks={"": pattern}, values=values)), images
    )
    (image,), (pattern,) = sides.pairs.images, sides.pairs.masks.values()
    count = f"Found {len(match.images)} images with outlines of {kind}."
    options: dict[str, tuple[Any, str]] = {
        "images": (image, f"{count}{sides.remark}"),
        "annotations": (pattern, "Objects are kept apart. The classes are called as in these."),
    }
    if sides.exclude:
        options["exclude"] = (list(sides.exclude), sides.how_to_score)
    return Found(options=options, held_out=sides.held_out, unused=sides.unused)
