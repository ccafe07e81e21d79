"""OME-NGFF: which array of a group is the image, and where its pixels lie (0.4 and 0.5)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfunet.data.formats.stored import SPATIAL, Stored
from tfunet.data.formats.units import in_one_unit

# OME-NGFF names units as UDUNITS-2 does.
UNITS = {"nanometer": "nm", "micrometer": "µm", "millimeter": "mm", "meter": "m"}


def multiscale(node: Any) -> Mapping[str, Any] | None:
    """Return what a group says about its image; None if it holds none."""
    # 0.5 keeps its metadata under "ome", 0.4 beside other attributes.
    attributes = dict(node.attrs)
    images = attributes.get("ome", attributes).get("multiscales")
    return images[0] if images else None


def full_size(node: Any, image: Mapping[str, Any]) -> tuple[Any, Stored]:
    """Return the array of level 0, and what it is."""
    level = image["datasets"][0]
    array = node[level["path"]]
    axes = [_letter(axis) for axis in image.get("axes", "tczyx")]
    scale, offset = np.ones(len(axes)), np.zeros(len(axes))
    # The level's own transformations come first, then those of all levels.
    steps = [
        *(level.get("coordinateTransformations") or ()),
        *(image.get("coordinateTransformations") or ()),
    ]
    for step in steps:
        scale, offset = _after(node, step, scale, offset)
    stated = {axis["name"][:1].lower(): axis for axis in image.get("axes", ()) if "name" in axis}
    units = {letter: axis.get("unit") or "" for letter, axis in stated.items()}
    known = {letter: UNITS.get(unit, unit) for letter, unit in units.items()}
    spatial = [letter for letter in axes if letter in SPATIAL]
    sizes = {letter: float(scale[axes.index(letter)]) for letter in spatial} if steps else {}
    spacing, unit = in_one_unit(sizes, known)
    places = {letter: float(offset[axes.index(letter)]) for letter in spatial}
    return array, Stored(
        shape=array.shape,
        axes="".join(axes),
        dtype=str(array.dtype),
        spacing=spacing,
        unit=unit,
        affine=_affine(spatial, spacing, in_one_unit(places, known)[0]) if sizes else None,
    )


def _after(
    node: Any, step: Mapping[str, Any], scale: np.ndarray, offset: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and offset followed by one transformation more."""
    kind = step["type"]
    if kind == "identity":
        return scale, offset
    if kind not in ("scale", "translation"):
        raise ValueError(
            f"its coordinateTransformations have one of type {kind!r}; readable: scale, "
            "translation, identity. Resample it to a grid along its axes"
        )
    # The numbers, or an array of the store that holds them.
    values = np.asarray(step[kind] if kind in step else node[step["path"]][...], float)
    if values.shape != scale.shape:
        raise ValueError(f"a {kind} of {values.size} numbers for {scale.size} axes")
    return (scale * values, offset * values) if kind == "scale" else (scale, offset + values)


def _affine(
    spatial: Sequence[str], spacing: Mapping[str, float], places: Mapping[str, float]
) -> np.ndarray | None:
    """Return index to position; an axis that a plane does not have comes last."""
    if set(spatial) != set(spacing):
        return None
    rows = {letter: row for row, letter in enumerate("xyz")}
    order = [*spatial, *(letter for letter in SPATIAL if letter not in spatial)]
    affine = np.zeros((4, 4))
    affine[3, 3] = 1
    for column, letter in enumerate(order):
        affine[rows[letter], column] = spacing.get(letter, 1)
        affine[rows[letter], 3] = places.get(letter, 0)
    return affine


def _letter(axis: Any) -> str:
    name = axis["name"] if isinstance(axis, dict) else axis
    return name.lower()[:1]
