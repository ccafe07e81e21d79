"""TIFF, OME-TIFF, ImageJ's and GeoTIFF, with tifffile."""

import logging
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import tifffile
from PIL.TiffImagePlugin import TiffImageFile

from tfunet.data.formats.claims import check_regular
from tfunet.data.formats.orientation import TAG, upright_pixels
from tfunet.data.formats.stored import Region, Stored, check_type
from tfunet.data.formats.tiff_colours import WHITE_IS_ZERO, seen
from tfunet.data.formats.tiff_segments import segmented_region
from tfunet.data.formats.tiff_series import opened
from tfunet.data.formats.units import in_one_unit

# Pages that tifffile has no name for: Q unknown, I a sequence of images, others of other vendors.
PAGES = "qirp"
FAX = (2, 3, 4)  # CCITT.
# TIFF 6.0: BlackIsZero and RGB, and the colours of a pixel side by side.
PLAIN_COLOURS, CONTIGUOUS = (1, 2), 1
PLAIN_TYPES = ("uint8", "uint16", "float32")
ALPHA = (1, 2)  # TIFF 6.0, ExtraSamples: associated and unassociated alpha.
GDAL_NODATA = 42113
INVERTED = (
    "its header says that 0 is white (WhiteIsZero), so what was True or 1 counts as background, as "
    "viewers show it. If it should count as the class, write it with photometric='minisblack', or "
    "as uint8"
)
MASK, REDUCED = 4, 1  # TIFF 6.0, NewSubfileType.
# GDAL's mask lies among the first pages; a stack may have thousands.
FIRST_PAGES = 16
# tifffile complains of lowest floats, as GDAL writes them.
logging.getLogger("tifffile").addFilter(lambda record: "GDAL_NODATA" not in record.getMessage())


def stored(path: Path, *, labels: bool = False) -> Stored:
    """Describe the image in the file; pages without a meaning are planes."""
    with opened(path) as (file, series):
        described = seen(file, series, labels=labels).describe(_as_stored(file, series))
        # tifffile writes so what Python calls True and False.
        is_inverted = int(series.keyframe.photometric) == WHITE_IS_ZERO and file.is_shaped
        return replace(described, remark=INVERTED) if labels and is_inverted else described


def decoded(path: Path, *, labels: bool = False) -> tuple[Stored, np.ndarray]:
    """Return what the image is, and its pixels as a viewer shows them, in their stored type."""
    with opened(path) as (file, series):
        view, plain = seen(file, series, labels=labels), _as_stored(file, series)
        if series.keyframe.compression in FAX:
            return view.describe(plain), _fax(path, series)
        _fill_gaps(series.keyframe)
        return view.describe(plain), view.pixels(series.asarray(), plain.axes)


def region(path: Path, *, labels: bool = False) -> Region | None:
    """Return the reader of boxes of the image; None where the file is read whole."""
    with opened(path) as (file, series):
        if series.keyframe.compression in FAX:
            return None
        view = seen(file, series, labels=labels)
        if series.dataoffset is None:
            _fill_gaps(series.keyframe)
            return view.region(segmented_region(path, series))
        dtype = np.dtype(series.dtype).newbyteorder(file.byteorder)
        return view.region(_mapped_region(path, dtype, series.dataoffset, series.shape))


def beside_pixels(path: Path) -> str:
    """Say why the stored numbers are not what `decoded` gives; "" where a decoder gives the same.

    A tag of orientation, which decoders follow, is no reason.
    """
    with opened(path) as (file, series):
        page = series.keyframe
        reasons = {
            "is in bits or in whole numbers with a sign": str(series.dtype) not in PLAIN_TYPES
            or page.bitspersample != 8 * np.dtype(series.dtype).itemsize,
            "has several pages": len(file.pages) > 1,
            "is compressed as CCITT": page.compression in FAX,
            "has colours or a black of its own": int(page.photometric) not in PLAIN_COLOURS,
            "has alpha, or other samples beside its colours": bool(page.extrasamples),
            "stores colours one after the other": page.samplesperpixel > 1
            and int(page.planarconfig) != CONTIGUOUS,
            "marks pixels without data": _nodata(page) is not None,
        }
    if path.with_name(f"{path.name}.msk").exists():
        return "has a mask of missing data"
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _fill_gaps(page: Any) -> None:
    """Let tiles that the file leaves out have its no-data value, which tifffile may not know."""
    nodata = _nodata(page)
    if nodata is not None and np.dtype(page.dtype).kind == "f":
        page.nodata = nodata


def hidden(path: Path) -> np.ndarray | None:
    """Return where a mask of GDAL's says that there is no data; None without a mask.

    The mask is a page of the file, or lies beside it in FILE.msk.
    """
    beside = path.with_name(f"{path.name}.msk")
    if beside.exists():
        with tifffile.TiffFile(beside) as file:
            return file.series[0].asarray() == 0
    check_regular(path)
    with tifffile.TiffFile(path) as file:
        for page in islice(file.pages, FIRST_PAGES):
            if page.subfiletype & MASK and not page.subfiletype & REDUCED:
                tag = file.pages.first.tags.get(TAG)
                return upright_pixels(page.asarray() == 0, "yx", int(tag.value) if tag else 1)
    return None


def _fax(path: Path, series: Any) -> np.ndarray:
    """Return a stack of pages compressed as CCITT, which tifffile cannot decode.

    Pillow turns them and makes 0 black as their headers say.
    """
    planes = []
    with path.open("rb") as file:
        image = TiffImageFile(file)
        for page in series.pages:
            image.seek(page.index)
            planes.append(np.asarray(image))
    return np.stack(planes).reshape(series.shape[:-2] + planes[0].shape)


def _as_stored(file: Any, series: Any) -> Stored:
    axes = series.axes.lower()
    if "z" not in axes and sum(letter in PAGES for letter in axes) == 1:
        axes = "".join("z" if letter in PAGES else letter for letter in axes)
    page = series.keyframe
    check_type(np.dtype(series.dtype))
    spacing, unit = _ome_spacing(file)
    nodata = _nodata(page)
    return Stored(
        shape=tuple(int(length) for length in series.shape),
        axes=axes,
        dtype=f"uint{page.bitspersample}" if page.bitspersample in (2, 4) else str(series.dtype),
        spacing=spacing or _geo_spacing(page),
        unit=unit,
        alpha="s" in axes and bool(page.extrasamples) and page.extrasamples[-1] in ALPHA,
        nodata=nodata,
        nodata_from="" if nodata is None else f"GDAL's no-data value is {nodata:g}",
    )


def _nodata(page: Any) -> float | None:
    """Return GDAL's value of pixels without data, if the page has one."""
    tag = page.tags.get(GDAL_NODATA)
    text = str(tag.value).strip("\0 ") if tag is not None else ""
    try:
        return float(text) if text else None
    except ValueError:  # Not a number, as Windows once wrote it.
        return math.nan


def _ome_spacing(file: Any) -> tuple[dict[str, float], str]:
    """Return PhysicalSizeX, Y and Z of OME-XML in one unit: µm unless the file says another."""
    if not file.is_ome:
        return {}, ""
    for element in ElementTree.fromstring(file.ome_metadata).iter():
        if element.tag.rpartition("}")[2] == "Pixels":
            sizes = {letter: element.get(f"PhysicalSize{letter.upper()}") for letter in "zyx"}
            units = {
                letter: element.get(f"PhysicalSize{letter.upper()}Unit", "µm") for letter in sizes
            }
            found = {letter: float(size) for letter, size in sizes.items() if size}
            spacing, unit = in_one_unit(found, units)
            return spacing, unit if spacing else ""
    return {}, ""


def _geo_spacing(page: Any) -> dict[str, float]:
    """Return the pixel size of GeoTIFF, in the unit of its coordinate system."""
    scale, matrix = page.tags.get(33550), page.tags.get(34264)
    if scale is not None and len(scale.value) >= 2 and min(scale.value[:2]) > 0:
        return {"x": float(scale.value[0]), "y": float(scale.value[1])}
    if matrix is not None and len(matrix.value) == 16:
        sizes = np.linalg.norm(np.reshape(matrix.value, (4, 4))[:3, :2], axis=0)
        return {"x": float(sizes[0]), "y": float(sizes[1])} if sizes.min() > 0 else {}
    return {}


def _mapped_region(path: Path, dtype: np.dtype, offset: int, shape: tuple[int, ...]) -> Region:
    # Mapped anew for each box: pages of an earlier one are not this process's memory any more.
    return lambda box: np.array(np.memmap(path, dtype, "r", offset, shape)[box])
