"""PNG, JPEG and WebP, with Pillow; PNG of 8 or 16 bits without palette with imagecodecs."""

import io
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from tfunet.data.formats.claims import check_claim
from tfunet.data.formats.orientation import TAG, upright, upright_pixels
from tfunet.data.formats.stored import Stored

KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
AS_COLOURS = ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX")
PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
PNG_METADATA = (b"Raw profile type ", b"XML:com.adobe.xmp")
LONGEST_KEYWORD = 80
PNG_START = 26  # Bytes up to the colour type.
DTYPES = {"1": "bool", "I": "int32", "F": "float32"}


def stored(path: Path, *, labels: bool = False) -> Stored:
    """Describe the image. One that does not end as its format does is decoded, to find out.

    Labels are described in the same way, as what a palette shows.
    """
    with path.open("rb") as file:
        plain, is_whole = _plain_png(path, file), _is_whole(path, file)
        chunks = list(_png_chunks(file)) if plain and is_whole else []
    if plain and is_whole:
        # The chunk acTL of an animated PNG begins with the number of its pictures.
        for name, start in chunks:
            _check_still(int.from_bytes(start[:4], "big") if name == b"acTL" else 1)
        return upright(plain, _orientation_in(path, chunks))
    with _opened(path) as image:
        if not is_whole:
            image.load()
        described = _grey_or_colour(path) or _described(image)
        return upright(described, _orientation(path, image))


def decoded(path: Path, *, labels: bool = False) -> tuple[Stored, np.ndarray]:
    """Return what the image is, and its pixels; a palette is resolved, but for labels."""
    # Read once: opening a small file takes longer than decoding it.
    content = path.read_bytes() if KINDS[path.suffix.lower()] == "PNG" else b""
    if plain := _plain_png(path, io.BytesIO(content)):
        import imagecodecs

        pixels = imagecodecs.png_decode(content)
        pixels = pixels.reshape(*plain.shape[:2], -1)[..., : plain.shape[2]]
        return _upright(plain, pixels, _orientation_in(path, _png_chunks(io.BytesIO(content))))
    with _opened(path) as image:
        described = _grey_or_colour(path) or _described(image)
        orientation = _orientation(path, image)
        if labels and image.mode == "P":
            described = replace(described, shape=(image.height, image.width, 1), alpha=False)
            return _upright(described, np.asarray(image)[..., np.newaxis], orientation)
        colours = "RGBA" if _has_clear_colours(image) else "RGB"
        pixels = np.asarray(image.convert(colours) if image.mode in AS_COLOURS else image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)[..., : described.shape[2]]
    # Pillow multiplies grey values of 2 and 4 bits, to fill 8.
    step = {"uint2": 85, "uint4": 17}.get(described.dtype, 1) if labels else 1
    return _upright(described, pixels // step if step > 1 else pixels, orientation)


def beside_pixels(path: Path) -> str:
    """Say why the stored numbers are not what `decoded` gives; "" where a decoder gives the same.

    Alpha, which is left out, and tags of orientation, which decoders follow, are no reason.
    """
    kind = KINDS[path.suffix.lower()]
    if kind == "PNG":
        described = _grey_or_colour(path)
        is_plain = described is not None and described.dtype in ("bool", "uint8", "uint16")
        return "" if is_plain else "has a palette, or pixels of 2 or 4 bits"
    if kind == "WEBP":
        return "is WebP"
    with _opened(path) as image:
        return "" if image.mode in ("L", "RGB") else f"is a JPEG in {image.mode}"


def _upright(plain: Stored, pixels: np.ndarray, orientation: int) -> tuple[Stored, np.ndarray]:
    return upright(plain, orientation), upright_pixels(pixels, plain.axes, orientation)


def _orientation(path: Path, image: Any) -> int:
    """Return the orientation that EXIF or XMP states; 1, as stored, where they state none."""
    # Pillow would decode all pixels of a PNG to find a tag behind them.
    if image.format == "PNG":
        with path.open("rb") as file:
            if not _have_metadata(_png_chunks(file)):
                return 1
    try:
        return int(image.getexif().get(TAG, 1))
    except (SyntaxError, ValueError, TypeError, struct.error):  # EXIF that nobody can read.
        return 1


def _orientation_in(path: Path, chunks: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the orientation of a PNG with these chunks."""
    if not _have_metadata(chunks):
        return 1
    with _opened(path) as image:
        return _orientation(path, image)


def _have_metadata(chunks: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a chunk of a PNG may state an orientation."""
    return any(
        name == b"eXIf" or (name in PNG_TEXTS and start.startswith(PNG_METADATA))
        for name, start in chunks
    )


def _png_chunks(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name of each chunk, and the start of its content."""
    file.seek(8)
    while len(start := file.read(8 + LONGEST_KEYWORD)) >= 8:
        length = int.from_bytes(start[:4], "big")
        yield start[4:8], start[8 : 8 + length]
        file.seek(length + 4 - (len(start) - 8), 1)


def _plain_png(path: Path, file: BinaryIO) -> Stored | None:
    """Describe a PNG of 8 or 16 bits without palette by its first bytes; None for another file.

    Pillow cuts 16-bit colours to 8 bits without a word, and takes longer for all of these.
    """
    described = _grey_or_colour_png(path, file)
    return described if described and described.dtype in ("uint8", "uint16") else None


def _grey_or_colour(path: Path) -> Stored | None:
    with path.open("rb") as file:
        return _grey_or_colour_png(path, file)


def _grey_or_colour_png(path: Path, file: BinaryIO) -> Stored | None:
    """Describe a PNG without palette by its first bytes; None for another file."""
    if KINDS[path.suffix.lower()] != "PNG":
        return None
    start = file.read(PNG_START)
    # PNG specification, 11.2.2: width, height, bits, colour type.
    if start[:4] != b"\x89PNG" or start[12:16] != b"IHDR" or len(start) < PNG_START:
        return None
    width, height, bits, kind = struct.unpack(">IIBB", start[16:26])
    channels = {0: 1, 2: 3, 4: 2, 6: 4}.get(kind)
    if channels is None:
        return None
    # One value may be transparent: the decoder adds alpha.
    has_clear_value = kind in (0, 2) and bits >= 8 and _has_clear_value(file)
    channels += has_clear_value
    check_claim((height, width, channels), max(1, bits // 8), path.stat().st_size)
    return Stored(
        shape=(height, width, channels),
        axes="yxs",
        dtype="bool" if bits == 1 else f"uint{bits}",
        spacing={},
        alpha=kind in (4, 6) or has_clear_value,
    )


def _has_clear_value(file: BinaryIO) -> bool:
    """Return whether a PNG names a value whose pixels are transparent, as GDAL does for no data."""
    names = takewhile(lambda name: name != b"IDAT", (name for name, _ in _png_chunks(file)))
    return b"tRNS" in names


def _has_clear_colours(image: Any) -> bool:
    """Return whether some colours of a palette are transparent."""
    return image.mode == "P" and "transparency" in image.info


def _described(image: Any) -> Stored:
    return Stored(
        shape=(image.height, image.width, _channels(image)),
        axes="yxs",
        dtype="uint16" if image.mode.startswith("I;16") else DTYPES.get(image.mode, "uint8"),
        spacing={},
        alpha=_has_clear_colours(image)
        or (image.mode not in AS_COLOURS and image.getbands()[-1] in "Aa"),
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    # Not Image.open, which would read a JPEG that is called .png, whose labels are no longer
    # labels, and has a limit of its own, which a whole slide exceeds.
    Image.init()
    make, _ = Image.OPEN[KINDS[path.suffix.lower()]]
    with path.open("rb") as file:
        image: Any = make(file, str(path))
        check_claim((image.height, image.width, _channels(image)), 1, path.stat().st_size)
        # The further pictures of a JPEG are previews, or of the other eye.
        if image.format != "JPEG" and image.format != "MPO":
            _check_still(getattr(image, "n_frames", 1))
        yield image


def _check_still(num_pictures: int) -> None:
    if num_pictures > 1:
        raise ValueError(f"it is a film of {num_pictures} pictures; save each to its own file")


def _channels(image: Any) -> int:
    if image.mode in AS_COLOURS:
        return 4 if _has_clear_colours(image) else 3
    return len(image.getbands())


def _is_whole(path: Path, file: BinaryIO) -> bool:
    kind = KINDS[path.suffix.lower()]
    size = path.stat().st_size
    file.seek(0 if kind == "WEBP" else max(0, size - 64))
    if kind == "WEBP":
        return int.from_bytes(file.read(8)[4:], "little") + 8 <= size
    return {"PNG": b"IEND", "JPEG": b"\xff\xd9"}[kind] in file.read()
