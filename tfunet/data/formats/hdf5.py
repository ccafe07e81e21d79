"""A data set in an HDF5 file, with h5py: the path is 'file.h5:name'."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import FEWEST_PARTS, Region, Stored, num_chunks, plain


def stored(path: Path) -> Stored:
    """Describe the data set from the file's header."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        dataset = _dataset(file, name)
        return plain(dataset.shape, dataset.dtype)


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the data set is, and all of it."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        dataset = _dataset(file, name)
        return plain(dataset.shape, dataset.dtype), dataset[()]


def region(path: Path) -> Region | None:
    """Return the reader of boxes; None for a data set of a few chunks, which is read whole."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        dataset = _dataset(file, name)
        place = dataset.name
        if dataset.chunks and num_chunks(dataset.shape, dataset.chunks) < FEWEST_PARTS:
            return None

    def read(box: tuple[slice, ...]) -> np.ndarray:
        # Opened anew for each box: an open file would outlive the image, and a fork.
        with h5py.File(file_path, "r") as file:
            return file[place][box]

    return read


def _dataset(file: Any, name: str) -> Any:
    names: list[str] = []
    file.visititems(lambda at, node: names.append(at) if isinstance(node, h5py.Dataset) else None)
    name = name.strip("/")
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        raise ValueError(
            f"it has no data set {name!r}; it has: {', '.join(names) or 'none'}. Name one as "
            "'file.h5:name'"
        )
    return file[name]
