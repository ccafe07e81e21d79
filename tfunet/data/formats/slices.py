"""A folder with the slices of a volume: DICOM, or images in the order of the numbers in their
names."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from tfunet.data.formats.stored import PlaneGrid, Stored

IMAGES = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp"), "tfunet.data.formats.pillow"),
    **dict.fromkeys((".tif", ".tiff"), "tfunet.data.formats.tiff"),
}
# What may lie beside slices.
NOTES = (".txt", ".md", ".json", ".csv", ".tsv", ".xml", ".ini", ".db", ".log")


def stored(path: Path, *, labels: bool = False, grid: PlaneGrid | None = None) -> Stored:
    """Describe the volume: planes in their order, rows, columns, colours.

    A segmentation (SEG) in DICOM lies on the grid of its image.
    """
    files = _images(path)
    if files:
        return _stacked(files, labels=labels)
    found: Stored = _dicom().stored(path, labels=labels, grid=grid)
    return found


def decoded(
    path: Path, *, labels: bool = False, grid: PlaneGrid | None = None
) -> tuple[Stored, np.ndarray]:
    """Return what the volume is, and its pixels."""
    files = _images(path)
    if not files:
        found: tuple[Stored, np.ndarray] = _dicom().decoded(path, labels=labels, grid=grid)
        return found
    described = _stacked(files, labels=labels)
    planes = [_format(file).decoded(file, labels=labels)[1] for file in files]
    return described, np.stack(planes).reshape(described.shape)


def _dicom() -> ModuleType:
    return importlib.import_module("tfunet.data.formats.dicom")


def _images(folder: Path) -> list[Path]:
    """Return the slices in the order of their numbers; none in a folder of DICOM files.

    Raises ValueError if they are of several kinds.
    """
    visible = [file for file in folder.iterdir() if file.is_file() and file.name[0] != "."]
    images = [file for file in visible if file.suffix.lower() in IMAGES]
    others = {file.suffix.lower() for file in visible} - IMAGES.keys() - set(NOTES)
    # A DICOM file may have any suffix or none, and a preview may lie beside it.
    if not images or others:
        return []
    kinds = sorted({file.suffix.lower() for file in images})
    if len(kinds) > 1:
        raise ValueError(
            f"its slices are of several kinds: {', '.join(kinds)}. Keep one of them in the folder"
        )
    return sorted(images, key=lambda file: _in_order(file.name))


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return what puts 2 before 10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)]


def _format(file: Path) -> ModuleType:
    return importlib.import_module(IMAGES[file.suffix.lower()])


def _stacked(files: Sequence[Path], *, labels: bool) -> Stored:
    """Describe the volume from its slices, which must be alike.

    The distance of the planes is not known.
    """
    slices = [_format(file).stored(file, labels=labels) for file in files]
    first = slices[0]
    for file, plane in zip(files, slices, strict=True):
        if "z" in plane.axes and plane.shape[plane.axes.index("z")] > 1:
            raise ValueError(f"{file.name} holds several planes, and a slice is one")
        if (plane.shape, plane.axes, plane.dtype) != (first.shape, first.axes, first.dtype):
            raise ValueError(
                f"{file.name} is {_words(plane)}, and {files[0].name} is {_words(first)}; the "
                "slices of a volume must be alike"
            )
    # Another z would be the plane's own, of length 1.
    axes = f"z{first.axes.replace('z', 'u')}"
    return replace(first, shape=(len(files), *first.shape), axes=axes, affine=None)


def _words(one: Stored) -> str:
    return f"{' x '.join(map(str, one.shape))} of {one.dtype}"
