"""Paths that name an array within a file: 'file.h5:name', 'store.zarr:labels/cells'."""

import re
from pathlib import Path

_CONTAINER = re.compile(r"(.*\.(?:h5|hdf5|zarr)):(.*)", re.IGNORECASE | re.DOTALL)


def split_container(path: Path | str) -> tuple[Path, str]:
    """Return the file and the name within it, which is empty for a path that has none."""
    match = _CONTAINER.fullmatch(str(path))
    return (Path(match[1]), match[2]) if match else (Path(path), "")
