"""A data set in an HDF5 file, with h5py: the path is 'file.h5:name'."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import Stored, plain


def stored(path: Path) -> Stored:
    """Describe the data set from the file's header."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        found = _dataset(file, name)
        return plain(found.shape, found.dtype)


def pixels(path: Path) -> np.ndarray:
    """Return the data set."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        return _dataset(file, name)[()]


def _dataset(file: Any, name: str) -> Any:
    names: list[str] = []
    file.visititems(lambda at, one: names.append(at) if isinstance(one, h5py.Dataset) else None)
    name = name.strip("/")
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        raise ValueError(
            f"it has no data set {name!r}; it has: {', '.join(names) or 'none'}. Name one as "
            "'file.h5:name'"
        )
    return file[name]
