"""LabelMe's JSON: a file for each image. Imports no TensorFlow."""

import base64
import io
from functools import partial
from typing import Any

import numpy as np

from tfunet.data.formats.drawings import (
    NO_POINTS,
    UNNAMED,
    Annotated,
    Annotations,
    DrawnObject,
    Part,
    Shape,
    drawing,
    points_of,
)

# Sides of a polygon in the place of a circle.
SIDES = 180


def annotations(content: dict[str, Any]) -> Annotations:
    """Return what the parsed file holds."""
    height, width = content.get("imageHeight"), content.get("imageWidth")
    drawn = Annotated(
        image=str(content.get("imagePath") or "").replace("\\", "/"),
        shape=(int(height), int(width)) if height and width else None,
        drawings=tuple(map(_drawing, content["shapes"])),
    )
    return Annotations(kind="LabelMe", images={"": drawn})


def _drawing(shape: dict[str, Any]) -> DrawnObject:
    name, kind = str(shape.get("label") or UNNAMED), shape.get("shape_type") or "polygon"
    group = shape.get("group_id")
    together = "" if group is None else str(group)
    try:
        points = points_of(shape.get("points"))
    except (TypeError, ValueError):
        return DrawnObject(name=name, fault=NO_POINTS)
    if kind == "polygon":
        return drawing(name, [points], together)
    if kind == "rectangle" and len(points) in (2, 4):
        (left, top), (right, bottom) = points.min(0), points.max(0)
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        return drawing(name, [corners], together)
    if kind == "circle" and len(points) == 2:
        centre, radius = points[0], np.hypot(*(points[1] - points[0]))
        angles = np.arange(SIDES) * (2 * np.pi / SIDES)
        ring = centre + radius * np.stack([np.cos(angles), np.sin(angles)], 1)
        return drawing(name, [ring], together)
    if kind == "mask" and shape.get("mask") and len(points) == 2:
        start = tuple(points[0].astype(int)[::-1].tolist())
        pixels = partial(_of_picture, shape["mask"], start)
        return DrawnObject(name=name, pixels=pixels, together=together)
    return DrawnObject(name=name, fault=f"is a {kind}, which has no area")


def _of_picture(encoded: str, start: tuple[int, int], shape: Shape) -> Part:
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(encoded)), formats=("PNG",)) as picture:
        if picture.height > shape[0] + 1 or picture.width > shape[1] + 1:
            raise ValueError(f"a mask of {picture.size} for an image of {shape}")
        pixels = np.asarray(picture) > 0
    pixels = pixels[tuple(slice(max(0, -place), None) for place in start)]
    top, left = (min(max(0, place), size) for place, size in zip(start, shape, strict=True))
    pixels = pixels[: shape[0] - top, : shape[1] - left]
    return (slice(top, top + len(pixels)), slice(left, left + pixels.shape[1])), pixels
