"""NIfTI, with nibabel: scaled as the header says, axes as stored."""

import gzip
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from tfunet.data.formats.stored import Region, Stored

# The standard's words; who does not say means millimetres.
UNITS = {"unknown": "mm", "mm": "mm", "micron": "µm", "meter": "m"}


def stored(path: Path) -> Stored:
    """Describe the volume: axes x, y, z, then one of length 1 (time), then channels."""
    image = nibabel.load(path)
    shape = tuple(int(length) for length in image.shape)
    zooms = image.header.get_zooms()
    return Stored(
        shape=shape,
        axes=_axes(shape),
        dtype=str(image.get_data_dtype()),
        spacing={letter: float(size) for letter, size in zip("xyz", zooms[:3], strict=False)},
        unit=_unit(image.header),
        affine=np.asarray(image.affine),
    )


def pixels(path: Path) -> np.ndarray:
    """Return the volume as stored, scaled; the checksum of a .gz file is verified."""
    image = _checked(path) if path.name.lower().endswith(".gz") else nibabel.load(path)
    found = np.asanyarray(image.dataobj)
    if found.dtype.kind not in "buif":
        raise ValueError(f"pixels of type {found.dtype}; readable: whole and real numbers")
    return found


def region(path: Path) -> Region | None:
    """Return the reader of boxes; None for a compressed file, which is read whole."""
    image = nibabel.load(path)
    if path.name.lower().endswith(".gz") or image.get_data_dtype().kind not in "buif":
        return None
    return lambda box: np.asanyarray(image.dataobj[box])


def _unit(header: Any) -> str:
    try:
        return UNITS[header.get_xyzt_units()[0]]
    except KeyError:  # A number that the standard does not have.
        return UNITS["unknown"]


def _axes(shape: tuple[int, ...]) -> str:
    # Which of the axes after the third are channels, the standard leaves open: the long one.
    rest = "".join("c" if length > 1 else "u" for length in shape[3:])
    return "xyz"[: len(shape)] + rest


def _checked(path: Path) -> Any:
    # nibabel stops reading before the checksum at the end, so damage would pass unseen.
    content = gzip.decompress(path.read_bytes())
    second = 540 in (int.from_bytes(content[:4], order) for order in ("little", "big"))
    return (nibabel.Nifti2Image if second else nibabel.Nifti1Image).from_bytes(content)
