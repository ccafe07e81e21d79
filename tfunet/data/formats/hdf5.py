"""A data set in an HDF5 file, with h5py: the path is 'file.h5:name'."""

from dataclasses import replace
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
        return _described(_dataset(file, name))


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the data set is, and all of it."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        found = _dataset(file, name)
        return _described(found), found[()]


def region(path: Path) -> Region | None:
    """Return the reader of boxes; None for a data set of a few chunks, which is read whole."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        found = _dataset(file, name)
        place = found.name
        if found.chunks and num_chunks(found.shape, found.chunks) < FEWEST_PARTS:
            return None

    def read(box: tuple[slice, ...]) -> np.ndarray:
        # Opened anew for each box: an open file would outlive the image, and a fork.
        with h5py.File(file_path, "r") as file:
            return file[place][box]

    return read


def _described(dataset: Any) -> Stored:
    described = plain(dataset.shape, dataset.dtype)
    for name in ("_FillValue", "missing_value"):  # Of netCDF.
        value = np.ravel(dataset.attrs.get(name, ()))
        if value.size == 1 and value.dtype.kind in "iuf":
            nodata = float(value[0])
            return replace(described, nodata=nodata, nodata_from=f"its {name} is {nodata:g}")
    return described


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
