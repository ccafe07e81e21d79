"""Arrays in zarr stores, versions 2 and 3, and OME-NGFF images at full size, with zarr."""

import asyncio
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from tfunet.data.formats.claims import check_chunk, check_claim, check_folder, pointer
from tfunet.data.formats.container import split_container
from tfunet.data.formats.ngff import full_size, multiscale
from tfunet.data.formats.stored import FEWEST_PARTS, Region, Stored, num_chunks, plain
from tfunet.files.remote import fetched, is_on_server

LOOKED_AT = 16


@final
class _Chunks(LocalStore):
    """A folder of chunks. Those of a server are fetched, and checked, when they are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, read_only=True)
        self.check: Callable[[Path], None] = lambda chunk: None

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        await asyncio.to_thread(self._fetch, self.root / key)
        return await super().get(key, prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        ranges = list(key_ranges)
        for key in dict.fromkeys(key for key, _ in ranges):
            await asyncio.to_thread(self._fetch, self.root / key)
        return await super().get_partial_values(prototype, ranges)

    def _fetch(self, path: Path) -> None:
        if fetched(path):
            self.check(path)


def stored(path: Path) -> Stored:
    """Describe the array, or level 0 of the OME-NGFF image."""
    return _find(path)[1]


def decoded(path: Path) -> tuple[Stored, np.ndarray]:
    """Return what the array is, and all of it."""
    array, described = _find(path)
    _check_blosc(array)
    return described, np.asarray(array[...])


def region(path: Path) -> Region | None:
    """Return the reader of boxes; None for an array of a few chunks, which is read whole."""
    array, _ = _find(path)
    if num_chunks(array.shape, array.chunks) < FEWEST_PARTS:
        return None
    _check_blosc(array)
    return lambda box: np.asarray(array[box])


def _find(path: Path) -> tuple[Any, Stored]:
    store, name = split_container(path)
    if not store.is_dir():
        raise ValueError("a zarr store is a folder, and this is none")
    check_folder(store)
    node = zarr.open(_Chunks(store), mode="r", path=name or None)
    if isinstance(node, zarr.Array):
        array, described = node, plain(node.shape, node.dtype)
    elif image := multiscale(node):
        array, described = full_size(node, image)
    else:
        names = sorted(node.keys())
        raise ValueError(
            f"it is a group and no OME-NGFF image; it has: {', '.join(names) or 'nothing'}. Name "
            "an array as 'store.zarr:name'"
        )
    _check_array(array)
    return array, described


def _check_array(array: Any) -> None:
    """Raise ValueError for what is no pixels, and for more of them than the store may hold."""
    if array.dtype.kind not in "buif" or "pickle" in str(_codecs(array)):
        raise ValueError(f"values of type {array.dtype}; readable: whole and real numbers")
    files = [file for file in _folder(array).rglob("*") if file.is_file()]
    stored_bytes = sum(file.stat().st_size for file in files)
    check_claim(array.shape, array.dtype.itemsize, stored_bytes)
    for chunk in (array.chunks, array.shards or ()):
        check_claim(chunk, array.dtype.itemsize, stored_bytes, "a chunk")
    raw_bytes = math.prod(array.shards or array.chunks) * array.dtype.itemsize
    check_chunk(max([0, *(file.stat().st_size for file in files if _is_chunk(file))]), raw_bytes)
    for file in files[:LOOKED_AT]:  # Pointers come in all files of a store, or in none.
        if where := pointer(file):
            raise ValueError(f"{file.name}: it is {where}")


def _is_chunk(file: Path) -> bool:
    return file.name[0].isdigit()


def _codecs(array: Any) -> Any:
    metadata = array.metadata.to_dict()
    return [metadata.get(name) for name in ("compressor", "filters", "codecs")]


def _folder(array: Any) -> Path:
    return Path(array.store_path.store.root) / array.store_path.path


def _check_blosc(array: Any) -> None:
    """Raise ValueError for a chunk that was cut off: Blosc would read on in foreign memory."""
    if "blosc" not in str(_codecs(array)):
        return
    folder = _folder(array)
    chunks = [file for file in folder.rglob("*") if file.is_file() and _is_chunk(file)]
    for chunk in chunks:
        if not is_on_server(chunk):
            _check_chunk(chunk, folder)
    array.store_path.store.check = partial(_check_chunk, folder=folder)


def _check_chunk(chunk: Path, folder: Path) -> None:
    if not _is_chunk(chunk):
        return
    with chunk.open("rb") as file:
        header = file.read(16)
    # Blosc's header: bytes 12 to 15 are the length of the whole.
    length = int.from_bytes(header[12:16], "little")
    if chunk.stat().st_size < max(length, 16):
        raise ValueError(f"chunk {chunk.relative_to(folder)} is truncated")
    # Bytes 4 to 7: what it unpacks to.
    check_claim((int.from_bytes(header[4:8], "little"),), 1, len(header), "a chunk")
