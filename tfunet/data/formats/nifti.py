"""NIfTI, with nibabel: scaled as the header says, axes as stored."""

import gzip
import io
import math
from itertools import product
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.arrayproxy import ArrayProxy

from tfunet.data.formats.claims import check_claim, check_regular
from tfunet.data.formats.stored import Region, Stored
from tfunet.data.formats.units import sizes_in_words

# Extensions and rests are smaller.
MOST_BEFORE = MOST_BEHIND = 16 * 2**20
TEMPLATE = 3  # Talairach, MNI, other templates.
# The standard's words; who does not say means millimetres.
UNITS = {"unknown": "mm", "mm": "mm", "micron": "µm", "meter": "m"}


def stored(path: Path) -> Stored:
    """Describe the volume: axes x, y, z, then one of length 1 (time), then channels."""
    check_regular(path)
    with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        return _described(path, _header(file.read(nibabel.Nifti2Header.sizeof_hdr)))


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the volume is and its pixels as stored, scaled.

    The checksum of a .gz file is verified.
    """
    described = stored(path)
    content = _unpacked(path) if _is_packed(path) else path.read_bytes()
    header = _header(content)
    pixels = np.asanyarray(ArrayProxy(io.BytesIO(content), header))
    if pixels.dtype.kind not in "buif":
        raise ValueError(f"pixels of type {pixels.dtype}; readable: whole and real numbers")
    return described, pixels


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


def _unpacked(path: Path) -> bytes:
    """Return the content of a .gz file: what its header says, and little behind it."""
    with gzip.open(path) as file:
        start = file.read(nibabel.Nifti2Header.sizeof_hdr)
        header = _header(start)
        pixel_bytes = math.prod(header.get_data_shape()) * header.get_data_dtype().itemsize
        content = start + file.read(int(header.get_data_offset()) + pixel_bytes - len(start))
        # To the end: nibabel stops before the checksum there, so damage would pass unseen.
        behind = 0
        while rest := file.read(MOST_BEHIND):
            behind += len(rest)
            if behind > MOST_BEHIND:
                raise ValueError(
                    f"more than {MOST_BEHIND} bytes follow its last voxel: its header is wrong, or "
                    "it was made to fill the memory"
                )
    return content


def _described(path: Path, header: Any) -> Stored:
    shape = tuple(int(length) for length in header.get_data_shape())
    check_claim(shape, header.get_data_dtype().itemsize, path.stat().st_size)
    # Some programs write 0: nibabel would then take the header for voxels.
    if not header.sizeof_hdr <= header.get_data_offset() <= MOST_BEFORE:
        raise ValueError(
            f"its voxels begin at byte {header.get_data_offset():g} (vox_offset), and its header "
            f"has {header.sizeof_hdr} bytes"
        )
    zooms = header.get_zooms()
    return Stored(
        shape=shape,
        axes=_axes(shape),
        dtype=str(header.get_data_dtype()),
        spacing={letter: float(size) for letter, size in zip("xyz", zooms[:3], strict=False)},
        unit=_unit(header),
        affine=header.get_best_affine(),
        contradiction=_contradiction(header, shape),
    )


def _contradiction(header: Any, shape: tuple[int, ...]) -> str:
    """Say which two statements of a header about the voxels disagree; "" if none do.

    A voxel size may differ by 1 %, a corner by half a voxel. Coordinates of a template (sform codes
    3 and up) lie elsewhere than those of the scanner by their meaning.
    """
    sform_code, qform_code = int(header["sform_code"]), int(header["qform_code"])
    if sform_code <= 0 or (qform_code > 0 and sform_code >= TEMPLATE):
        return ""
    sform, zooms = header.get_sform(), np.array(header.get_zooms()[:3], float)
    if len(zooms) < 3:
        return ""
    sizes = np.linalg.norm(sform[:3, :3], axis=0)
    if not np.allclose(sizes, zooms, rtol=1e-2):
        return (
            f"two statements about its voxel size: pixdim says {sizes_in_words(zooms)}, sform "
            f"{sizes_in_words(sizes)}"
        )
    if qform_code <= 0:
        return ""
    ends = np.array([*product(*((0, length - 1) for length in shape[:3]))])
    qform = header.get_qform()
    change = sform - qform
    distance = np.linalg.norm(ends @ change[:3, :3].T + change[:3, 3], axis=1).max()
    if distance <= zooms.min() / 2:
        return ""
    return (
        f"two statements about its place: qform (code {qform_code}) and sform (code {sform_code}) "
        f"put its corners up to {distance:.3g} apart"
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
