"""Tables that say the sides or groups of the cases of a folder. Imports no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfunet.data.discovery.names import SIDES
from tfunet.data.layouts.case_table import read_table

GROUP_COLUMNS = (
    "group",
    "patient",
    "subject",
    "animal",
    "donor",
    "slide",
    "patient_id",
    "subject_id",
)


def find_table(
    folder: Path, case_ids: Sequence[str]
) -> tuple[dict[str, Any], list[str], str] | None:
    """Return the table of the folder that says sides or groups of the cases, if there is one."""
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.tsv")]):
        try:
            columns, rows = read_table(path)
        except ValueError:
            continue
        known = {column: {row[column] for row in rows} for column in columns}
        keys = [
            column
            for column in columns
            if set(case_ids) <= known[column] and len(known[column]) == len(rows)
        ]
        if not keys:
            continue
        options: dict[str, Any] = {"file": path.name, "key": keys[0]}
        for column in columns:
            sides = {value: SIDES.get(value.lower()) for value in known[column] if value}
            if {"train", "val"} <= set(sides.values()) and None not in sides.values():
                used = sorted(value for value, side in sides.items() if side in ("train", "val"))
                options |= {"group": column, "keep": {column: used}}
                held_out = [value for value in used if sides[value] == "val"]
                reason = f"Its column {column} has the split. Cases for tests are left out."
                return options, held_out, reason
        for column in columns:
            if column.lower() in GROUP_COLUMNS and len(known[column]) < len(rows):
                reason = f"Its column {column} says what a split must not divide."
                return {**options, "group": column}, [], reason
    return None
