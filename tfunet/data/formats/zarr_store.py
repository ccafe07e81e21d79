"""Arrays in zarr stores, versions 2 and 3, and OME-NGFF images at full size, with zarr."""

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import FEWEST_PARTS, Region, Stored, num_chunks, plain

# Of UDUNITS-2, as OME-NGFF names them.
UNITS = {"nanometer": "nm", "micrometer": "µm", "millimeter": "mm", "meter": "m"}


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
    node = zarr.open(store, mode="r", path=name or None)
    if isinstance(node, zarr.Array):
        return node, plain(node.shape, node.dtype)
    # OME-NGFF 0.5 keeps its metadata under "ome", 0.4 beside other attributes.
    attributes = dict(node.attrs)
    images = attributes.get("ome", attributes).get("multiscales")
    if not images:
        names = sorted(node.keys())
        raise ValueError(
            f"it is a group and no OME-NGFF image; it has: {', '.join(names) or 'nothing'}. Name "
            "an array as 'store.zarr:name'"
        )
    level = images[0]["datasets"][0]
    array = node[level["path"]]
    axes = [_letter(axis) for axis in images[0].get("axes", "tczyx")]
    scales = [
        transform["scale"]
        for transform in level.get("coordinateTransformations", [])
        if transform["type"] == "scale"
    ]
    sizes = dict(zip(axes, scales[0], strict=True)) if scales else {}
    return array, Stored(
        shape=array.shape,
        axes="".join(axes),
        dtype=str(array.dtype),
        spacing={letter: float(sizes[letter]) for letter in "zyx" if letter in sizes},
        unit=_unit(images[0].get("axes", [])),
    )


def _check_blosc(array: Any) -> None:
    """Raise ValueError for a chunk that was cut off: Blosc would read on in foreign memory."""
    codecs = array.metadata.to_dict()
    if "blosc" not in str(codecs.get("compressor") or codecs.get("codecs")):
        return
    folder = Path(array.store_path.store.root) / array.store_path.path
    chunks = [file for file in folder.rglob("*") if file.is_file() and file.name[0].isdigit()]
    for chunk in chunks:
        with chunk.open("rb") as file:
            header = file.read(16)
        # Blosc's header: bytes 12 to 15 are the length of the whole.
        length = int.from_bytes(header[12:16], "little")
        if chunk.stat().st_size < max(length, 16):
            raise ValueError(f"chunk {chunk.relative_to(folder)} is truncated")


def _unit(axes: Any) -> str:
    """Return the unit of the x axis, where it is one of UNITS."""
    units = {_letter(axis): axis.get("unit", "") for axis in axes if isinstance(axis, dict)}
    return UNITS.get(units.get("x", ""), "")


def _letter(axis: Any) -> str:
    name = axis["name"] if isinstance(axis, dict) else axis
    return name.lower()[:1]
