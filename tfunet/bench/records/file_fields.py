"""The fields of the JSON files of a sweep, with their types, and how such files are read."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from tfunet.files.typed import (
    Amount,
    Count,
    FieldError,
    Name,
    Positive,
    RecordError,
    check_fields,
    read_json,
)

T = TypeVar("T")
Table = dict[str, Any]

PLAN = {
    "study": Annotated[str, msgspec.Meta(min_length=1)],
    "base": dict[str, Any],
    "trials": list[Any],
    "working_folder": str,
    "samples": list[str],
    "objective": str,
    "direction": Literal["maximize", "minimize"],
}
PLANNED_TRIAL = {
    "id": Name,
    "cell": Count,
    "repeat": Positive,
    "scaling": Literal["strong", "weak"],
    "settings": dict[str, Any],
    "changes": dict[str, Any],
}
SKIPPED = {"settings": dict[str, Any], "reason": str}
MEASUREMENT = {"when": str, "median_seconds": Amount, "spread": Amount, "cores": Count | None}
ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255)]
FAILURE = {"reason": str, "exit_code": ExitCode | None}


def tables_of_kind(
    value: Any, kinds: Mapping[str, Any], name: str, field: str, faults: list[str]
) -> tuple[Mapping[str, Any], ...]:
    """Return the tables of a list that have these types; say of the others what is wrong."""
    if not isinstance(value, list):
        faults.append(f"{name} cannot be used: {field}: expected a list, got {value!r:.40}")
        return ()
    tables = []
    for number, table in enumerate(value):
        try:
            check_fields(table, kinds, f"{field}[{number}]")
            tables.append(table)
        except FieldError as error:
            faults.append(f"{name} cannot be used: {error}")
    return tuple(tables)


def read_parsed(path: Path, parse: Callable[[Table], T]) -> T | None:
    """Return what `parse` makes of a JSON table; None if it is missing. Raises RecordError."""
    table = read_json(path, Table)
    try:
        return None if table is None else parse(table)
    except FieldError as error:
        raise RecordError(path, error) from error


def of_kinds(kinds: Mapping[str, Any]) -> Callable[[Table], Table]:
    """Return what checks the fields of a table, for `read_parsed`."""

    def parse(table: Table) -> Table:
        check_fields(table, kinds)
        return table

    return parse


def table_or_fault(path: Path, faults: list[str], place: str = "") -> Table:
    """Return a JSON table; an empty one, after a word in `faults`, if it cannot be used."""
    try:
        return read_json(path, Table) or {}
    except RecordError as error:
        faults.append(f"{place}: {error.row}" if place else error.row)
        return {}
