"""TIFF, OME-TIFF, ImageJ's and GeoTIFF, with tifffile."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import tifffile

from tfunet.data.formats.stored import Stored

# Pages that tifffile has no name for: Q unknown, I a sequence of images, others of other vendors.
PAGES = "qirp"
ALPHA = (1, 2)  # TIFF 6.0, ExtraSamples: associated and unassociated alpha.


def stored(path: Path) -> Stored:
    """Describe the first series of the file; pages without a meaning are planes."""
    with tifffile.TiffFile(path) as file:
        return _stored(file)


def pixels(path: Path) -> np.ndarray:
    """Return the first series as stored."""
    with tifffile.TiffFile(path) as file:
        return file.series[0].asarray()


def _stored(file: Any) -> Stored:
    series = file.series[0]
    axes = series.axes.lower()
    if "z" not in axes and sum(letter in PAGES for letter in axes) == 1:
        axes = "".join("z" if letter in PAGES else letter for letter in axes)
    page = series.keyframe
    return Stored(
        shape=tuple(int(length) for length in series.shape),
        axes=axes,
        dtype=str(series.dtype),
        spacing=_ome_spacing(file) or _geo_spacing(page),
        alpha="s" in axes and bool(page.extrasamples) and page.extrasamples[-1] in ALPHA,
    )


def _ome_spacing(file: Any) -> dict[str, float]:
    """Return PhysicalSizeX, Y and Z of OME-XML, in micrometres unless the file says otherwise."""
    if not file.is_ome:
        return {}
    for element in ElementTree.fromstring(file.ome_metadata).iter():
        if element.tag.rpartition("}")[2] == "Pixels":
            sizes = {letter: element.get(f"PhysicalSize{letter.upper()}") for letter in "zyx"}
            return {letter: float(size) for letter, size in sizes.items() if size}
    return {}


def _geo_spacing(page: Any) -> dict[str, float]:
    """Return ModelPixelScaleTag of GeoTIFF, in the unit of its coordinate system."""
    tag = page.tags.get(33550)
    if tag is None or len(tag.value) < 2 or min(tag.value[:2]) <= 0:
        return {}
    return {"x": float(tag.value[0]), "y": float(tag.value[1])}
