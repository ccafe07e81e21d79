"""Objects that somebody drew around, and their pixels. Imports no TensorFlow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

# The class of objects whose file names none.
UNNAMED = "object"
NO_POINTS = "has an outline that is no list of points, nor of x, y, x, y, ..."
# Libraries take memory for the length of an outline, wherever it leads.
FARTHEST = 10**6
# Pixels around an outline that are drawn with it.
MARGIN = 2
Shape = tuple[int, ...]
# Where a part of an image lies, and which of its pixels are inside.
Part = tuple[tuple[slice, slice], np.ndarray]


def even_odd(outlines: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
    """Return the pixels whose centre is inside; what lies in two outlines is a hole."""
    from skimage.draw import polygon

    inside = np.zeros(shape, bool)
    for outline in outlines:
        columns, rows = outline.T - 0.5
        inside[polygon(rows, columns, shape)] ^= True
    return inside


@final
@dataclass(frozen=True, kw_only=True)
class DrawnObject:
    """One object, or a part of one.

    Args:
        name: Its class.
        outlines: Polygons (points, 2) of x and y, from the upper left corner of the image.
        fill: Outlines, and the shape of what they lie on, to the pixels inside.
        pixels: Shape of the image to what `inside` returns, where it has no outlines.
        together: Drawings with one such text are one object; empty for an object of its own.
        fault: Why it has no pixels, in words.
    """

    name: str
    outlines: Sequence[np.ndarray] = ()
    fill: Callable[[Sequence[np.ndarray], Shape], np.ndarray] = even_odd
    pixels: Callable[[Shape], Part] | None = None
    together: str = ""
    fault: str = ""

    def inside(self, shape: Shape) -> Part:
        """Return which pixels belong to it: those whose centre is inside."""
        if self.pixels is not None:
            return self.pixels(shape)
        # Only those around it: with those of the image, many small objects would take hours.
        points = np.concatenate(self.outlines)
        start = np.clip(np.floor(points.min(0)) - MARGIN, 0, shape[::-1]).astype(int)
        stop = np.clip(np.ceil(points.max(0)) + MARGIN, start, shape[::-1]).astype(int)
        (left, top), (right, bottom) = start.tolist(), stop.tolist()
        part = (bottom - top, right - left)
        # Libraries never end where there are no pixels.
        inside = (
            self.fill([outline - start for outline in self.outlines], part)
            if all(part)
            else np.zeros(part, bool)
        )
        return (slice(top, bottom), slice(left, right)), inside

    def beyond(self, shape: tuple[int, ...]) -> str:
        """Return how it lies beyond an image, in words: "partly", "wholly" or ""."""
        if not self.outlines:
            return ""
        points = np.concatenate(self.outlines)
        size = np.array(shape[::-1])
        if (points.max(0) <= 0).any() or (points.min(0) >= size).any():
            return "wholly"
        # An outline may touch the border, and programs round.
        return "partly" if (points < -1).any() or (points > size + 1).any() else ""


@final
@dataclass(frozen=True, kw_only=True)
class Annotated:
    """What is drawn on one image.

    Args:
        image: Its file, as the annotations name it; empty where they do not.
        shape: Rows and columns, where the annotations state them.
        drawings: The objects.
    """

    image: str = ""
    shape: tuple[int, ...] | None = None
    drawings: tuple[DrawnObject, ...] = ()

    def numbered(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the number of the object of a class in each pixel, 0 where none is.

        A later object covers an earlier one.
        """
        numbers = np.zeros(shape, np.int32)
        known: dict[str, int] = {}
        own = [drawing for drawing in self.drawings if drawing.name == name and not drawing.fault]
        for number, drawing in enumerate(own, 1):
            key = drawing.together or f"\n{number}"
            place, inside = drawing.inside(shape)
            numbers[place][inside] = known.setdefault(key, number)
        return numbers


@final
@dataclass(frozen=True, kw_only=True)
class Annotations:
    """What a file of annotations holds.

    Args:
        kind: The format, as people call it.
        images: What is drawn on each image, by the key of the image in the file; the key is empty
            in a file of a single image.
        faults: What in it belongs to no image, in words.
    """

    kind: str
    images: Mapping[str, Annotated]
    faults: tuple[str, ...] = ()


def points_of(outline: Any) -> np.ndarray:
    """Return the points (points, 2) of an outline as a file has it; raises ValueError, TypeError.

    It is a list of points, or x, y, x, y, ...
    """
    numbers = np.asarray(outline, float)
    if numbers.ndim != 1 and numbers.shape[1:] != (2,):
        raise ValueError(f"points of the shape {numbers.shape}")
    return numbers.reshape(-1, 2)


def drawing(name: Any, outlines: Iterable[Any], together: str = "") -> DrawnObject:
    """Return an object of outlines as a file has them."""
    name = str(name or UNNAMED).strip() or UNNAMED
    try:
        arrays = [points_of(points) for points in outlines]
    except (TypeError, ValueError):
        return DrawnObject(name=name, fault=NO_POINTS)
    fault = ""
    if not arrays or not all(np.isfinite(array).all() for array in arrays):
        fault = "has no outline, or one that is no numbers"
    elif max(np.abs(array).max(initial=0) for array in arrays) > FARTHEST:
        fault = f"has a point beyond {FARTHEST}, where no image is"
    elif min(map(len, arrays)) < 3:
        fault = f"has an outline of {min(map(len, arrays))} points; a polygon needs 3"
    elif not any(np.ptp(array, axis=0).all() for array in arrays):
        fault = "has an outline without any area"
    return DrawnObject(name=name, outlines=tuple(arrays), together=together, fault=fault)
