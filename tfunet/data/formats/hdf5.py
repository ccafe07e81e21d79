"""A data set in an HDF5 file, with h5py: the path is 'file.h5:name'."""

import math
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tfunet.data.formats.claims import check_chunk, check_claim, check_regular
from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import FEWEST_PARTS, Region, Stored, num_chunks, plain

DEEPEST = 8  # Files that point to files.


def stored(path: Path) -> Stored:
    """Describe the data set from the file's header."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        found = _dataset(file, name)
        _check(file_path, found)
        return _described(found)


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the data set is, and all of it."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        found = _dataset(file, name)
        _check(file_path, found)
        return _described(found), found[()]


def region(path: Path) -> Region | None:
    """Return the reader of boxes; None for a data set of a few chunks, which is read whole."""
    file_path, name = split_container(path)
    with h5py.File(file_path, "r") as file:
        found = _dataset(file, name)
        _check(file_path, found)
        place = found.name
        if found.chunks and num_chunks(found.shape, found.chunks) < FEWEST_PARTS:
            return None

    def read(box: tuple[slice, ...]) -> np.ndarray:
        # Opened anew for each box: an open file would outlive the image, and a fork.
        with h5py.File(file_path, "r") as file:
            return _dataset(file, place)[box]

    return read


def _check(path: Path, dataset: Any) -> None:
    """Raise ValueError for pixels in foreign files, and for more than the file may hold."""
    if dataset.shape is None or dataset.dtype.kind not in "buif":
        raise ValueError(f"values of type {dataset.dtype}; readable: whole and real numbers")
    _check_filters(dataset)
    sources = _sources(path, dataset)
    for source in sources:
        if not source.resolve().is_relative_to(path.resolve().parent):
            raise ValueError(
                f"its pixels lie in {source}, outside its folder; copy them into this file, with "
                "'h5repack' or h5py"
            )
        check_regular(source)
    stored_bytes = int(dataset.id.get_storage_size())
    if dataset.is_virtual:  # It stores nothing itself.
        stored_bytes = sum(file.stat().st_size for file in (path, *sources))
    itemsize = dataset.dtype.itemsize
    check_claim(dataset.shape, itemsize, stored_bytes)
    if dataset.chunks:
        check_claim(dataset.chunks, itemsize, stored_bytes, "a chunk")
        sizes = [0]
        dataset.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
        check_chunk(max(sizes), math.prod(dataset.chunks) * itemsize)


def _check_filters(dataset: Any) -> None:
    """Raise ValueError for a compression that HDF5 does not have here."""
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    if all(h5py.h5z.filter_avail(code) for code, *_ in filters):
        return
    with suppress(ModuleNotFoundError):
        import_module("hdf5plugin")  # It adds the usual others.
    for code, *_, name in filters:
        if not h5py.h5z.filter_avail(code):
            raise ValueError(
                f"it is compressed with filter {code} ({name.decode() or 'no name'}), which HDF5 "
                "does not have here: pip install hdf5plugin, or rewrite the file where the filter "
                "is, with 'h5repack -f GZIP=4 IN OUT'"
            )


def _sources(path: Path, dataset: Any, depth: int = 0) -> list[Path]:
    """Return the other files in which the pixels of a data set lie, at any depth."""
    if depth > DEEPEST:
        raise ValueError("its pixels lie in files that point to each other")
    folder = path.parent
    found = [folder / name for name, _, _ in dataset.external or ()]
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        other = path if source.file_name == "." else folder / source.file_name
        if other != path:
            found.append(other)
        if not other.resolve().is_relative_to(folder.resolve()) or not other.is_file():
            continue
        with h5py.File(other, "r") as file:
            inner = file.get(source.dset_name)
            if isinstance(inner, h5py.Dataset):
                found += _sources(other, inner, depth + 1)
    return found


def _described(dataset: Any) -> Stored:
    described = plain(dataset.shape, dataset.dtype)
    for name in ("_FillValue", "missing_value"):  # netCDF's names.
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
    # Relative names of attached files start at this one, not at the current folder.
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_efile_prefix(str(Path(file.filename).resolve().parent).encode())
    return h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))
