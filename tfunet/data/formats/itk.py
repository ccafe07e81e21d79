"""MetaImage (.mhd, .mha) and NRRD (.nrrd, .nhdr), with SimpleITK."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.formats.claims import check_claim, check_regular
from tfunet.data.formats.stored import Stored

# As ITK names the types of pixels.
TYPE = re.compile(r"(?:vector of )?(\d+)-bit (unsigned integer|signed integer|float)")
KINDS = {"unsigned integer": "uint", "signed integer": "int", "float": "float"}
# The line of a header that names the file with the pixels.
DATA_FILE = re.compile(rb"^(?:ElementDataFile\s*=|data ?file:)\s*(.*?)\s*$", re.M | re.I)
HEADER_BYTES = 2**16
NRRD = (".nrrd", ".nhdr")
# From ITK's left, posterior, superior to the right, front, head of this project.
TO_RAS = np.diag([-1.0, -1.0, 1.0])


def stored(path: Path) -> Stored:
    """Describe the image: planes, rows, columns, and channels if there are several."""
    return _described(_reader(path), content_files(path))


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the image is and its pixels."""
    import SimpleITK

    reader = _reader(path)
    described = _described(reader, content_files(path))
    return described, SimpleITK.GetArrayFromImage(reader.Execute()).reshape(described.shape)


def _reader(path: Path) -> Any:
    import SimpleITK

    check_regular(path)
    content_files(path)  # Raises before anything else is opened.
    reader = SimpleITK.ImageFileReader()
    # ITK would go by the content, and read any format under these names.
    reader.SetImageIO("NrrdImageIO" if path.suffix.lower() in NRRD else "MetaImageIO")
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader


def _described(reader: Any, files: Sequence[Path]) -> Stored:
    import SimpleITK

    named = SimpleITK.GetPixelIDValueAsString(reader.GetPixelID())
    kind = TYPE.fullmatch(named)
    if kind is None:
        raise ValueError(f"pixels of type {named}; readable: whole and real numbers")
    dtype = f"{KINDS[kind[2]]}{kind[1]}"
    sizes, channels = reader.GetSize()[::-1], reader.GetNumberOfComponents()
    held_bytes = sum(file.stat().st_size for file in files)
    check_claim((*sizes, channels), np.dtype(dtype).itemsize, held_bytes)
    return Stored(
        shape=(*sizes, channels),
        axes=f"{'tzyx'[-len(sizes) :]}c",
        dtype=dtype,
        spacing=dict(zip("xyz", reader.GetSpacing(), strict=False)),
        unit="mm",
        affine=_affine(reader) if len(sizes) == 3 else None,
    )


def content_files(path: Path) -> list[Path]:
    """Return the header, and the file with the pixels if that is another one beside it.

    Raises ValueError for pixels in several files or in another folder.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if header.startswith(b"NRRD"):
        header = header.partition(b"\n\n")[0].partition(b"\r\n\r\n")[0]
    named = DATA_FILE.search(header)
    if named is None or named[1].upper() == b"LOCAL":
        return [path]
    name = named[1].decode(errors="replace")
    if name.upper().startswith("LIST") or "%" in name:
        raise ValueError(f"its pixels lie in several files ({name}); save it with one")
    if Path(name).name != name:
        raise ValueError(f"its pixels lie in another folder, {name!r}; put the file beside it")
    data = path.with_name(name)
    if not data.is_file():
        raise ValueError(f"the file with its pixels, {name}, is not beside it")
    check_regular(data)
    return [path, data]


def _affine(reader: Any) -> np.ndarray:
    """Return index to position, for planes, rows and columns."""
    directions = np.array(reader.GetDirection()).reshape(3, 3) * reader.GetSpacing()
    affine = np.eye(4)
    affine[:3, :3] = (TO_RAS @ directions)[:, ::-1]
    affine[:3, 3] = TO_RAS @ np.array(reader.GetOrigin())
    return affine
