"""Reads one image or mask file: PNG, JPEG, TIFF or NIfTI. Imports no TensorFlow."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SUFFIXES = {
    ".png": "pillow",
    ".jpg": "pillow",
    ".jpeg": "pillow",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".nii": "nifti",
    ".nii.gz": "nifti",
}
# ITU-R BT.601, as Pillow's conversion to "L".
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says of its pixels before they are decoded.

    Args:
        shape: Spatial shape in the order of the array's axes: rows and columns; planes first in
            a TIFF stack; x, y[, z] in NIfTI.
        channels: Colours (alpha is not counted), or the volumes of a 4D NIfTI file.
        spacing: Pixel size along `shape`, where the format states it (NIfTI, in its own unit).
    """

    shape: tuple[int, ...]
    channels: int
    spacing: tuple[float, ...] | None = None


def read_header(path: Path) -> Header:
    """Return the shape and channels of a file without decoding it.

    A PNG or JPEG without its end mark is decoded here, to tell one that was cut off. Raises
    ValueError, naming the file, for one that cannot be read.
    """
    return guarded(path, _HEADERS[file_format(path)])


def read_image(path: Path, *, grey: bool = False) -> np.ndarray:
    """Return a file's pixels as float32 (*spatial, channels), in the file's own intensities.

    Alpha is dropped, a palette resolved; `grey` turns colours into their luminance. Raises
    ValueError, naming the file, for one that cannot be read or holds NaN or infinity.
    """
    return as_image(path, guarded(path, _IMAGES[file_format(path)]), grey=grey)


def as_image(path: Path, pixels: np.ndarray, *, grey: bool = False) -> np.ndarray:
    """Return decoded pixels (*spatial, channels), or a part of them, as `read_image` does."""
    pixels = pixels.astype(np.float32)
    if not np.isfinite(pixels).all():
        raise ValueError(f"{path}: holds NaN or infinity. Replace them or leave the case out.")
    if grey and pixels.shape[-1] == 3:
        pixels = (pixels * LUMA).sum(-1, keepdims=True)
    return pixels


def read_mask(path: Path) -> np.ndarray:
    """Return a mask's values as int64 (*spatial).

    A palette's numbers are the values; alpha is dropped; a grey mask stored as colour is taken
    as grey. Whole numbers stored as floating point are cast exactly. Raises ValueError, naming
    the file, for real colours, fractions and files that cannot be read.
    """
    name = file_format(path)
    return as_mask(path, guarded(path, _palette_mask if name == "pillow" else _IMAGES[name]))


def as_mask(path: Path, values: np.ndarray) -> np.ndarray:
    """Return decoded values (*spatial, channels), or a part of them, as `read_mask` does."""
    if values.shape[-1] > 1 and (values != values[..., :1]).any():
        raise ValueError(
            f"{path}: a mask must have one value a pixel, and this one has {values.shape[-1]} "
            "different channels. Store it as grey values."
        )
    values = values[..., 0]
    if values.dtype.kind not in "buif":
        raise ValueError(f"{path}: a mask of type {values.dtype}; allowed: whole numbers.")
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    whole = np.rint(values)
    # Scaled NIfTI labels come back as 1.0000000591; a fraction of a label does not.
    if not np.isfinite(values).all() or np.abs(values - whole).max(initial=0) > 1e-4:
        odd = values[~(np.abs(values - whole) <= 1e-4)]
        raise ValueError(
            f"{path}: holds {float(odd[0]):g}, which is no label; labels are whole numbers. "
            "Was the mask resampled with interpolation? Use nearest neighbour."
        )
    return whole.astype(np.int64)


def is_readable(path: Path) -> bool:
    """Return whether a file's name ends in one of the known suffixes."""
    return _suffix(path) in SUFFIXES


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def file_format(path: Path) -> str:
    """Return the family of formats that a file's name says; ValueError for an unknown one."""
    if not is_readable(path):
        raise ValueError(f"{path}: unknown format. Readable: {', '.join(SUFFIXES)}.")
    return SUFFIXES[_suffix(path)]


def guarded(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return `read(path)`; whatever a decoder raises becomes a ValueError that names the file."""
    try:
        return read(path)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{path}: reading it needs {error.name}: pip install 'tfunet[io]'."
        ) from error
    except Exception as error:
        raise ValueError(
            f"{path}: cannot be read ({_plain_reason(path) or _first_line(error)})."
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _plain_reason(path: Path) -> str:
    """Say what is plainly wrong with a file, in words that its decoder does not have."""
    if not path.exists():
        return "there is no such file"
    if path.is_dir():
        return "it is a folder"
    if path.stat().st_size == 0:
        return "the file is empty"
    if path.open("rb").read(40).startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the file itself with 'git lfs pull'"
    return ""


def _pillow_header(path: Path) -> Header:
    from PIL import Image

    with Image.open(path) as image:
        if not _has_end_mark(path, image.format):
            image.load()
        return Header(shape=(image.height, image.width), channels=_pillow_channels(image))


def _pillow_channels(image: Any) -> int:
    colours = [band for band in image.getbands() if band not in ("A", "a")]
    return 3 if image.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV") else len(colours)


def _has_end_mark(path: Path, kind: str | None) -> bool:
    mark = {"PNG": b"IEND", "JPEG": b"\xff\xd9"}.get(kind or "", b"")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        return mark in file.read()


def _pillow_image(path: Path) -> np.ndarray:
    if _is_deep_colour_png(path):
        import imagecodecs

        pixels = imagecodecs.png_decode(path.read_bytes())
        return pixels[..., : pixels.shape[-1] - (pixels.shape[-1] in (2, 4))]
    from PIL import Image

    with Image.open(path) as image:
        if image.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX"):
            return np.asarray(image.convert("RGB"))
        pixels = np.asarray(image)
        if pixels.ndim == 2:
            return pixels[..., np.newaxis]
        return pixels[..., : _pillow_channels(image)]


def _palette_mask(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        if image.mode == "P":
            return np.asarray(image)[..., np.newaxis]
    return _pillow_image(path)


def _is_deep_colour_png(path: Path) -> bool:
    """Pillow cuts PNG of 16 bits to 8 bits without a word, unless it is plain grey."""
    with path.open("rb") as file:
        start = file.read(26)
    return start[:4] == b"\x89PNG" and len(start) == 26 and start[24] == 16 and start[25] != 0


def _tiff_header(path: Path) -> Header:
    import tifffile

    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        spatial, channel = tiff_axes(series.axes, series.shape)
        count = series.shape[channel] if channel is not None else 1
        alpha = channel is not None and series.axes[channel] == "S" and count in (2, 4)
        return Header(shape=tuple(series.shape[axis] for axis in spatial), channels=count - alpha)


def _tiff_image(path: Path) -> np.ndarray:
    import tifffile

    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        spatial, channel = tiff_axes(series.axes, series.shape)
        return channels_last(series.asarray(), series.axes, spatial, channel)


def channels_last(
    pixels: np.ndarray, axes: str, spatial: Sequence[int], channel: int | None
) -> np.ndarray:
    """Return a TIFF's array, or a part with all channels, as (*spatial, channels) without alpha."""
    single = [axis for axis in range(len(axes)) if axis not in spatial and axis != channel]
    if channel is None:
        return pixels.squeeze(tuple(single))[..., np.newaxis]
    last = channel - sum(axis < channel for axis in single)
    pixels = np.moveaxis(pixels.squeeze(tuple(single)), last, -1)
    alpha = axes[channel] == "S" and pixels.shape[-1] in (2, 4)
    return pixels[..., : pixels.shape[-1] - alpha]


def tiff_axes(axes: str, shape: tuple[int, ...]) -> tuple[list[int], int | None]:
    """Return which axes are spatial, and which is the channels (S: samples, C: channels)."""
    long = [axis for axis, length in enumerate(shape) if length > 1 or axes[axis] in "YX"]
    channels = [axis for axis in long if axes[axis] in "SC"]
    spatial = [axis for axis in long if axes[axis] not in "SC"]
    if len(channels) > 1 or len(spatial) not in (2, 3):
        raise ValueError(
            f"a TIFF with axes {axes} of lengths {shape}; readable: a plane or a stack of "
            "planes, each with channels or without"
        )
    return spatial, channels[0] if channels else None


def _nifti_header(path: Path) -> Header:
    import nibabel

    image = nibabel.load(path)
    shape = tuple(int(length) for length in image.shape)
    spatial, channels = nifti_shape(shape)
    spacing = tuple(float(one) for one in image.header.get_zooms()[: len(spatial)])
    return Header(shape=spatial, channels=channels, spacing=spacing)


def _nifti_image(path: Path) -> np.ndarray:
    import nibabel

    if path.name.lower().endswith(".gz"):
        # nibabel stops reading before the checksum at the end, so damage would pass unseen.
        content = gzip.decompress(path.read_bytes())
        second = 540 in (int.from_bytes(content[:4], order) for order in ("little", "big"))
        image = (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(content)
    else:
        image = nibabel.load(path)
    spatial, channels = nifti_shape(tuple(int(length) for length in image.shape))
    pixels = np.asanyarray(image.dataobj)
    if pixels.dtype.kind not in "buif":
        raise ValueError(f"pixels of type {pixels.dtype}; readable: whole and real numbers")
    return pixels.reshape(*spatial, channels)


def nifti_shape(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the spatial shape and the channels: axes after the third."""
    spatial = shape[:3] if len(shape) > 3 or shape[-1] > 1 else shape[:2]
    rest = [length for length in shape[3:] if length > 1]
    if len(spatial) < 2 or len(rest) > 1:
        raise ValueError(f"a NIfTI file of shape {shape}; readable: 2D, 3D, and 3D with channels")
    return spatial, rest[0] if rest else 1


_HEADERS = {"pillow": _pillow_header, "tiff": _tiff_header, "nifti": _nifti_header}
_IMAGES = {"pillow": _pillow_image, "tiff": _tiff_image, "nifti": _nifti_image}
