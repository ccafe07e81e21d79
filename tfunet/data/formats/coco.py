"""COCO's JSON: one file for many images, with polygons and run lengths. Imports no TensorFlow."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tfunet.data.formats.drawings import (
    UNNAMED,
    Annotated,
    Annotations,
    DrawnObject,
    Part,
    Shape,
    drawing,
)

# Bits of a packed run: with each further character, Python's numbers take longer.
LONGEST = 60


def annotations(content: dict[str, Any]) -> Annotations:
    """Return what the parsed file holds."""
    names = {
        category["id"]: str(category.get("name") or UNNAMED)
        for category in content.get("categories", ())
    }
    entries = {entry["id"]: entry for entry in content["images"]}
    drawings: dict[Any, list[DrawnObject]] = {key: [] for key in entries}
    faults = []
    for annotation in content["annotations"]:
        number, image = annotation.get("id"), annotation["image_id"]
        if image not in entries:
            faults.append(f"annotation {number} is of image {image}, which images does not list")
        elif annotation["category_id"] not in names:
            faults.append(
                f"annotation {number} has the category {annotation['category_id']}, which "
                "categories does not list"
            )
        else:
            name = names[annotation["category_id"]]
            drawings[image].append(_drawing(name, annotation.get("segmentation"), number))
    unnamed = {
        key: f"image {key} has the file_name {name!r}, which names no file"
        for key, entry in entries.items()
        if not (isinstance(name := entry.get("file_name"), str) and name)
    }
    return Annotations(
        kind="COCO",
        images={
            str(key): Annotated(
                image=entry["file_name"],
                shape=(int(entry["height"]), int(entry["width"])),
                drawings=tuple(drawings[key]),
            )
            for key, entry in entries.items()
            if key not in unnamed
        },
        faults=(*faults, *unnamed.values()),
    )


def _drawing(name: str, segmentation: Any, number: Any) -> DrawnObject:
    if not segmentation:
        return DrawnObject(name=name, fault="has a box at most, and no segmentation")
    if isinstance(segmentation, dict):
        return DrawnObject(name=name, pixels=partial(_of_run_lengths, segmentation))
    found = drawing(name, segmentation)
    if found.fault:
        return replace(found, fault=f"{found.fault} (annotation {number})")
    # As COCO's own tools draw it: the polygons of an object are its parts, and no holes.
    return replace(found, fill=_of_polygons)


def _of_run_lengths(segmentation: dict[str, Any], shape: Shape) -> Part:
    """Return the pixels of runs outside and inside, in turns, down the columns.

    Not with COCO's library: where runs are too few it returns whatever was in memory.
    """
    counts = segmentation["counts"]
    runs = np.array(counts if isinstance(counts, list) else _unpacked(counts), np.int64)
    # Each is looked at, because a sum of large ones may come around to that of the image.
    fit = ((runs >= 0) & (runs <= np.prod(shape))).all() and runs.sum() == np.prod(shape)
    if tuple(segmentation["size"]) != shape or not fit:
        raise ValueError(
            f"run lengths of {runs.sum()} pixels, said to be {segmentation['size']}, for an image "
            f"of {shape}"
        )
    # Only the columns from the first pixel inside to the last one.
    height, ends = shape[0], np.cumsum(runs)
    left = int(ends[0]) // height
    right = max(left, -(-int(ends[1::2].max(initial=0)) // height))
    starts = np.clip([0, *ends], left * height, right * height)
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, np.diff(starts))
    return (slice(0, height), slice(left, right)), inside.reshape(-1, height).T


def _unpacked(text: str) -> list[int]:
    """Return the runs in a text: five bits a character, and from the fourth on differences."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:  # More of it follows.
            if shift > LONGEST:
                raise ValueError(f"a run length of more than {LONGEST} bits")
            continue
        value -= (bits & 0x10) << (shift - 4)
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return runs


def _of_polygons(outlines: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    from pycocotools import mask

    polygons = [outline.ravel().tolist() for outline in outlines]
    decoded: np.ndarray = mask.decode(mask.merge(mask.frPyObjects(polygons, *shape)))
    return decoded.astype(bool)
