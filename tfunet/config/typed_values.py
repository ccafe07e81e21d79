"""Reads settings into their declared types: one error, with what came and what is allowed.

A type is declared once, as the annotation of a dataclass's field or of a function's argument.
msgspec converts the values; this module says in words what is wrong. Imports no TensorFlow.
"""

import contextlib
import functools
import math
import numbers
import os
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from tfunet.config.words import near_match
from tfunet.files.typed import parse_toml

T = TypeVar("T")

ONE = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
MANY = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}
EXAMPLES = {int: "[1, 2]", float: "[0.5, 2.0]", str: '["a", "b"]'}


def read(cls: type[T], table: Mapping[str, Any], title: str, advice: str = "") -> T:
    """Return the dataclass `cls` with the values of a table that the file calls `title`.

    Raises ValueError for an unknown key, with the near match, for a missing one, both followed by
    `advice`, and for a value of another type.
    """
    kinds = kinds_of(cls)
    check_keys(table, kinds, title, advice)
    values = {key: convert(f"{key} in {title}", kinds[key], table[key]) for key in table}
    for key in fields(cast("Any", cls)):
        if key.name not in table and key.default is key.default_factory is MISSING:
            raise ValueError(f"{title} has no {key.name}.{advice}")
    return cls(**values)


def kinds_of(cls: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass."""
    return _kinds_of(cls)


@functools.cache
def _kinds_of(cls: type) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {key.name: hints[key.name] for key in fields(cast("Any", cls))}


def check_keys(
    table: Collection[str], known: Collection[str], title: str, advice: str = ""
) -> None:
    """Raise ValueError, with the near match and `advice`, for a key that is not a known one."""
    for key in table:
        if key not in known:
            raise ValueError(
                f"Unknown key {key!r} in {title}.{near_match(key, known)} "
                f"Known: {', '.join(known)}.{advice}"
            )


def convert(label: str, kind: Any, value: Any) -> Any:
    """Return a value as `kind`, a type; a ValueError calls it `label`."""
    for given in (value, plain(value)):
        with contextlib.suppress(msgspec.ValidationError):
            converted = msgspec.convert(given, kind)
            if not _has_nan(converted):
                return converted
    advice = _advice(label, kind, value)
    raise ValueError(f"{label} must be {allowed(kind)}, got {shown(value)}.{advice}")


def convert_fields(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all fields of a dataclass in their types. Raises ValueError."""
    try:  # All at once: a sweep has thousands of configurations.
        converted = msgspec.structs.asdict(msgspec.convert(values, _struct(cls)))
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError):
        converted = {}
    kinds = kinds_of(cls)
    if not converted or any(map(_has_nan, converted.values())):
        converted = {key: convert(key, kind, values[key]) for key, kind in kinds.items()}
    # What a table holds has no type: it must be what a file could have.
    tables = _tables(cls)
    return {key: plain(value) if key in tables else value for key, value in converted.items()}


@functools.cache
def _tables(cls: type) -> frozenset[str]:
    """Return the fields that hold tables."""
    return frozenset(key for key, kind in kinds_of(cls).items() if _holds_tables(kind))


@functools.cache
def _struct(cls: type) -> type[msgspec.Struct]:
    return msgspec.defstruct(cls.__name__, list(kinds_of(cls).items()))


def _has_nan(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    return isinstance(value, float) and math.isnan(value)


def plain(value: Any) -> Any:
    """Return a value as a file could have it: numbers of NumPy and paths are Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, tuple):
        return tuple(plain(entry) for entry in value)
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def shown(value: Any) -> str:
    """Return what came, for an error."""
    if isinstance(value, str):
        return f"the text {value!r:.80}" if value else "an empty value"
    return f"{value!r:.80}"


def parts(kind: Any) -> tuple[Any, ...]:
    """Return the types that a union joins, without None, or the type alone."""
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(part for part in get_args(kind) if part is not types.NoneType)
    return (kind,)


def is_table(kind: Any) -> bool:
    """Whether a type is a mapping."""
    return isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping)


def entries(kind: Any) -> Any:
    """Return the type of the entries of a list's type; None for another type."""
    is_list = isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Collection)
    return None if is_table(kind) or not is_list else get_args(kind)[0]


def _holds_tables(kind: Any) -> bool:
    """Whether a type is a mapping, or a list of mappings."""
    return is_table(kind) or (entries(kind) is not None and is_table(entries(kind)))


def allowed(kind: Any) -> str:
    """Return in words what a type allows; None is what a setting is by default."""
    either = parts(kind)
    return " or ".join(_allowed(part) for part in either if part is not int or float not in either)


def _allowed(kind: Any) -> str:
    if is_table(kind):
        value = get_args(kind)[1]
        inside = "value" if value is Any else allowed(value).partition(", such as")[0]
        return f"a table, {{ key = {inside} }}"
    inner = entries(kind)
    if inner is None:
        return ONE.get(kind, getattr(kind, "__name__", str(kind)))
    if is_table(inner):
        return 'a list of tables, such as [{ name = "..." }]'
    if entries(inner) is not None:
        return "a list of lists"
    words = " or ".join(MANY.get(part, "values") for part in parts(inner))
    example = EXAMPLES.get(parts(inner)[0])
    return f"a list of {words}" + (f", such as {example}" if example else "")


def _advice(label: str, kind: Any, value: Any) -> str:
    """Return how to write what was given as a text."""
    if not isinstance(value, str) or not value:
        return ""
    key = label.partition(" ")[0]
    lists = [entries(part) for part in parts(kind) if entries(part) is not None]
    if value[0] not in "[{" and any(is_table(inner) for inner in lists):
        return f' Write it as a list of tables: {key} = [{{ name = "{value}" }}]'
    if value[0] not in "[{" and str in lists:
        return f' Write it as a list: {key} = ["{value}"]'
    for text in (value, f"[{value}]") if lists else (value,):
        try:
            read_value = convert("", kind, parse_toml(f"value = {text}")["value"])
        except ValueError:
            continue
        if isinstance(read_value, Sequence):
            return f" Write it as a list: {key} = {text}, on a command line '{text}'"
        return f" Write it without quotes: {key} = {text}"
    return ""
