"""Shards: files of many boxes of pixels, as zarr 3 stores them. Imports no TensorFlow.

A shard is that of zarr's codec "sharding_indexed": blobs, then for each its offset and length, then
a checksum. A blob is a box in C order, compressed by Blosc, then a checksum. zarr writes the
metadata and reads such an array, too; but for a box out of a shard it takes 1.2 ms, and these
lines 0.05.
"""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, final

import numpy as np

from tfunet.data.defects import BadFileError
from tfunet.files.regular import open_to_read

CODEC, LEVEL = "zstd", 3
CRC_BYTES = 4
MOST_AT_ONCE = 16 * 2**20
ABSENT = 2**64 - 1
# What must be installed; zarr is for those who write.
LIBRARIES = ("numcodecs", "google_crc32c")


@final
class ShardWriter:
    """Writes the blobs of a shard into an open file; those that are not put there are zeros."""

    def __init__(self, file: BinaryIO, num_blobs: int) -> None:
        self._file, self._end = file, 0
        self._index = np.full((num_blobs, 2), ABSENT, "<u8")

    def put(self, number: int, blob: bytes | None) -> None:
        """Write a blob; None is one of zeros."""
        if blob is not None:
            self._file.write(blob)
            self._index[number] = self._end, len(blob)
            self._end += len(blob)

    def finish(self) -> int:
        """Write the index, and return the bytes of the file."""
        index = _checked(self._index.tobytes())
        self._file.write(index)
        self._file.flush()
        return self._end + len(index)


def blob_of(array: np.ndarray) -> bytes | None:
    """Return the blob of an array; None where all of its bytes are zero."""
    from numcodecs import blosc

    array = np.ascontiguousarray(array)
    if not array.reshape(-1).view(np.uint8).any():
        return None
    shuffle = blosc.SHUFFLE if array.itemsize > 1 else blosc.NOSHUFFLE
    return _checked(blosc.compress(array, CODEC.encode(), LEVEL, shuffle))


def array_of(blob: bytes | None, dtype: str, shape: Sequence[int]) -> np.ndarray | None:
    """Return the array of a blob, whose checksum was right; ValueError for another array's."""
    from numcodecs import blosc

    if blob is None:
        return None
    wanted = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # Blosc's header: bytes 4 to 7 are the length of what it unpacks to.
    if int.from_bytes(blob[4:8], "little") != wanted:
        raise ValueError(f"a box of it is not of type {dtype} and shape {tuple(shape)}")
    return np.frombuffer(blosc.decompress(blob), dtype).reshape(shape)


@final
class Shards:
    """Reads arrays out of shards, each by its number.

    Args:
        place: Folder of the data set.
        kind: Which of its arrays.
        shape: Shape of an array.
        dtype: Its type, little-endian.
        num_blobs: Arrays in a shard.
        advice: What to do about a shard that cannot be read.
    """

    def __init__(
        self,
        place: Path,
        kind: str,
        shape: Sequence[int],
        dtype: str,
        *,
        num_blobs: int,
        advice: str,
    ) -> None:
        self._place, self._kind, self._shape, self._dtype = place, kind, tuple(shape), dtype
        self._num_blobs, self._advice = num_blobs, advice

    def read(self, numbers: Sequence[int]) -> Iterator[np.ndarray | None]:
        """Yield arrays, whose numbers ascend; None for one of zeros. Raises BadFileError."""
        by_shard = groupby(numbers, lambda number: number // self._num_blobs)
        for shard, several in by_shard:
            path = self._place / shard_name(self._kind, shard, len(self._shape))
            places = [number % self._num_blobs for number in several]
            try:
                for blob in read_blobs(path, self._num_blobs, places):
                    yield array_of(blob, self._dtype, self._shape)
            except (ValueError, RuntimeError, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise BadFileError(path, f"{reason}. {self._advice}") from error


def shard_name(kind: str, shard: int, num_axes: int) -> str:
    """Return the path of a shard: zarr's key of a chunk, cut along the first axis only."""
    return f"{kind}/c.{shard}{'.0' * num_axes}"


def read_blobs(path: Path, num_blobs: int, numbers: Sequence[int]) -> Iterator[bytes | None]:
    """Yield blobs without their checksums; None for one that is absent.

    Those that lie one behind another are read at once. Raises ValueError for a shard that is cut
    off or damaged, and OSError.
    """
    with open_to_read(path) as file:
        facts = os.fstat(file.fileno())
        index = _index(path, num_blobs, facts.st_size, facts.st_mtime_ns)
        places = index[list(numbers)].tolist()
        begin, content = 0, b""
        for at, (offset, length) in enumerate(places):
            if offset == ABSENT:
                yield None
                continue
            if not begin <= offset < begin + len(content):
                begin, end = offset, offset + length
                for next_offset, next_length in places[at + 1 :]:
                    if next_offset != end or end - begin > MOST_AT_ONCE:
                        break
                    end += next_length
                content = os.pread(file.fileno(), end - begin, begin)
            yield _unchecked(content[offset - begin : offset - begin + length], length, "a box")


@lru_cache(maxsize=256)
def _index(path: Path, num_blobs: int, num_bytes: int, changed: int) -> np.ndarray:
    """Return (blobs, 2): offset and length of each, of a file that is as it was."""
    length = num_blobs * 16 + CRC_BYTES
    if num_bytes < length:
        raise ValueError(f"the shard is cut off after {num_bytes} bytes")
    with open_to_read(path) as file:
        content = os.pread(file.fileno(), length, num_bytes - length)
    return np.frombuffer(_unchecked(content, length, "its index"), "<u8").reshape(num_blobs, 2)


def _checked(content: bytes) -> bytes:
    return content + _crc(content).to_bytes(CRC_BYTES, "little")


def _crc(content: bytes) -> int:
    import google_crc32c

    return google_crc32c.value(content)


def _unchecked(content: bytes, length: int, what: str) -> bytes:
    """Return content without its checksum; ValueError where it is wrong."""
    if len(content) != length or length < CRC_BYTES:
        raise ValueError(f"the shard is cut off: {what} has {len(content)} of {length} bytes")
    own, checksum = content[:-CRC_BYTES], content[-CRC_BYTES:]
    if _crc(own) != int.from_bytes(checksum, "little"):
        raise ValueError(f"the checksum of {what} is wrong: the file is damaged")
    return own
