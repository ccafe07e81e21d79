"""A folder with the slices of a volume: DICOM, or images in the order of the numbers in their
names."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfunet.data.formats.stored import Grid, Stored

IMAGES = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp"), "tfunet.data.formats.pillow"),
    **dict.fromkeys((".tif", ".tiff"), "tfunet.data.formats.tiff"),
}
# What may lie beside slices.
NOTES = (".txt", ".md", ".json", ".csv", ".tsv", ".xml", ".ini", ".db", ".log")


def stored(path: Path) -> Stored:
    """Describe the volume: planes in their order, rows, columns, colours."""
    files = _images(path)
    return _stacked(files, labels=False) if files else _dicom().stored(path)


def stored_labels(path: Path, grid: Grid | None = None) -> Stored:
    """Describe a mask, on the grid of its image if it is a segmentation (SEG) in DICOM."""
    files = _images(path)
    return _stacked(files, labels=True) if files else _dicom().stored_labels(path, grid)


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the volume is, and its pixels."""
    files = _images(path)
    return _planes(files, labels=False) if files else _dicom().decoded(path)


def decoded_labels(path: Path, grid: Grid | None = None) -> tuple[Stored, np.ndarray]:
    """Return what a mask is, and its values."""
    files = _images(path)
    return _planes(files, labels=True) if files else _dicom().decoded_labels(path, grid)


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


def _of(file: Path, name: str, *, labels: bool) -> Any:
    module = importlib.import_module(IMAGES[file.suffix.lower()])
    plain = getattr(module, name)
    return getattr(module, f"{name}_labels", plain) if labels else plain


def _stacked(files: Sequence[Path], *, labels: bool) -> Stored:
    """Describe the volume from its slices, which must be alike.

    The distance of the planes is not known.
    """
    slices = [_of(file, "stored", labels=labels)(file) for file in files]
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


def _planes(files: Sequence[Path], *, labels: bool) -> tuple[Stored, np.ndarray]:
    described = _stacked(files, labels=labels)
    planes = [_of(file, "decoded", labels=labels)(file)[1] for file in files]
    return described, np.stack(planes).reshape(described.shape)


def _words(one: Stored) -> str:
    return f"{' x '.join(map(str, one.shape))} of {one.dtype}"
