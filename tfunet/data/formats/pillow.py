"""PNG, JPEG and WebP, with Pillow; PNG of 16-bit colours with imagecodecs."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfunet.data.formats.stored import Stored

KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
AS_COLOURS = ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX")
DTYPES = {"1": "bool", "I": "int32", "F": "float32"}


def stored(path: Path) -> Stored:
    """Describe the image. One that does not end as its format does is decoded, to find out."""
    with _opened(path) as image:
        if not _is_whole(path):
            image.load()
        deep = _deep_channels(path)
        sixteen = deep or image.mode.startswith("I;16")
        return Stored(
            shape=(image.height, image.width, deep or _channels(image)),
            axes="yxs",
            dtype="uint16" if sixteen else DTYPES.get(image.mode, "uint8"),
            spacing={},
        )


def pixels(path: Path) -> np.ndarray:
    """Return (rows, columns, channels); alpha is dropped, a palette resolved."""
    deep = _deep_channels(path)
    if deep:
        import imagecodecs

        return imagecodecs.png_decode(path.read_bytes())[..., :deep]
    with _opened(path) as image:
        if image.mode in AS_COLOURS:
            return np.asarray(image.convert("RGB"))
        decoded = np.asarray(image)
        return decoded.reshape(*decoded.shape[:2], -1)[..., : _channels(image)]


def labels(path: Path) -> np.ndarray:
    """Return a mask's values as (rows, columns, channels): of a palette, its numbers."""
    with _opened(path) as image:
        if image.mode == "P":
            return np.asarray(image)[..., np.newaxis]
    return pixels(path)


def _opened(path: Path) -> Any:
    # Named, or Pillow would read a JPEG that is called .png, whose labels are no longer labels.
    return Image.open(path, formats=[KINDS[path.suffix.lower()]])


def _channels(image: Any) -> int:
    colours = [band for band in image.getbands() if band not in ("A", "a")]
    return 3 if image.mode in AS_COLOURS else len(colours)


def _is_whole(path: Path) -> bool:
    kind = KINDS[path.suffix.lower()]
    size = path.stat().st_size
    with path.open("rb") as file:
        if kind == "WEBP":
            return int.from_bytes(file.read(8)[4:], "little") + 8 <= size
        file.seek(max(0, size - 64))
        return {"PNG": b"IEND", "JPEG": b"\xff\xd9"}[kind] in file.read()


def _deep_channels(path: Path) -> int:
    """Return the colours of a PNG with 16 bits for each; 0 for any other file.

    Pillow cuts them to 8 bits without a word, unless the PNG is plain grey.
    """
    with path.open("rb") as file:
        start = file.read(26)
    if start[:4] != b"\x89PNG" or len(start) < 26 or start[24] != 16:
        return 0
    return {2: 3, 4: 1, 6: 3}.get(start[25], 0)  # PNG specification, 11.2.1: colour types.
