"""Reads one image or mask file of any known format. Imports no TensorFlow."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfunet.data.defects import BadFileError
from tfunet.data.formats import FORMATS
from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import CHANNELS, Region, Stored

# ITU-R BT.601, as Pillow's conversion to "L".
LUMA = np.array([0.299, 0.587, 0.114], np.float32)

# Kinds of files: their suffixes, the position of their signature, and its possible values.
SIGNATURES = {
    "PNG": ((".png",), 0, (b"\x89PNG",)),
    "JPEG": ((".jpg", ".jpeg"), 0, (b"\xff\xd8\xff",)),
    "WebP": ((".webp",), 8, (b"WEBP",)),
    "TIFF": ((".tif", ".tiff"), 0, (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    "gzip": ((".nii.gz",), 0, (b"\x1f\x8b",)),
    "NIfTI": ((".nii",), 344, (b"n+1\0", b"ni1\0")),
    "NIfTI-2": ((".nii",), 4, (b"n+2\0", b"ni2\0")),
    "HDF5": ((".h5", ".hdf5"), 0, (b"\x89HDF\r\n\x1a\n",)),
    "NumPy": ((".npy",), 0, (b"\x93NUMPY",)),
    "DICOM": ((".dcm", "/"), 128, (b"DICM",)),
}


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says about its pixels before they are decoded.

    Args:
        shape: Spatial shape in the order of the array's axes: rows and columns; planes first in
            a stack; x, y[, z] in NIfTI.
        channels: Colours or channels; alpha is not counted.
        dtype: Type of the stored pixels.
        axes: Letters of the axes of `shape`: "yx", "zyx", in NIfTI "xyz".
        spacing: Pixel size along `shape`, where the file states it, in `unit`.
        unit: "nm", "µm", "mm" or "m"; empty where the file does not say.
        affine: (4, 4) index to position, where the file states it (NIfTI).
    """

    shape: tuple[int, ...]
    channels: int
    dtype: str
    axes: str = ""
    spacing: tuple[float, ...] | None = None
    unit: str = ""
    affine: np.ndarray | None = None


def read_header(path: Path, *, axes: str | None = None, mask: bool = False) -> Header:
    """Return the shape and channels of a file without decoding it.

    Only a PNG, JPEG or WebP whose end is missing is decoded, to see whether it was cut off.

    Args:
        path: The file.
        axes: Letters for the axes of an image's array, where the file does not say or is wrong:
            z, y, x, and c for channels.
        mask: Whether the file is a mask, which has the same axes without channels.

    Raises BadFileError for a file that cannot be read.
    """
    module = _module(path)

    def header(path: Path) -> Header:
        stored = _named(module.stored(path), axes, mask)
        letters = [stored.axes[axis] for axis in stored.spatial]
        sizes = [stored.spacing[letter] for letter in letters if letter in stored.spacing]
        return Header(
            shape=tuple(stored.shape[axis] for axis in stored.spatial),
            channels=stored.channels,
            dtype=stored.dtype,
            axes="".join(letters),
            spacing=tuple(sizes) if len(sizes) == len(letters) else None,
            unit=stored.unit,
            affine=stored.affine,
        )

    return guarded(path, header)


def read_image(path: Path, *, grey: bool = False, axes: str | None = None) -> np.ndarray:
    """Return a file's pixels as float32 (*spatial, channels), in the file's own intensities.

    Alpha is dropped and a palette resolved. `grey` converts colours to luminance; `axes` is as in
    `read_header`. Raises BadFileError for a file that cannot be read or holds NaN or infinity.
    """
    decode = _module(path).decoded
    return as_image(path, _laid_out(path, decode, axes, mask=False), grey=grey)


def as_image(path: Path, pixels: np.ndarray, *, grey: bool = False) -> np.ndarray:
    """Return decoded pixels (*spatial, channels), or a part of them, as `read_image` does."""
    may_be_infinite = pixels.dtype.kind not in "bui"
    pixels = pixels.astype(np.float32)
    if may_be_infinite and (count := pixels.size - int(np.isfinite(pixels).sum())):
        raise BadFileError(
            path,
            f"holds NaN or infinity in {count} of {pixels.size} values. Replace them or leave the "
            "case out.",
        )
    if grey and pixels.shape[-1] == 3:
        pixels = (pixels * LUMA).sum(-1, keepdims=True)
    return pixels


def read_mask(path: Path, *, colours: bool = False, axes: str | None = None) -> np.ndarray:
    """Return a mask's values as whole numbers (*spatial), in their stored type.

    A palette's indices are the values. Alpha is dropped. A grey mask stored as colours is read as
    grey. Whole numbers stored as floating point become int64. With `colours` the value of a pixel
    is its colour, as 0xRRGGBB. `axes` are those of the images. Raises BadFileError for fractions,
    for colours without `colours`, and for files that cannot be read.
    """
    module = _module(path)
    # In a format with palettes, a mask's values are the palette's indices.
    labels = None if colours else getattr(module, "decoded_labels", None)
    decode = labels or module.decoded
    return as_mask(path, _laid_out(path, decode, axes, mask=True), colours=colours)


def open_region(path: Path, *, axes: str | None = None, mask: bool = False) -> Region | None:
    """Return the reader of boxes over the spatial axes, as (*box, channels) in the stored type.

    None where the file can only be read whole. `axes` and `mask` as in `read_header`.
    """
    module = _module(path)
    make = getattr(module, "region", None)
    stored_box = guarded(path, make) if make else None
    if stored_box is None:
        return None
    stored = guarded(path, lambda path: _named(module.stored(path), axes, mask))

    def region(box: tuple[slice, ...]) -> np.ndarray:
        places = [slice(None)] * len(stored.shape)
        for axis, inside in zip(stored.spatial, box, strict=True):
            places[axis] = inside
        return stored.channels_last(stored_box(tuple(places)))

    return region


def as_mask(path: Path, values: np.ndarray, *, colours: bool = False) -> np.ndarray:
    """Return decoded values (*spatial, channels), or a part of them, as `read_mask` does."""
    if colours:
        return _colours(path, values)
    if values.shape[-1] > 1 and (values != values[..., :1]).any():
        raise BadFileError(
            path,
            f"has {values.shape[-1]} different channels; a mask must have one value a pixel. Store "
            "it as grey values, or give each class its colour in classes=, such as "
            f"'#ff0000'.{lossy_hint(path)}",
        )
    return _whole_numbers(path, values[..., 0])


def content_files(path: Path) -> list[Path]:
    """Return the files that a path stands for: itself, its container, or all files in it."""
    path, _ = split_container(path)
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def _laid_out(
    path: Path,
    decode: Callable[[Path], tuple[Stored, np.ndarray]],
    axes: str | None,
    *,
    mask: bool,
) -> np.ndarray:
    """Return a file's pixels as (*spatial, channels)."""

    def laid_out(path: Path) -> np.ndarray:
        stored, pixels = decode(path)
        return _named(stored, axes, mask).channels_last(pixels)

    return guarded(path, laid_out)


def _named(stored: Stored, axes: str | None, mask: bool) -> Stored:
    """Return the array with the axes that the user names; a mask has them without channels."""
    if axes is None or not mask:
        return stored.named(axes)
    mask_axes = "".join(letter for letter in axes if letter not in CHANNELS)
    return stored.named(mask_axes) if len(mask_axes) == len(stored.shape) else stored


def _whole_numbers(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "buif":
        raise BadFileError(path, f"has values of type {values.dtype}; a mask needs whole numbers.")
    if values.dtype.kind != "f":
        return values.astype(np.uint8) if values.dtype == bool else values
    rounded = np.rint(values)
    # Scaled NIfTI labels come back as 1.0000000591; interpolated labels are farther off.
    if not np.isfinite(values).all() or np.abs(values - rounded).max(initial=0) > 1e-4:
        odd = values[~(np.abs(values - rounded) <= 1e-4)]
        raise BadFileError(
            path,
            f"holds {float(odd[0]):g}; labels must be whole numbers. "
            "Was the mask resampled with interpolation? Use nearest neighbour.",
        )
    return rounded.astype(np.int64)


def _colours(path: Path, values: np.ndarray) -> np.ndarray:
    if values.dtype != np.uint8 or values.shape[-1] not in (1, 3):
        raise BadFileError(
            path,
            f"has {values.shape[-1]} channels of {values.dtype}; the colours in classes= need a "
            "mask with 3 channels of uint8.",
        )
    red, green, blue = np.moveaxis(np.broadcast_to(values, (*values.shape[:-1], 3)), -1, 0)
    return (red.astype(np.int64) << 16) | (green.astype(np.int64) << 8) | blue


def lossy_hint(path: Path) -> str:
    """Return a warning about JPEG for messages about a mask; "" for other formats."""
    if _suffix(path) not in (".jpg", ".jpeg"):
        return ""
    return " JPEG changes pixel values slightly: save masks as PNG."


def _suffix(path: Path) -> str:
    path, _ = split_container(path)
    parts = [part.lower() for part in path.parts]
    if path.suffix.lower() != ".zarr" and any(part.endswith(".zarr") for part in parts):
        return ".zarr"
    if parts and parts[-1].endswith(".nii.gz"):
        return ".nii.gz"
    suffix = path.suffix.lower()
    return "/" if suffix not in FORMATS and path.is_dir() else suffix


def _module(path: Path) -> ModuleType:
    suffix = _suffix(path)
    if suffix not in FORMATS:
        known = ", ".join(suffix for suffix in FORMATS if suffix.startswith("."))
        raise BadFileError(path, f"unknown format. Known: {known}, and folders of DICOM slices.")
    try:
        return importlib.import_module(FORMATS[suffix])
    except ModuleNotFoundError as error:
        raise BadFileError(
            path, f"reading it needs {error.name}: pip install 'tfunet[io]'."
        ) from error


def guarded(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return `read(path)`; any error in it becomes a BadFileError with the reason."""
    try:
        return read(path)
    except ModuleNotFoundError as error:
        raise BadFileError(
            path, f"reading it needs {error.name}: pip install 'tfunet[io]'."
        ) from error
    except Exception as error:
        reason = _plain_reason(split_container(path)[0], _suffix(path)) or _first_line(error)
        raise BadFileError(path, f"cannot be read ({reason}).") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _plain_reason(path: Path, suffix: str) -> str:
    """Return the usual causes in plain words, which decoders do not have; "" if none applies."""
    try:
        if not path.exists():
            return "there is no such file"
        if path.is_dir():
            return "" if suffix in ("/", ".zarr") else "it is a folder"
        if path.stat().st_size == 0:
            return "the file is empty"
        with path.open("rb") as file:
            start = file.read(400)
    except PermissionError:
        return "no permission to read it; run chmod u+r"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the file itself with 'git lfs pull'"
    for kind, (suffixes, at, marks) in SIGNATURES.items():
        if suffix not in suffixes and any(start[at:].startswith(mark) for mark in marks):
            return f"its content is {kind}, but its name ends in {suffix}; rename it"
    return ""
