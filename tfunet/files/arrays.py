"""Arrays and facts about them in one file (.npz), which is data and no program. No TensorFlow."""

import json
import math
import os
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfunet.files.atomic import replacing
from tfunet.files.regular import open_to_read
from tfunet.files.typed import FieldError, RecordError

FACTS = "facts"
# A small file can unpack to a large one.
MOST_BYTES = 2**28
MEMBER = ".npy"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write a complete .npz file or none. Raises WriteError."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with replacing(path) as partial:
        np.savez_compressed(partial, **{FACTS: text}, **arrays)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return arrays and facts; None if the file is missing. Raises RecordError."""
    try:
        arrays = load_arrays(path, MOST_BYTES)
        facts = json.loads(arrays.pop(FACTS).tobytes())
        if not isinstance(facts, dict):
            raise FieldError("its facts are no table")
    except FileNotFoundError:
        return None
    except FieldError as error:
        raise RecordError(path, error) from error
    except Exception as error:  # Whatever is wrong in a zip file, an array or JSON.
        raise RecordError(path, FieldError(f"it cannot be read ({error})")) from error
    return arrays, facts


def load_arrays(
    path: Path, most: int | None = None, names: Container[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file. None takes more memory than the file has bytes for it.

    Raises OSError, or one of tfunet.files.typed.DAMAGED.

    Args:
        most: Bytes that all arrays may have together; by default those of the file, which is for
            files that are not compressed.
        names: Names of the arrays to read; by default all.
    """
    with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
        most = os.fstat(file.fileno()).st_size if most is None else most
        members = {
            member.filename.removesuffix(MEMBER): member
            for member in archive.infolist()
            if names is None or member.filename.removesuffix(MEMBER) in names
        }
        if sum(member.file_size for member in members.values()) > most:
            raise FieldError(f"it unpacks to more than {most / 2**20:.3g} MiB")
        return {name: _array(archive, member, name) for name, member in members.items()}


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of an .npz file, which is read to see that it is whole.

    Raises OSError, or one of tfunet.files.typed.DAMAGED.
    """
    with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
        if (damaged := archive.testzip()) is not None:
            raise FieldError(f"{damaged} has other bytes than were written")
        shapes = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(MEMBER)
            with archive.open(member) as content:
                shapes[name] = _header(content, member, name)[0]
        return shapes


def each_array(path: Path, names: Iterable[str]) -> Iterator[np.ndarray]:
    """Yield arrays of an .npz file, none of which is in memory when the next one is read."""
    with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
        for name in names:
            yield _array(archive, archive.getinfo(name + MEMBER), name)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> np.ndarray:
    with archive.open(member) as file:
        shape, is_fortran, dtype = _header(file, member, name)
        content = np.frombuffer(bytearray(file.read()), dtype)
        return content.reshape(shape, order="F" if is_fortran else "C")


def _header(
    file: IO[bytes], member: zipfile.ZipInfo, name: str
) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape of an array, whether it is in Fortran's order, and its type."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if not member.filename.endswith(MEMBER) or read is None:
        raise FieldError(f"{name} is no array")
    shape, is_fortran, dtype = read(file)
    claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
    if dtype.hasobject or claimed != there:
        raise FieldError(
            f"{name} claims to be {dtype} of shape {shape}, {claimed} bytes, and has {there}"
        )
    return shape, is_fortran, dtype
