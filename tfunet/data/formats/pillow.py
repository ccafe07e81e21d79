"""PNG, JPEG and WebP, with Pillow; PNG of 8 or 16 bits without palette with imagecodecs."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfunet.data.formats.stored import Stored

KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
AS_COLOURS = ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX")
PNG_START = 26  # Bytes up to the colour type.
DTYPES = {"1": "bool", "I": "int32", "F": "float32"}


def stored(path: Path) -> Stored:
    """Describe the image. One that does not end as its format does is decoded, to find out."""
    plain, is_whole = _plain_png(path), _is_whole(path)
    if plain and is_whole:
        return plain
    with _opened(path) as image:
        if not is_whole:
            image.load()
        return _grey_or_colour_png(path) or _described(image)


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the image is, and its pixels; a palette is resolved."""
    if plain := _plain_png(path):
        import imagecodecs

        pixels = imagecodecs.png_decode(path.read_bytes())
        return plain, pixels.reshape(*plain.shape[:2], -1)[..., : plain.shape[2]]
    with _opened(path) as image:
        if image.mode in AS_COLOURS:
            return _described(image), np.asarray(image.convert("RGB"))
        pixels = np.asarray(image)
        described = _grey_or_colour_png(path) or _described(image)
        return described, pixels.reshape(*pixels.shape[:2], -1)[..., : described.shape[2]]


def decoded_labels(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what a mask is and its values as stored: of a palette, its numbers."""
    if _plain_png(path):
        return decoded(path)
    with _opened(path) as image:
        if image.mode == "P":
            one_channel = replace(_described(image), shape=(image.height, image.width, 1))
            return one_channel, np.asarray(image)[..., np.newaxis]
    described, pixels = decoded(path)
    # Pillow multiplies grey values of 2 and 4 bits, to fill 8.
    step = {"uint2": 85, "uint4": 17}.get(described.dtype, 1)
    return described, pixels // step if step > 1 else pixels


def _plain_png(path: Path) -> Stored | None:
    """Describe a PNG of 8 or 16 bits without palette by its first bytes; None for another file.

    Pillow cuts 16-bit colours to 8 bits without a word, and takes longer for all of these.
    """
    described = _grey_or_colour_png(path)
    return described if described and described.dtype in ("uint8", "uint16") else None


def _grey_or_colour_png(path: Path) -> Stored | None:
    """Describe a PNG without palette by its first bytes; None for another file."""
    if KINDS[path.suffix.lower()] != "PNG":
        return None
    with path.open("rb") as file:
        start = file.read(PNG_START)
    # PNG specification, 11.2.2: width, height, bits, colour type.
    if start[:4] != b"\x89PNG" or start[12:16] != b"IHDR" or len(start) < PNG_START:
        return None
    width, height, bits, kind = struct.unpack(">IIBB", start[16:26])
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(kind)
    if channels is None:
        return None
    return Stored(
        shape=(height, width, channels),
        axes="yxs",
        dtype="bool" if bits == 1 else f"uint{bits}",
        spacing={},
        alpha=kind in (4, 6),
    )


def _described(image: Any) -> Stored:
    return Stored(
        shape=(image.height, image.width, _channels(image)),
        axes="yxs",
        dtype="uint16" if image.mode.startswith("I;16") else DTYPES.get(image.mode, "uint8"),
        spacing={},
        alpha=image.mode not in AS_COLOURS and image.getbands()[-1] in "Aa",
    )


def _opened(path: Path) -> Any:
    # Named, or Pillow would read a JPEG that is called .png, whose labels are no longer labels.
    return Image.open(path, formats=[KINDS[path.suffix.lower()]])


def _channels(image: Any) -> int:
    return 3 if image.mode in AS_COLOURS else len(image.getbands())


def _is_whole(path: Path) -> bool:
    kind = KINDS[path.suffix.lower()]
    size = path.stat().st_size
    with path.open("rb") as file:
        if kind == "WEBP":
            return int.from_bytes(file.read(8)[4:], "little") + 8 <= size
        file.seek(max(0, size - 64))
        return {"PNG": b"IEND", "JPEG": b"\xff\xd9"}[kind] in file.read()
