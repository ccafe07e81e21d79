"""Files of annotations, read as masks that number the objects of one class.

The mask of a class is named after a colon, 'a.json:CLASS'; of a file for many images it is
'a.json:CLASS:IMAGE', with the key of the image. Imports no TensorFlow.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from tfunet.data.formats import coco, geojson, imagej, labelme
from tfunet.data.formats.container import split_container
from tfunet.data.formats.drawings import Annotated, Annotations
from tfunet.data.formats.stored import Stored, plain

# Parsed files that are kept: one of COCO is of many images.
KEPT = 4


def read(path: Path) -> Annotations:
    """Return what a file holds; raises ValueError, KeyError or TypeError if it is none."""
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


def mask_name(file: str, name: str, image: str) -> str:
    """Return what names the mask of a class."""
    return ":".join([file, quote(name, safe=""), *([quote(image, safe="")] if image else [])])


def stored(path: Path, shape: tuple[int, ...] | None = None) -> Stored:
    """Describe the mask of a class; `shape` is that of the image."""
    _, drawn = _named(path)
    return plain(_shape(drawn, shape), np.dtype(np.int32))


def decoded(path: Path, shape: tuple[int, ...] | None = None) -> tuple[Stored, np.ndarray]:
    """Return what it is and the number of the object in each pixel."""
    name, drawn = _named(path)
    numbers = drawn.numbered(name, _shape(drawn, shape))
    return plain(numbers.shape, numbers.dtype), numbers


@lru_cache(maxsize=KEPT)
def _read(path: Path, _mtime: int, _size: int) -> Annotations:
    if path.suffix.lower() in (".roi", ".zip"):
        return imagej.annotations(path)
    content: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    if isinstance(content, dict) and "shapes" in content:
        return labelme.annotations(content)
    if isinstance(content, dict) and {"images", "annotations"} <= set(content):
        return coco.annotations(content)
    first = content[0] if isinstance(content, list) and content else content
    if isinstance(first, dict) and first.get("type") in ("FeatureCollection", "Feature"):
        return geojson.annotations(content)
    raise ValueError("it holds no annotations of COCO, LabelMe or GeoJSON")


def _named(path: Path) -> tuple[str, Annotated]:
    file, inside = split_container(path)
    name, _, image = map(unquote, inside.partition(":"))
    return name, read(file).images[image]


def _shape(drawn: Annotated, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    found = drawn.shape or shape
    if found is None or len(found) != 2:
        raise ValueError("outlines are drawn on planes, of a known size")
    return found
