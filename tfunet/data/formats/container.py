"""Paths that name an array within a file: 'file.h5:name', 'a.json:cell', 'records:17@image'.

No TensorFlow.
"""

import re
from pathlib import Path
from unicodedata import normalize

_CONTAINER = re.compile(
    r"(.*\.(?:h5|hdf5|zarr|json|geojson|roi|zip)):(.*)", re.IGNORECASE | re.DOTALL
)
# Files of records have any name, such as train.tfrecord-00000-of-00010.
_RECORD = re.compile(r"(.*):(\d+@.*)", re.DOTALL)


def split_container(path: Path | str) -> tuple[Path, str]:
    """Return the file and the name within it, which is empty for a path that has none."""
    text = str(path)
    # Most names have none: there may be many.
    match = (_RECORD.fullmatch(text) or _CONTAINER.fullmatch(text)) if ":" in text else None
    if match:
        return Path(match[1]), match[2]
    return (path if isinstance(path, Path) else Path(path)), ""


def is_record(path: Path | str) -> bool:
    """Return whether a path names a feature of a record."""
    return "@" in str(path) and _RECORD.fullmatch(str(path)) is not None


def composed(name: str) -> str:
    """Return a name in the form in which most systems write it.

    macOS, and archives that were packed there, have "ö" as two characters.
    """
    return name if name.isascii() else normalize("NFC", name)


def stem(path: Path | str) -> str:
    """Return a file's name without its suffixes; of an array within it, the array's name too.

    It is `composed`.
    """
    file, inside = split_container(path)
    plain = re.sub(r"(\.nii\.gz|\.ome\.tiff?|\.[^.]+)$", "", file.name.lstrip("."))
    return composed("_".join([plain, *(part for part in inside.split("/") if part)]))
