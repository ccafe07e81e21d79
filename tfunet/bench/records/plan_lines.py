"""The trials of a search: a line each beside plan.json, which is not written anew for every one."""

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import msgspec

from tfunet.files.atomic import writing
from tfunet.files.regular import MOST_BYTES, open_regular, open_to_read
from tfunet.files.typed import FieldError, RecordError, check_fields, parse_json

LINES = "plan.jsonl"
TRIAL, SKIPPED, GONE = "trial", "skipped", "gone"
Line = dict[str, Any]


def add_line(folder: Path, kind: str, value: Any) -> None:
    """Add a trial, a skipped cell, or the name of a trial that is gone. The folder is locked."""
    path = folder / LINES
    line = json.dumps({kind: value}).encode() + b"\n"
    with writing(path):
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            # A process was killed in the middle of a line.
            torn = bool(size) and os.pread(descriptor, 1, size - 1) != b"\n"
            if os.write(descriptor, b"\n" * torn + line) != len(line) + torn:
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


@final
class PlanLines:
    """The lines of a folder, of which each is read once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LINES
        self._read_bytes = 0

    def new(self) -> list[Line]:
        """Return the complete lines that came since the last call. Raises RecordError."""
        try:
            with open_to_read(self._path) as file:
                file.seek(self._read_bytes)
                text = file.read(MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise RecordError(self._path, error.strerror or error) from error
        end = text.rfind(b"\n") + 1
        self._read_bytes += end
        lines = []
        for line in text[:end].splitlines():
            if line.startswith(b"{") and line.endswith(b"}"):  # Others were torn.
                lines.append(self._checked(line.decode(errors="replace")))
        return lines

    def _checked(self, text: str) -> Line:
        line = parse_json(text, Line, self._path)
        try:
            check_fields(line, {TRIAL: Line, SKIPPED: Line, GONE: str})
        except FieldError as error:
            raise RecordError(self._path, error) from error
        return line


def grown(trials: Iterable[Any], skipped: Any, lines: Iterable[Line]) -> tuple[list[Any], Any]:
    """Return the trials and the skipped cells of a plan with those of the lines."""
    lines = list(lines)
    gone = {str(line[GONE]) for line in lines if GONE in line}
    every = [*trials, *(line[TRIAL] for line in lines if TRIAL in line)]
    kept = [entry for entry in every if not (isinstance(entry, dict) and entry.get("id") in gone)]
    more = [line[SKIPPED] for line in lines if SKIPPED in line]
    return kept, [*skipped, *more] if isinstance(skipped, list) else skipped


def with_only(text: str, name: str) -> str:
    """Return the text of a plan without the trials that do not hold a name; itself if it is odd."""
    mark = json.dumps(name).encode()
    try:
        fields: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries = msgspec.json.decode(fields["trials"], type=list[msgspec.Raw])
    except (KeyError, RecursionError, msgspec.MsgspecError):
        return text
    chosen = [entry for entry in entries if mark in bytes(entry)]
    return msgspec.json.encode({**fields, "trials": chosen, "skipped": []}).decode()
