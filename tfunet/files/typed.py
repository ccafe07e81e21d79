"""Reads JSON and CSV files that anybody may have written. No TensorFlow.

What comes out has the types that were asked for. Anything else is a RecordError, which names the
file and the field.
"""

import contextlib
import csv
import datetime
import json
import math
import os
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from tfunet.files.printable import text_of
from tfunet.files.regular import read_text

T = TypeVar("T")

# Deeper ones, and larger numbers, break what reads them.
MOST_NESTED = 50
MOST_WHOLE = 2**63 - 1
MOST = 1e15

# What reading an archive of files or arrays raises if it is damaged.
DAMAGED = (
    *(ValueError, TypeError, KeyError, EOFError, RecursionError, NotImplementedError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error),
)

# Keys of records whose values may be paths.
PATH_KEYS = ("working_folder", "root", "file", "data", "model", "cache_dir", "swap_disk")

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_WHOLE)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST_WHOLE)]
# A finite number that is not negative: seconds, shares, energy.
Amount = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Finite = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
# The name of a folder in a folder, which leads nowhere else and means nothing to a shell, to an
# engine of workflows, or at the start of an option.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+,-]*\Z", max_length=200)]


class FieldError(ValueError):
    """A value has the wrong type or range. The message names its field."""


class RecordError(ValueError):
    """A file of a record cannot be used.

    Args:
        path: The file.
        fault: What is wrong with it; names the field.
    """

    def __init__(self, path: Path, fault: object) -> None:
        super().__init__(f"{path} cannot be used: {fault}")
        self.path, self.fault = path, str(fault)

    @property
    def row(self) -> str:
        """The reason in the row of a run whose folder is known."""
        return f"{self.path.name} cannot be used: {self.fault}"


def typed(value: Any, kind: type[T], field: str = "") -> T:
    """Return a JSON value, checked and converted to `kind`: a type, or a dataclass of types.

    Keys that a dataclass does not have are left out; its fields must not have defaults, which
    msgspec leaves to the class. Raises FieldError; `field` names the value.
    """
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except UnicodeEncodeError as error:
        raise FieldError(
            f"{field}: holds {error.object!a}, which is no text".lstrip(": ")
        ) from error
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at ")
        inner = place.strip("`").removeprefix("$").replace("[...]", "[]")
        name = f"{field}{inner}".lstrip(".")
        words = f"{fault[:1].lower()}{fault[1:]}".replace("`", "")
        raise FieldError(f"{name}: {words}" if name else words) from error


def check_fields(values: Any, kinds: Mapping[str, Any], field: str = "") -> None:
    """Raise FieldError unless `values` is a table whose fields have these types.

    Missing fields and further ones are allowed.
    """
    table = typed(values, dict[str, Any], field)
    for name, kind in kinds.items():
        if name in table:
            typed(table[name], kind, f"{field}.{name}" if field else name)


def check_known_fields(values: Any, kinds: Mapping[str, Any]) -> None:
    """Raise FieldError, as `check_fields`, also for further fields."""
    check_fields(values, kinds)
    if unknown := [name for name in values if name not in kinds]:
        raise FieldError(
            f"{unknown[0]!r:.60} is no key of this version of tfunet. Use the version that wrote it"
        )


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return the typed content of a JSON file; None if it is missing. Raises RecordError."""
    text = read_record(path)
    return None if text is None else parse_json(text, kind, path)


def parse_json(text: str, kind: type[T], path: Path) -> T:
    """Return the typed content of a JSON text that lies in `path`. Raises RecordError."""
    try:
        value = json.loads(text)
        _check_plain(value)
        return typed(value, kind)
    except (ValueError, RecursionError) as error:
        raise RecordError(path, error) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML table whose values are those of JSON; raise ValueError for anything else."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise FieldError(f"it is nested more than {MOST_NESTED} deep") from None
    _check_plain(table)
    return table


def toml_text(path: Path) -> str:
    """Return the text of a TOML file. Raises FieldError for other encodings than UTF-8."""
    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        raise FieldError("it is not UTF-8; save it as UTF-8") from error
    if text.startswith("\ufeff"):
        raise FieldError("it begins with a byte order mark; save it as UTF-8 without one")
    return text


def read_record(path: Path) -> str | None:
    """Return the text of a file; None if it is missing.

    Raises RecordError for what is no regular file, cannot be read, is too large or is not UTF-8.
    """
    try:
        return read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise RecordError(path, "it is a link to nothing") from None
        return None
    except OSError as error:
        raise RecordError(path, error.strerror or error) from error
    except UnicodeDecodeError as error:
        raise RecordError(path, f"it is not UTF-8 at byte {error.start}") from error


def typed_rows(path: Path, kinds: Mapping[str, Callable[[str], Any]]) -> Iterator[dict[str, Any]]:
    """Yield the complete rows of a CSV file, with these columns; none if the file is missing.

    A function of `kinds` turns a text into a value, or raises ValueError. An incomplete last line
    is left out: its writer died there, or is still writing it. Raises RecordError, which names line
    and column, at the first wrong row.
    """
    reader = _reader(path)
    try:
        columns = reader.fieldnames
        if columns is not None and (missing := [name for name in kinds if name not in columns]):
            raise RecordError(path, f"it has no column {missing[0]}")
        for row in reader:
            yield {
                name: _cell(kind, row[name], f"line {reader.line_num}, {name}")
                for name, kind in kinds.items()
            }
    except (csv.Error, FieldError) as error:
        raise RecordError(path, error) from error


def column_names(path: Path) -> list[str]:
    """Return the columns of a CSV file; none if it is missing. Raises RecordError."""
    return list(_reader(path).fieldnames or ())


def _reader(path: Path) -> "csv.DictReader[str]":
    lines = (read_record(path) or "").split("\n")[:-1]
    reader = csv.DictReader(f"{line}\n" for line in lines)
    try:
        columns = reader.fieldnames
    except csv.Error as error:
        raise RecordError(path, error) from error
    reader.fieldnames = None if columns is None else [*map(text_of, columns)]
    return reader


def whole(text: str) -> int:
    """Return a count of a CSV file."""
    return typed(int(text), Count)


def amount(text: str) -> float:
    """Return a finite number of a CSV file that is not negative."""
    return typed(float(text), Amount)


def finite(text: str) -> float:
    """Return a finite number of a CSV file."""
    return typed(float(text), Finite)


def number(text: str) -> float:
    """Return a number of a CSV file; it may be NaN or infinite, as a loss may.

    One that is too large to reckon with counts as infinite.
    """
    value = float(text)
    return math.copysign(math.inf, value) if abs(value) > MOST else value


def number_or_none(text: str) -> float | None:
    """Return a number of a CSV file; None for an empty field."""
    return number(text) if text else None


def _cell(kind: Callable[[str], Any], text: str | None, place: str) -> Any:
    if text is None:
        raise FieldError(f"{place}: the row ends before it")
    try:
        return kind(text_of(text))
    except ValueError as error:
        raise FieldError(f"{place}: {error}") from error


def shown_path(path: str) -> str:
    """Return a path as text, also if its bytes are not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _shown(key: Any, value: Any) -> Any:
    # Python has such bytes of a path as surrogates, and so writes and reads it.
    is_path = key in PATH_KEYS and isinstance(value, str)
    with contextlib.suppress(UnicodeEncodeError):
        return shown_path(value) if is_path else value
    return value


def _check_plain(value: Any) -> None:
    """Raise FieldError for what JSON can say but no program here can use."""
    waiting = [(value, 1)]
    while waiting:
        inner, depth = waiting.pop()
        if depth > MOST_NESTED:
            raise FieldError(f"it is nested more than {MOST_NESTED} deep")
        if isinstance(inner, dict):
            waiting += [(key, depth + 1) for key in inner]
            waiting += [(_shown(key, entry), depth + 1) for key, entry in inner.items()]
        elif isinstance(inner, list):
            waiting += [(entry, depth + 1) for entry in inner]
        elif isinstance(inner, datetime.date | datetime.time):
            raise FieldError(f"it has the date or time {inner}: write it as text, in quotes")
        elif isinstance(inner, int) and abs(inner) > 2 * MOST_WHOLE + 1:
            raise FieldError("it has a whole number of more than 64 bits")
        elif isinstance(inner, str) and not inner.isascii():
            try:
                inner.encode()
            except UnicodeEncodeError as error:
                raise FieldError("it has a text that is not Unicode") from error
