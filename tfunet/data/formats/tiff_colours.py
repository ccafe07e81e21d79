"""What a TIFF's tags say about how its stored numbers are to be seen (TIFF 6.0)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from tfunet.data.formats.orientation import TAG, upright, upright_pixels
from tfunet.data.formats.stored import Region, Stored

WHITE_IS_ZERO, PALETTE, CMYK, YCBCR = 0, 3, 5, 6
UNREADABLE = {8: "CIE L*a*b*", 9: "ICC L*a*b*", 10: "ITU L*a*b*", 32844: "LogL", 32845: "LogLuv"}
# Their decoders return RGB: JPEG, JPEG 2000, WebP, JPEG XL and XR.
DECODED_TO_RGB = (6, 7, 34712, 33003, 33004, 33005, 34887, 50001, 50002, 34934, 22610)


@dataclass(frozen=True, kw_only=True)
class View:
    """How stored pixels become those that a viewer shows.

    Args:
        convert: Converts a part of the pixels; None where the stored numbers are what is seen.
        stored_colours: Samples of a stored pixel that `convert` makes red, green and blue; 0 where
            it makes no colours.
        orientation: As tag 274 states it.
    """

    convert: Callable[[np.ndarray], np.ndarray] | None = None
    stored_colours: int = 0
    orientation: int = 1

    def describe(self, stored: Stored) -> Stored:
        """Describe the array after `pixels`."""
        if self.convert and stored.nodata is not None:
            stored = replace(stored, nodata=self._nodata(stored))
        if self.stored_colours == 1:
            stored = replace(stored, shape=(*stored.shape, 1), axes=f"{stored.axes}s")
        if self.stored_colours:
            stored = replace(stored, shape=(*stored.shape[:-1], 3), dtype="uint8")
        return upright(stored, self.orientation)

    def pixels(self, pixels: np.ndarray, axes: str) -> np.ndarray:
        """Return all pixels as they are seen; `axes` are those of the stored ones."""
        converted = self.convert(pixels) if self.convert else pixels
        return upright_pixels(converted, axes, self.orientation)

    def _nodata(self, stored: Stored) -> float | None:
        """Return the value of pixels without data, where it can be told after conversion."""
        if self.stored_colours or self.convert is None or stored.nodata is None:
            return None
        kind = np.dtype(stored.dtype)
        if kind.kind not in "iu" or not float(stored.nodata).is_integer():
            return None
        return float(self.convert(np.array([int(stored.nodata)]).astype(kind))[0])

    def region(self, read: Region | None) -> Region | None:
        """Return the reader of boxes of what is seen; None where it is read whole."""
        convert = self.convert
        if read is None or self.orientation != 1:
            return None
        if convert is None:
            return read
        if not self.stored_colours:
            return lambda box: convert(read(box))
        samples = (slice(None),) if self.stored_colours > 1 else ()
        return lambda box: convert(read((*box[:-1], *samples)))[..., box[-1]]


def seen(file: Any, series: Any, *, labels: bool) -> View:
    """Return how the pixels of an image are seen; of a mask, how its labels are.

    Raises ValueError for colours that cannot be converted.
    """
    page = series.keyframe
    tag = page.tags.get(TAG)
    orientation = int(tag.value) if tag else 1
    photometric, compression = int(page.photometric), int(page.compression)
    if photometric in UNREADABLE or (photometric == YCBCR and compression not in DECODED_TO_RGB):
        name = UNREADABLE.get(photometric, "YCbCr")
        raise ValueError(f"its colours are {name}; convert it to RGB, in ImageJ or GIMP")
    if photometric == WHITE_IS_ZERO:
        return View(convert=_inverted(file, page, labels=labels), orientation=orientation)
    # ImageJ and OME keep a table of colours beside measured values.
    is_measured = labels or file.is_imagej or file.is_ome
    if photometric == PALETTE and not is_measured and page.colormap is not None:
        table = (np.asarray(page.colormap).T // 256).astype(np.uint8)
        return View(convert=lambda px: table[px], stored_colours=1, orientation=orientation)
    if photometric == CMYK and _inks(page) == "CMYK":
        if page.dtype != np.uint8 or page.samplesperpixel != 4 or series.axes[-1:] != "S":
            raise ValueError("its colours are CMYK of another kind than 8 bits; convert it to RGB")
        return View(convert=_rgb, stored_colours=4, orientation=orientation)
    return View(orientation=orientation)


def _inverted(file: Any, page: Any, *, labels: bool) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return what makes 0 black where the file says that it is white."""
    bits, kind = page.bitspersample, page.dtype.kind
    if labels and bits > 1:
        if file.is_imagej:  # Its masks are 255 inside, and shown in black.
            return None
        raise ValueError(
            "its header says that 0 is white (WhiteIsZero), so its labels may be stored inverted; "
            "save it with 0 as black (BlackIsZero)"
        )
    if kind not in "bui":
        raise ValueError(
            "its header says that 0 is white (WhiteIsZero), and floating point has no black; save "
            "it as BlackIsZero"
        )
    if kind == "u":
        white = page.dtype.type(2**bits - 1)
        return lambda px: white - px
    return np.invert


def _inks(page: Any) -> str:
    tag = page.tags.get(332)  # InkSet: 1, as where there is none, is CMYK.
    return "CMYK" if tag is None or int(tag.value) == 1 else "others"


def _rgb(cmyk: np.ndarray) -> np.ndarray:
    plane = np.ascontiguousarray(cmyk).reshape(-1, cmyk.shape[-2], 4)
    rgb = np.asarray(Image.fromarray(plane, "CMYK").convert("RGB"))
    return rgb.reshape(*cmyk.shape[:-1], 3)
