"""Features of the records of a TFRecord file: the path is 'FILE:17@image/encoded'.

Pixels without a format have their type and shape behind the name, '17@image[uint8:height:width:3]',
where a length is a number or the name of a feature that holds it, or several. Read without
TensorFlow, whose import takes seconds.
"""

import importlib
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.formats import FORMATS, SIGNATURES
from tfunet.data.formats.container import split_container
from tfunet.data.formats.stored import Stored, plain
from tfunet.files.regular import open_to_read

# A record is its length (8 bytes), a checksum of it (4), the data, and a checksum of them (4).
HEAD, TAIL = 12, 4
MASK_DELTA = 0xA282EAD8
ENCODED = ("PNG", "JPEG", "WebP", "TIFF")
GZIP, ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_PLACE = re.compile(r"(\d+)@(.+?)(?:\[(\w+)((?::[^:\[\]]+)+)\])?")


def stored(path: Path, *, labels: bool = False) -> Stored:
    """Describe the pixels of a feature."""
    described, _ = _read(path, "stored", labels)
    return described


def decoded(path: Path, *, labels: bool = False) -> tuple[Stored, np.ndarray]:
    """Return what the pixels of a feature are, and all of them."""
    return _read(path, "decoded", labels)


def _read(path: Path, what: str, labels: bool) -> tuple[Stored, Any]:
    file, inside = split_container(path)
    match = _PLACE.fullmatch(inside)
    if match is None:
        raise ValueError(f"{inside!r} names no feature of a record, such as 17@image/encoded")
    number, name, dtype, lengths = match.groups()
    features = features_of(file, int(number))
    content = value_of(features, name)
    if dtype is not None:
        array = _raw(content, dtype, _shape(features, lengths[1:].split(":")))
        return plain(array.shape, array.dtype), array
    encoded = content[0] if isinstance(content, list) and len(content) == 1 else b""
    kind = next((kind for kind in ENCODED if _is_of(kind, encoded)), None)
    if kind is None:
        raise ValueError(
            f"it is no image as {', '.join(ENCODED)} encode it. Say how its pixels are laid out: "
            'image_raw = { dtype = "uint8", shape = ["height", "width", 3] }, and mask_raw'
        )
    suffix = SIGNATURES[kind][0][0]
    module = importlib.import_module(FORMATS[suffix])
    with tempfile.NamedTemporaryFile(suffix=suffix) as copy:  # Decoders take files.
        copy.write(encoded)
        copy.flush()
        try:
            found = getattr(module, what)(Path(copy.name), labels=labels)
        except Exception as error:
            raise ValueError(str(error).replace(copy.name, name)) from error
    return found if what == "decoded" else (found, None)


def _is_of(kind: str, content: bytes) -> bool:
    _, at, marks = SIGNATURES[kind]
    return any(content[at:].startswith(mark) for mark in marks)


def _raw(content: list[bytes] | np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return pixels of this type, little-endian, and shape."""
    wanted = np.dtype(dtype).newbyteorder("<")
    values = b"".join(content) if isinstance(content, list) else content.astype(wanted).tobytes()
    needed = int(np.prod(shape)) * wanted.itemsize
    if len(values) != needed:
        raise ValueError(f"it has {len(values)} bytes, and {dtype} of shape {shape} takes {needed}")
    return np.frombuffer(values, wanted).reshape(shape)


def _shape(features: Mapping[str, memoryview], lengths: list[str]) -> tuple[int, ...]:
    shape: list[int] = []
    for length in lengths:
        if length.isdigit():
            shape.append(int(length))
            continue
        values = value_of(features, length)
        if isinstance(values, list) or values.dtype.kind != "i":
            raise ValueError(f"the feature {length!r} must hold whole numbers: lengths of axes")
        shape += map(int, values)
    return tuple(shape)


def value_of(features: Mapping[str, memoryview], name: str) -> list[bytes] | np.ndarray:
    """Return the values of a feature: texts, float32 or int64. ValueError where it is not there."""
    if name not in features:
        known = ", ".join(sorted(features)) or "none"
        raise ValueError(f"the record has no feature {name!r}; it has: {known}")
    # tf.train.Feature: a list of bytes (1), float (2) or int64 (3), each in its field 1.
    for kind, values in _fields(features[name]):
        if not isinstance(values, memoryview):
            break
        parts = [part for field, part in _fields(values) if field == 1]
        if kind == 1:
            return [bytes(part) for part in parts if isinstance(part, memoryview)]
        if kind == 2:
            return np.frombuffer(b"".join(map(bytes, parts)), "<f4")
        if kind == 3:
            several = [_varints(part) if isinstance(part, memoryview) else part for part in parts]
            return np.array([value for part in several for value in np.atleast_1d(part)], np.int64)
    raise ValueError(f"the feature {name!r} has no value")


def features_of(file: Path, number: int) -> Mapping[str, memoryview]:
    """Return the features of a record by name. Raises ValueError for a damaged one."""
    facts = file.stat()
    return _features(file, number, facts.st_size, facts.st_mtime_ns)


# The image and the mask are in one record.
@lru_cache(maxsize=2)
def _features(file: Path, number: int, num_bytes: int, changed: int) -> Mapping[str, memoryview]:
    starts, fault = record_starts(file, num_bytes, changed)
    if number >= len(starts) - 1:
        there = f"there are {len(starts) - 1}"
        raise ValueError(fault or f"it has no record {number}: {there}")
    start, length = int(starts[number]) + HEAD, int(np.diff(starts)[number]) - HEAD - TAIL
    with open_to_read(file) as opened:
        content = os.pread(opened.fileno(), length + TAIL, start)
    data, checksum = content[:length], content[length:]
    if len(checksum) < TAIL or _masked_crc(data) != int.from_bytes(checksum, "little"):
        raise ValueError(f"the checksum of record {number} is wrong: the file is damaged")
    try:
        return dict(_named(memoryview(data)))
    except (ValueError, IndexError, struct.error) as error:
        raise ValueError(f"record {number} is no tf.train.Example") from error


@lru_cache(maxsize=2**16)
def record_starts(file: Path, num_bytes: int, changed: int) -> tuple[np.ndarray, str]:
    """Return where each record of a file of this size and time starts, and where the last one ends.

    The second value says what is wrong behind it, if anything is.
    """
    starts, fault = [0], ""
    with open_to_read(file) as opened:
        descriptor = opened.fileno()
        while (at := starts[-1]) < num_bytes:
            head = os.pread(descriptor, HEAD, at)
            length, checksum = head[:8], head[8:]
            number = len(starts) - 1
            if len(head) == HEAD and not _is_head(length, checksum):
                fault = _compressed(file, head) if at == 0 else ""
                fault = fault or (
                    f"the checksum of the length of record {number} is wrong: the file is damaged, "
                    "or no TFRecord file"
                )
                break
            end = at + HEAD + int.from_bytes(length, "little") + TAIL
            if len(head) < HEAD or end > num_bytes:
                fault = f"it is cut off in record {number}"
                break
            starts.append(end)
    return np.array(starts), fault


def _compressed(file: Path, head: bytes) -> str:
    """Say what to do with a compressed file; "" for another one."""
    if head.startswith(GZIP):
        return (
            "it is compressed with GZIP, so no record is found without those before it. Unpack it "
            f"once, under a new name: gzip -dc < {file.name} > NAME.tfrecord"
        )
    if head.startswith(ZLIB):
        return (
            "it is compressed with ZLIB. Write it without compression, or with GZIP and unpack it"
        )
    return ""


def _is_head(length: bytes, checksum: bytes) -> bool:
    return _masked_crc(length) == int.from_bytes(checksum, "little")


def _masked_crc(content: bytes) -> int:
    import google_crc32c

    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def _named(example: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield the features of a tf.train.Example."""
    for field, features in _fields(example):
        if field != 1 or not isinstance(features, memoryview):
            continue
        for _, entry in _fields(features):
            if not isinstance(entry, memoryview):
                raise ValueError("a feature is no entry of a map")
            pair = dict(_fields(entry))
            yield bytes(pair[1]).decode(), memoryview(pair.get(2, b""))


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message of Protocol Buffers, on the wire."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield field, np.uint64(value).astype(np.int64)
            continue
        length = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            length, at = _varint(message, at)
        if length is None or at + length > len(message):
            raise ValueError("the message is damaged")
        yield field, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at


def _varints(packed: memoryview) -> np.ndarray:
    """Return all numbers of a packed field, int64."""
    septets = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(septets < 128) + 1
    if not len(ends):
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    places = np.arange(ends[-1]) - np.repeat(starts, ends - starts)
    shifted = (septets[: ends[-1]] & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, starts).view(np.int64)
