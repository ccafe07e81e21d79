"""Reads one image or mask file of any known format. Imports no TensorFlow."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tfunet.data.defects import BadFileError
from tfunet.data.formats import OUTLINES
from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import CHANNELS, SPATIAL, PlaneGrid, Region, Stored
from tfunet.data.mask_values import ChannelValues, as_mask, no_values
from tfunet.data.no_data import without_data
from tfunet.data.opening import guarded, has_no_axes, module_of
from tfunet.files.remote import fetched, heads_only, is_on_server

# ITU-R BT.601, as Pillow's conversion to "L".
LUMA = np.array([0.299, 0.587, 0.114], np.float32)

# All whole numbers up to this are different in float32.
EXACT = 2**24

# Formats in which the values of a mask are not what a viewer shows, such as a palette's numbers.
OF_LABELS = tuple(
    f"tfunet.data.formats.{name}" for name in ("tiff", "pillow", "dicom", "slices", "tfrecord")
)
# Formats whose masks say where their pixels lie, and leave out empty planes.
PLACED = ("tfunet.data.formats.dicom", "tfunet.data.formats.slices")

# What a channel that is tagged alpha may be taken for.
ALPHA = ("drop", "keep", "mask")

Note = Callable[[str], None]


def unheard(text: str) -> None:
    """Take a note of what may be a mistake, and drop it."""


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
        affine: (4, 4) index to position, where the file states it (NIfTI, DICOM, OME-NGFF).
        transposed: Whether a tag of the file exchanged its rows and columns.
        contradiction: Two statements about where the pixels lie that disagree, in words.
        nodata: Value of the pixels without data, where the file states one.
        is_colour: Whether the channels are red, green and blue.
        in_colour: Whether pictures show the first three channels as red, green and blue.
        remark: What may be a mistake, in words.
    """

    shape: tuple[int, ...]
    channels: int
    dtype: str
    axes: str = ""
    spacing: tuple[float, ...] | None = None
    unit: str = ""
    affine: np.ndarray | None = None
    transposed: bool = False
    contradiction: str = ""
    nodata: float | None = None
    is_colour: bool = False
    in_colour: bool = False
    remark: str = ""


def read_header(
    path: Path,
    *,
    axes: str | None = None,
    alpha: str | None = None,
    mask: bool = False,
    beside: tuple[int, ...] | None = None,
    image: Header | None = None,
) -> Header:
    """Return the shape and channels of a file without decoding it.

    Only a PNG, JPEG or WebP whose end is missing is decoded, to see whether it was cut off.

    Args:
        path: The file.
        axes: Letters for the axes of an image's array, where the file does not say or is wrong:
            z, y, x, and c for channels.
        alpha: As in `read_image`.
        mask: Whether the file is a mask, which has the same axes, with channels or without.
        beside: Spatial shape of a mask's image: a further axis of the mask is its channels.
        image: Header of the mask's image: a DICOM segmentation (SEG) is placed on its pixels.

    Raises BadFileError for a file that cannot be read.
    """
    module = module_of(path)

    def header(path: Path) -> Header:
        describe = _of(module, "stored", labels=mask, image=image)
        described = describe(path)
        stored = _named(described, axes, mask=mask, beside=beside)
        letters = [stored.axes[axis] for axis in stored.spatial]
        sizes = [stored.spacing[letter] for letter in letters if letter in stored.spacing]
        return Header(
            shape=tuple(stored.shape[axis] for axis in stored.spatial),
            channels=stored.channels + (stored.alpha and alpha == "keep"),
            dtype=stored.dtype,
            axes="".join(letters),
            spacing=tuple(sizes) if len(sizes) == len(letters) else None,
            unit=stored.unit,
            affine=_spatial_affine(stored),
            transposed=stored.transposed,
            contradiction=stored.contradiction,
            nodata=stored.nodata,
            is_colour="s" in stored.axes and stored.channels == 3,
            in_colour=_in_colour(path, described, stored),
            remark=stored.remark,
        )

    if is_on_server(split_container(path)[0]):
        with heads_only(), contextlib.suppress(BadFileError):  # Its head may be longer.
            found: Header = guarded(path, header)
            return found
    return guarded(path, header)


def _in_colour(path: Path, described: Stored, stored: Stored) -> bool:
    """Return whether pictures show the channels of a plane in colour.

    They do where the file calls them samples of a pixel, three or four: the fourth is infrared, or
    transparency that is kept. They do so, too, for three channels in a format that names no axes.

    Args:
        path: The file.
        described: The array by the file alone.
        stored: The array with the axes that the user names.
    """
    if len(stored.spatial) != 2:
        return False
    samples = dict(zip(described.axes, described.shape, strict=True)).get("s", 1)
    return stored.channels in (3, 4) if samples > 2 else stored.channels == 3 and has_no_axes(path)


def read_image(
    path: Path,
    *,
    grey: bool = False,
    axes: str | None = None,
    alpha: str | None = None,
    fill: float | None = None,
    note: Note = unheard,
) -> np.ndarray:
    """Return a file's pixels as float32 (*spatial, channels), in the file's own intensities.

    A palette is resolved. `grey` converts colours to luminance; `axes` is as in `read_header`.
    `alpha` says what a channel with this tag is: one of ALPHA, or None, which drops it, and notes
    it unless it is opaque. Pixels without data become `fill`. Raises BadFileError for a file that
    cannot be read, or has pixels without data (NaN and infinity among them) and no `fill`.
    """
    module = module_of(path)
    stored, pixels = _laid_out(path, module.decoded, axes, mask=False)
    options: dict[str, Any] = {"grey": grey, "alpha": alpha, "fill": fill, "note": note}
    return as_image(path, pixels, stored=stored, hidden=_hidden(path), **options)


def as_image(
    path: Path,
    pixels: np.ndarray,
    *,
    stored: Stored,
    hidden: np.ndarray | None = None,
    grey: bool = False,
    alpha: str | None = None,
    fill: float | None = None,
    note: Note = unheard,
) -> np.ndarray:
    """Return decoded pixels (*spatial, channels), or a part of them, as `read_image` does.

    `stored` describes the file, and `hidden` says which pixels its mask leaves out.
    """
    if stored.alpha and alpha != "keep":
        pixels, shown = pixels[..., :-1], pixels[..., -1]
        if alpha == "mask":
            hidden = shown == 0
        elif alpha is None and (shown != _opaque(shown.dtype)).any():
            note(
                f"its channel {pixels.shape[-1] + 1} is tagged alpha, is not opaque, and is left "
                "out; alpha = 'keep' makes it a channel, 'mask' takes pixels of 0 as without data, "
                "'drop' leaves it out without this warning"
            )
    missing, why = without_data(pixels, stored, hidden)
    is_wide = pixels.dtype.kind in "iu" and pixels.dtype.itemsize > 2 and pixels.size
    if is_wide and (pixels.max() > EXACT or pixels.min() < -EXACT):
        note(
            f"its whole numbers go beyond {EXACT}, up to which float32, in which they are read, "
            "tells neighbours apart"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = pixels.astype(np.float32)
    beyond = np.isinf(narrow) & np.isfinite(pixels) if pixels.dtype.itemsize > 4 else None
    if beyond is not None and missing is not None:
        beyond &= ~missing[..., np.newaxis]
    if beyond is not None and beyond.any():
        raise BadFileError(
            path,
            f"holds numbers beyond {np.finfo(np.float32).max:.1e} in {beyond.sum()} of "
            f"{beyond.size} values, which float32, in which they are read, cannot hold. Scale them",
        )
    pixels = narrow
    if missing is not None:
        if fill is None:
            raise BadFileError(
                path,
                f"{why}. Replace them, leave the case out, or say fill = NUMBER, the value that "
                "they take.",
            )
        pixels[missing] = fill
    if grey and pixels.shape[-1] == 3:
        pixels = (pixels * LUMA).sum(-1, keepdims=True)
    return pixels


def _opaque(dtype: np.dtype) -> float:
    return np.iinfo(dtype).max if dtype.kind in "iu" else 1


def _hidden(path: Path) -> np.ndarray | None:
    find = getattr(module_of(path), "hidden", None)
    return guarded(path, find) if find else None


def read_mask(
    path: Path,
    *,
    colours: bool = False,
    fractions: bool = False,
    channel_values: ChannelValues = no_values,
    axes: str | None = None,
    beside: tuple[int, ...] | None = None,
    image: Header | None = None,
) -> np.ndarray:
    """Return a mask's values as whole numbers (*spatial), in their stored type.

    A palette's indices are the values. Alpha is dropped. A grey mask stored as colours is read as
    grey. Whole numbers stored as floating point become int64. With `colours` the value of a pixel
    is its colour, as 0xRRGGBB. With `fractions` the values may have any.

    Args:
        path: The file.
        colours: Whether the mask's colours are its values.
        fractions: Whether the values need not be whole numbers.
        channel_values: Number of channels to the value that each stands for, in a one-hot mask.
        axes: Letters for the axes of the images.
        beside: As in `read_header`.
        image: As in `read_header`.

    Raises BadFileError for fractions without `fractions`, for colours without `colours`, and for
    files that cannot be read.
    """
    module = module_of(path)
    decode = _of(module, "decoded", labels=not colours, image=image)
    stored, values = _laid_out(path, decode, axes, mask=True, beside=beside)
    hidden = _hidden(path)
    if hidden is not None and hidden.any():
        raise BadFileError(path, f"its mask of missing data leaves out {hidden.sum()} pixels.")
    if stored.alpha:
        values, shown = values[..., :-1], values[..., -1]
        if (shown != shown.flat[0]).any() and (values == values[(0,) * (values.ndim - 1)]).all():
            raise BadFileError(
                path,
                "has one colour, and its shape is in the alpha channel, which is left out. Store "
                "it as grey values.",
            )
    is_colour = "s" in stored.axes and values.shape[-1] == 3
    return as_mask(
        path,
        values,
        colours=colours,
        fractions=fractions,
        channel_values=no_values if is_colour else channel_values,
    )


def open_region(
    path: Path,
    *,
    axes: str | None = None,
    mask: bool = False,
    colours: bool = False,
    beside: tuple[int, ...] | None = None,
) -> tuple[Stored, Region] | None:
    """Return a file's description and the reader of boxes over its spatial axes.

    A box is (*box, channels) in the stored type, alpha included. None where the file can only be
    read whole. The arguments are as in `read_header` and `read_mask`.
    """
    module = module_of(path)
    labels = mask and not colours
    make = _of(module, "region", labels=labels)
    stored_box = guarded(path, make) if make else None
    if stored_box is None or _hidden(path) is not None:
        return None
    describe = _of(module, "stored", labels=labels)
    stored = guarded(path, lambda path: _named(describe(path), axes, mask=mask, beside=beside))
    if mask and stored.alpha:
        return None

    file, _ = split_container(path)

    def region(box: tuple[slice, ...]) -> np.ndarray:
        places = [slice(None)] * len(stored.shape)
        for axis, inside in zip(stored.spatial, box, strict=True):
            places[axis] = inside
        fetched(file)
        pixels = stored_box(tuple(places))
        # The room of the file may have been needed for others meanwhile.
        return region(box) if is_on_server(file) else stored.channels_last(pixels)

    return stored, region


def _of(module: ModuleType, name: str, *, labels: bool, image: Header | None = None) -> Any:
    """Return a function of a format; of a mask's labels that of its own, where there is one.

    In a format with palettes, a mask's values are the palette's indices.
    """
    plain: Any = getattr(module, name, None)
    if module.__name__ in OUTLINES.values() and image is not None:
        return partial(plain, shape=image.shape)
    if not labels or plain is None or module.__name__ not in OF_LABELS:
        return plain
    if module.__name__ in PLACED and image is not None and image.affine is not None:
        return partial(plain, labels=True, grid=_grid(image))
    return partial(plain, labels=True)


def _grid(image: Header) -> PlaneGrid:
    """Return where the planes, rows and columns of an image lie."""
    affine = np.asarray(image.affine)
    if len(image.shape) == 3:
        return PlaneGrid(shape=image.shape, affine=affine)
    return PlaneGrid(shape=(1, *image.shape), affine=affine[:, [2, 0, 1, 3]])


def _spatial_affine(stored: Stored) -> np.ndarray | None:
    """Return the affine of the spatial axes, in their order; of a plane, the depth comes last."""
    if stored.affine is None:
        return None
    kept = [stored.axes[axis] for axis in stored.spatial]
    stated = [letter for letter in stored.axes if letter in SPATIAL]
    columns = [*stated, *(letter for letter in SPATIAL if letter not in stated)]
    order = [*kept, *(letter for letter in columns if letter not in kept)]
    return np.asarray(stored.affine)[:, [*map(columns.index, order), 3]]


def _laid_out(
    path: Path,
    decode: Callable[[Path], tuple[Stored, np.ndarray]],
    axes: str | None,
    *,
    mask: bool,
    beside: tuple[int, ...] | None = None,
) -> tuple[Stored, np.ndarray]:
    """Return a file's description, and its pixels as (*spatial, channels), alpha included."""

    def laid_out(path: Path) -> tuple[Stored, np.ndarray]:
        stored, pixels = decode(path)
        stored = _named(stored, axes, mask=mask, beside=beside)
        return stored, stored.channels_last(pixels)

    return guarded(path, laid_out)


def _named(
    stored: Stored, axes: str | None, *, mask: bool, beside: tuple[int, ...] | None
) -> Stored:
    """Return the array with the axes that the user names, or those that fit a mask's image."""
    if not mask:
        return stored.named(axes)
    without_channels = "".join(letter for letter in axes or "" if letter not in CHANNELS)
    named = [
        replace(stored, axes=letters)
        for letters in (without_channels, axes or "")
        if len(letters) == len(stored.shape)
    ]
    readings = [*named[:1], stored, *named[1:]]
    if beside is not None:
        readings += stored.with_channels_beside(beside)
        readings.sort(key=lambda reading: not _has_shape(reading, beside))
    return readings[0]


def _has_shape(stored: Stored, shape: tuple[int, ...]) -> bool:
    try:
        return tuple(stored.shape[axis] for axis in stored.spatial) == shape
    except ValueError:  # Its axes are no plane and no stack.
        return False
