"""NIfTI, with nibabel: scaled as the header says, axes as stored."""

import gzip
import io
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.arrayproxy import ArrayProxy

from tfunet.data.formats.stored import Region, Stored

# The standard's words; who does not say means millimetres.
UNITS = {"unknown": "mm", "mm": "mm", "micron": "µm", "meter": "m"}


def stored(path: Path) -> Stored:
    """Describe the volume: axes x, y, z, then one of length 1 (time), then channels."""
    with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        return _described(_header(file.read(nibabel.Nifti2Header.sizeof_hdr)))


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the volume is and its pixels as stored, scaled.

    The checksum of a .gz file is verified.
    """
    content = path.read_bytes()
    if _is_packed(path):
        # nibabel stops reading before the checksum at the end, so damage would pass unseen.
        content = gzip.decompress(content)
    header = _header(content)
    pixels = np.asanyarray(ArrayProxy(io.BytesIO(content), header))
    if pixels.dtype.kind not in "buif":
        raise ValueError(f"pixels of type {pixels.dtype}; readable: whole and real numbers")
    return _described(header), pixels


def region(path: Path) -> Region | None:
    """Return the reader of boxes; None for a compressed file, which is read whole."""
    if _is_packed(path):
        return None
    with path.open("rb") as file:
        header = _header(file.read(nibabel.Nifti2Header.sizeof_hdr))
    if header.get_data_dtype().kind not in "buif":
        return None
    proxy = ArrayProxy(path, header)
    return lambda box: np.asanyarray(proxy[box])


def _described(header: Any) -> Stored:
    shape = tuple(int(length) for length in header.get_data_shape())
    zooms = header.get_zooms()
    return Stored(
        shape=shape,
        axes=_axes(shape),
        dtype=str(header.get_data_dtype()),
        spacing={letter: float(size) for letter, size in zip("xyz", zooms[:3], strict=False)},
        unit=_unit(header),
        affine=header.get_best_affine(),
    )


def _unit(header: Any) -> str:
    try:
        return UNITS[header.get_xyzt_units()[0]]
    except KeyError:  # A number that the standard does not have.
        return UNITS["unknown"]


def _axes(shape: tuple[int, ...]) -> str:
    # Which of the axes after the third are channels, the standard leaves open: the long one.
    rest = "".join("c" if length > 1 else "u" for length in shape[3:])
    return "xyz"[: len(shape)] + rest


def _header(content: bytes) -> Any:
    """Return the header that a file begins with."""
    # Not nibabel.load, which opens the file twice and takes four times as long.
    kinds = nibabel.Nifti1Header, nibabel.Nifti2Header
    sizes = [int.from_bytes(content[:4], order) for order in ("little", "big")]
    kind = kinds[nibabel.Nifti2Header.sizeof_hdr in sizes]
    return kind(content[: kind.sizeof_hdr])


def _is_packed(path: Path) -> bool:
    return path.name.lower().endswith(".gz")
