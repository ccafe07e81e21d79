"""Writes a prediction as TIFF, NIfTI, zarr or PNG, part by part. Imports no TensorFlow."""

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.formats import FORMATS
from tfunet.data.formats.container import split_container
from tfunet.files.atomic import replacing, writing
from tfunet.prediction.raster import Raster, written_to_array

# A multiple of 16, as TIFF wants, and the size that readers of large images expect.
TILE = 256
# GeoTIFF 1.1: where on Earth the pixels lie (scale, tie points, transformation, keys).
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)
LIBRARIES = {"tiff": "tifffile", "nifti": "nibabel", "zarr": "zarr", "png": "PIL"}
SUFFIXES = {"tiff": ".tif", "nifti": ".nii.gz", "zarr": ".zarr", "png": ".png"}

# PNG, JPEG and their like.
PICTURES = tuple(suffix for suffix, module in FORMATS.items() if module.endswith(".pillow"))

# OME writes symbols; OME-NGFF and NIfTI, which has no nanometres, write words.
NGFF_UNITS = {"nm": "nanometer", "µm": "micrometer", "mm": "millimeter", "m": "meter"}
NIFTI_UNITS = {"µm": "micron", "mm": "mm", "m": "meter"}

Spacing = tuple[float, ...] | None


def default_format(image: Path) -> str:
    """Return the format for the prediction of an image: that of the image, if it can be written.

    A mask must keep its values: it is a PNG where the image is a JPEG, and a TIFF otherwise.
    """
    name = split_container(image)[0].name.lower()
    if name.endswith((".nii", ".nii.gz")):
        return "nifti"
    if name.endswith(PICTURES):
        return "png"
    return "zarr" if ".zarr" in name else "tiff"


def format_of_probabilities(name: str) -> str:
    """Return the format for probabilities beside labels in a format: a PNG cannot hold them."""
    return "tiff" if name == "png" else name


def check_format(name: str) -> None:
    """Raise ValueError if the library for a format is missing."""
    try:
        importlib.import_module(LIBRARIES[name])
    except ModuleNotFoundError as error:
        raise ValueError(
            f"Writing {name} needs {error.name}: pip install 'tfunet[io]', or choose another "
            "--format."
        ) from error


def check_rank(name: str, image: Path, rank: int) -> None:
    """Raise ValueError if a format cannot hold the labels of an image with so many axes."""
    if name == "png" and rank > 2:
        raise ValueError(
            f"{image} is a volume, and a PNG holds one plane. Choose another --format: tiff, nifti "
            "or zarr."
        )


def write(
    name: str, raster: Raster, path: Path, *, image: Path, spacing: Spacing, unit: str = ""
) -> None:
    """Write a prediction. Nothing is at `path` before it is complete.

    Args:
        name: "tiff", "nifti", "zarr", or for the labels of a plane "png".
        raster: The prediction.
        path: Where it goes; its suffix is the one of SUFFIXES.
        image: The image that was predicted; the prediction gets its place in the world.
        spacing: Pixel size along the axes, if it is known.
        unit: Its unit, "nm", "µm", "mm" or "m", if it is known.

    Raises WriteError.
    """
    _WRITERS[name](raster, path, image, spacing, unit)


def _write_tiff(raster: Raster, path: Path, image: Path, spacing: Spacing, unit: str) -> None:
    import tifffile

    classes = () if raster.channels is None else (raster.channels,)
    shape = (*classes, *raster.shape)
    axes = ("C" if classes else "") + "ZYX"[-len(raster.shape) :]
    num_bytes = int(np.prod(shape)) * np.dtype(raster.dtype).itemsize
    metadata: dict[str, Any] = {"axes": axes}
    # A size without its unit would mean micrometres. A GeoTIFF has other tags for the size.
    sizes = spacing if spacing and unit else ()
    for letter, size in zip("ZYX"[-len(raster.shape) :], sizes, strict=bool(sizes)):
        metadata[f"PhysicalSize{letter}"] = size
        metadata[f"PhysicalSize{letter}Unit"] = unit
    with replacing(path) as partial:
        # Classes come one after the other, so they are written from an array on disk.
        array = partial.with_name(f"{partial.name}.array")
        try:
            planes: Iterator[np.ndarray]
            if classes:
                values = written_to_array(raster, array, classes_first=True)
                planes = (plane for of_class in values for plane in _planes(of_class))
            else:
                planes = _planes(raster)
            tifffile.imwrite(
                partial,
                (tile for plane in planes for tile in _tiles(plane, raster.dtype)),
                shape=shape,
                dtype=raster.dtype,
                tile=(TILE, TILE),
                photometric="minisblack",
                compression="zlib",
                bigtiff=num_bytes > 2**31,
                ome=bool(sizes),
                metadata=metadata,
                extratags=_geo_tags(image),
                maxworkers=1,
            )
        finally:
            array.unlink(missing_ok=True)


def _planes(values: Raster | np.ndarray) -> Iterator[np.ndarray]:
    """Yield the planes of a volume, or as many rows of an image as a tile has, in order."""
    is_stack = len(values.shape) == 3
    step = 1 if is_stack else TILE
    bounds = [
        (first, min(first + step, values.shape[0])) for first in range(0, values.shape[0], step)
    ]
    parts = (
        values.in_parts(bounds)
        if isinstance(values, Raster)
        else (values[first:last] for first, last in bounds)
    )
    for part in parts:
        yield part[0] if is_stack else part


def _tiles(plane: np.ndarray, dtype: str) -> Iterator[np.ndarray]:
    """Yield the tiles of rows of a TIFF in its order."""
    for top in range(0, len(plane), TILE):
        for left in range(0, plane.shape[1], TILE):
            tile = np.zeros((TILE, TILE), dtype)
            part = plane[top : top + TILE, left : left + TILE]
            tile[: part.shape[0], : part.shape[1]] = part
            yield tile


def _geo_tags(image: Path) -> list[tuple]:
    """Return the tags of a GeoTIFF that say where it lies, for its prediction."""
    if not image.name.lower().endswith((".tif", ".tiff")):
        return []
    import tifffile

    with tifffile.TiffFile(image) as file:
        tags = file.series[0].keyframe.tags
        places = [tags[code] for code in GEO_TAGS if code in tags]
        return [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in places]


def _write_nifti(raster: Raster, path: Path, image: Path, spacing: Spacing, unit: str) -> None:
    import nibabel

    with replacing(path) as partial:
        # NIfTI has its axes the other way round, so it is written from an array on disk.
        array = partial.with_name(f"{partial.name}.array")
        try:
            values: np.ndarray = written_to_array(raster, array)
            header = None
            sizes = [*(spacing or [1.0] * len(raster.shape)), 1.0][:3]
            affine = np.diag([*sizes, 1.0])
            if default_format(image) == "nifti":
                like = nibabel.load(image)
                affine, header = like.affine, like.header.copy()
                header.set_data_dtype(raster.dtype)
                header.set_slope_inter(1, 0)
                header["cal_max"], header["cal_min"] = 0, 0
                shape = like.shape[:3]
                values = values.reshape(*shape, *values.shape[len(raster.shape) :])
            if raster.channels is not None and len(raster.shape) == 2:
                values = values.reshape(*raster.shape, 1, raster.channels)
            prediction = nibabel.Nifti1Image(values, affine, header, dtype=raster.dtype)
            if header is None and unit in NIFTI_UNITS:
                prediction.header.set_xyzt_units(NIFTI_UNITS[unit])
            prediction.to_filename(partial)
        finally:
            array.unlink(missing_ok=True)


def _write_zarr(raster: Raster, path: Path, image: Path, spacing: Spacing, unit: str) -> None:
    import zarr

    rank = len(raster.shape)
    classes = () if raster.channels is None else (raster.channels,)
    chunks = (TILE, TILE) if rank == 2 else (TILE // 4,) * 3
    axes = [{"name": "c", "type": "channel"}] if classes else []
    in_unit = {"unit": NGFF_UNITS[unit]} if spacing and unit else {}
    letters = "xyz" if default_format(image) == "nifti" else "zyx"[-rank:]
    axes += [{"name": letter, "type": "space", **in_unit} for letter in letters[:rank]]
    scale = [1.0] * len(classes) + list(spacing or (1.0,) * rank)
    level = {
        "path": "0",
        "coordinateTransformations": [{"type": "scale", "scale": scale}],
    }
    partial = path.with_name(f".partial-{path.name}")
    try:
        with writing(path):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()  # Fails where a link is in its place, which zarr would follow.
            group = zarr.open_group(partial, mode="w", zarr_format=3)
            # OME-NGFF 0.5, https://ngff.openmicroscopy.org.
            group.attrs["ome"] = {
                "version": "0.5",
                "multiscales": [{"axes": axes, "datasets": [level]}],
            }
            array = group.create_array(
                "0",
                shape=(*classes, *raster.shape),
                chunks=(*((1,) if classes else ()), *chunks),
                dtype=raster.dtype,
            )
            # Whole chunks: each is compressed once.
            rows = chunks[0]
            bounds = [
                (first, min(first + rows, raster.shape[0]))
                for first in range(0, raster.shape[0], rows)
            ]
            for (first, last), part in zip(bounds, raster.in_parts(bounds), strict=True):
                if classes:
                    array[:, first:last] = np.moveaxis(part, -1, 0)
                else:
                    array[first:last] = part
            if path.exists():
                shutil.rmtree(path)
            partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_png(raster: Raster, path: Path, image: Path, spacing: Spacing, unit: str) -> None:
    from PIL import Image

    with replacing(path) as partial:
        array = partial.with_name(f"{partial.name}.array")
        try:
            Image.fromarray(written_to_array(raster, array)).save(partial, format="png")
        finally:
            array.unlink(missing_ok=True)


_WRITERS: dict[str, Callable[[Raster, Path, Path, Spacing, str], None]] = {
    "tiff": _write_tiff,
    "nifti": _write_nifti,
    "zarr": _write_zarr,
    "png": _write_png,
}
