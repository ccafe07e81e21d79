"""The log of a store: what is known of each case, a line for each, in the order of finding it.

A process appends lines while others read them. Imports no TensorFlow.
"""

import contextlib
import fcntl
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np

from tfunet.data.case_signs import CaseSigns
from tfunet.data.preprocess import recorded_statistics
from tfunet.data.stored_case import FLOAT, NARROW, CaseFacts
from tfunet.files.regular import open_regular

LOG = "cases.jsonl"
PLACES = "foreground.bin"


@dataclass(frozen=True)
class _Signs:
    """What a line holds of `CaseSigns`."""

    content: str
    constant: list[int]
    notes: list[tuple[str, str, str]]
    label_pixels: list[int]
    ends: list[float]


@dataclass(frozen=True)
class _Line:
    """A line of the log; see `CaseFacts`.

    Args:
        case: The index of the case.
        places: Where its foreground begins in the file of places, in bytes.
        pixels: Where its image and its mask begin, in bytes; empty if they are not stored.
    """

    case: int
    extent: list[int]
    dtype: str
    statistics: list[list[float]] | None
    signs: _Signs
    foreground: list[int]
    places: int
    pixels: list[int]
    defect: str


_decoder = msgspec.json.Decoder(_Line)


@final
class CaseLog:
    """The log in a store's folder, and the file with the places of foreground voxels.

    Args:
        home: The folder.
        num_cases: Cases of the data set.
        rank: Their spatial axes.
        num_labels: Labels from 1.
    """

    def __init__(self, home: Path, num_cases: int, rank: int, num_labels: int) -> None:
        self.facts: list[CaseFacts | None] = [None] * num_cases
        # Where image and mask of each case begin; none where they are not stored.
        self.pixels: list[tuple[int, int] | None] = [None] * num_cases
        self._home, self._rank, self._num_labels = home, rank, num_labels
        self._places: list[int] = [0] * num_cases
        self._read_bytes = 0
        self._unpublished: list[bytes] = []
        self._lock = threading.RLock()

    def refresh(self) -> None:
        """Read the lines that were appended meanwhile. What is no line of ours is passed over."""
        with self._lock:
            try:
                descriptor = open_regular(self._home / LOG, os.O_RDONLY)
            except FileNotFoundError:
                return
            with os.fdopen(descriptor, "rb") as file:
                if os.fstat(file.fileno()).st_size <= self._read_bytes:
                    return
                file.seek(self._read_bytes)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            for line in whole.splitlines():
                try:
                    self._take(_decoder.decode(line))
                except (msgspec.DecodeError, ValueError):
                    continue

    def add(
        self,
        case: int,
        facts: CaseFacts,
        places: Sequence[np.ndarray] = (),
        pixels: tuple[int, int] | None = None,
    ) -> int:
        """Take a case, with the places of its foreground; return the bytes that this writes.

        Other processes know of it after `publish`.
        """
        stored = b"".join(each.astype(_index_type(facts.extent)).tobytes() for each in places)
        with self._lock:
            first = _append(self._home / PLACES, stored) if stored else 0
            line = _line(case, facts, first, pixels)
            self._take(_decoder.decode(line))
            self._unpublished.append(line)
        return len(stored) + len(line) + 1

    def publish(self) -> None:
        """Append the lines of the cases that were added, once what they tell of is on the disk."""
        with self._lock:
            lines, self._unpublished = self._unpublished, []
            if lines:
                with contextlib.suppress(FileNotFoundError):
                    places = open_regular(self._home / PLACES, os.O_RDONLY)
                    try:
                        os.fsync(places)
                    finally:
                        os.close(places)
                # What a killed process did not finish must not swallow the first one.
                _append(self._home / LOG, b"\n" + b"\n".join(lines) + b"\n")

    def places(self, case: int, label: int, number: int) -> int:
        """Return the index of a foreground voxel of a label from 0 in its flattened case."""
        facts = self.facts[case]
        if facts is None:
            return 0
        size = _index_type(facts.extent).itemsize
        at = self._places[case] + (sum(facts.foreground[:label]) + number) * size
        with os.fdopen(open_regular(self._home / PLACES, os.O_RDONLY), "rb") as file:
            return int.from_bytes(os.pread(file.fileno(), size, at), "little")

    def forget(self, case: int) -> None:
        """Take a case as unknown."""
        self.facts[case] = self.pixels[case] = None

    def forget_defects(self) -> None:
        """Take cases that could not be used as unknown: their files may be mended."""
        for case, facts in enumerate(self.facts):
            if facts is not None and facts.defect:
                self.forget(case)

    def has_places(self, case: int, num_bytes: int) -> bool:
        """Return whether a file of places of this size holds those of a case."""
        facts = self.facts[case]
        if facts is None:
            return True
        size = _index_type(facts.extent).itemsize
        return self._places[case] + sum(facts.foreground) * size <= num_bytes

    def _take(self, line: _Line) -> None:
        extent = tuple(line.extent)
        is_ours = (
            0 <= line.case < len(self.facts)
            and len(extent) == self._rank
            and min(extent) >= 0
            and line.dtype in (*NARROW, FLOAT)
            and len(line.pixels) in (0, 2)
            and (line.defect or len(line.foreground) == self._num_labels)
            and min((line.places, *line.pixels, *line.foreground)) >= 0
        )
        if not is_ours:
            raise ValueError("a line of another data set")
        self.facts[line.case] = CaseFacts(
            extent=extent,
            dtype=line.dtype,
            statistics=None if line.statistics is None else recorded_statistics(line.statistics),
            signs=CaseSigns.from_json(vars(line.signs)),
            foreground=tuple(line.foreground),
            defect=line.defect,
        )
        self._places[line.case] = line.places
        if line.pixels:
            self.pixels[line.case] = (line.pixels[0], line.pixels[1])


def _index_type(extent: Sequence[int]) -> np.dtype:
    """Return the type of the index of a voxel in a flattened case."""
    return np.dtype("<u4" if math.prod(extent) < 2**32 else "<u8")


def _line(case: int, facts: CaseFacts, places: int, pixels: tuple[int, int] | None) -> bytes:
    statistics: Any = facts.statistics
    return msgspec.json.encode(
        {
            "case": case,
            "extent": facts.extent,
            "dtype": facts.dtype,
            "statistics": None
            if statistics is None
            else [np.atleast_1d(np.asarray(values, float)).tolist() for values in statistics],
            "signs": facts.signs.to_json(),
            "foreground": facts.foreground,
            "places": places,
            "pixels": pixels or (),
            "defect": facts.defect,
        }
    )


def _append(path: Path, content: bytes) -> int:
    """Append to a file that other processes append to, too; return where the content begins."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with os.fdopen(open_regular(path, flags), "ab", buffering=0) as file:
        with contextlib.suppress(OSError):  # Some file systems have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        begin, rest = file.seek(0, os.SEEK_END), content
        while rest:
            rest = rest[file.write(rest) or 0 :]
        return begin
