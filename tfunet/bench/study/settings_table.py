"""Reads a table of a study file into a dataclass, and names what is wrong in it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tfunet.config.refs import near_match

# Kind of a default to the types that a value may have, and their name.
KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
}


def read_settings(cls: type, table: Mapping[str, Any], title: str, advice: str = "") -> Any:
    """Return the dataclass `cls` with the values of a table that the file calls `title`.

    Raises ValueError for an unknown key, followed by `advice`, or for a value of another type.
    """
    defaults = {field.name: field.default for field in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in defaults:
            raise ValueError(
                f"Unknown key {key!r} in {title}.{near_match(key, defaults)} "
                f"Known: {', '.join(defaults)}.{advice}"
            )
        if isinstance(defaults[key], tuple):
            if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
                raise ValueError(f"{key} in {title} must be a list of texts, got {value!r}.")
            values[key] = tuple(value)
            continue
        # A default of None stands for a whole number.
        types, words = KINDS.get(type(defaults[key]), KINDS[int])
        if not isinstance(value, types) or isinstance(value, bool):
            raise ValueError(f"{key} in {title} must be {words}, got {value!r}.")
        values[key] = value
    return cls(**values)
