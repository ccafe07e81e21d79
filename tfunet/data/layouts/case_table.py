"""A CSV or TSV file with a row for each case. Imports no TensorFlow."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfunet.config.refs import near_match
from tfunet.data.defects import Defect
from tfunet.data.layouts.case_files import Case

KEYS = ("file", "key", "group", "keep")


class CaseTable:
    """Which cases to use, and which group each belongs to.

    Args:
        root: The data set's folder.
        options: `file`, relative to `root`; `key`, the column that holds the case ids; and
            optionally `group`, a column, and `keep`, column to the values of the rows to use.
    """

    def __init__(self, root: Path, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in KEYS:
                raise ValueError(
                    f"table= has an unknown key {name!r}.{near_match(name, KEYS)} "
                    f"Known: {', '.join(KEYS)}."
                )
        if "file" not in options or "key" not in options:
            raise ValueError("table= needs file (CSV or TSV) and key (its column of case ids).")
        self.file = str(options["file"])
        self._group = options.get("group")
        self._keep = {
            column: list(map(str, [wanted] if isinstance(wanted, str | int) else wanted))
            for column, wanted in options.get("keep", {}).items()
        }
        rows = _read_rows(root / self.file)
        self._columns = list(rows[0])
        for column in [options["key"], *([self._group] if self._group else []), *self._keep]:
            self._check_column(column)
        self._by_id = {row[options["key"]]: row for row in rows}
        if len(self._by_id) < len(rows):
            raise ValueError(
                f"{root / self.file}: column {options['key']!r} names a case twice. Each case "
                "needs a row of its own."
            )

    def select(self, cases: Sequence[Case]) -> tuple[list[Case], list[Defect]]:
        """Return the cases that the table keeps, with its groups, and the defects."""
        chosen: list[Case] = []
        defects: list[Defect] = []
        for case in cases:
            row = self._by_id.get(case.case_id)
            if row is None:
                what = f"{self.file} has no row {case.case_id!r}"
                defects.append(Defect(file=case.images[0], what=what, case_id=case.case_id))
            elif self._kept(row):
                chosen.append(replace(case, group=row[self._group]) if self._group else case)
        known = {case.case_id for case in cases}
        defects += [
            Defect(file=self.file, what=f"row {case_id!r} has no complete case", case_id=case_id)
            for case_id, row in self._by_id.items()
            if case_id not in known and self._kept(row)
        ]
        if not chosen and not defects:
            raise ValueError(
                f"table.keep={self._keep} leaves no case of {self.file}. Allow more values."
            )
        return chosen, defects

    def rows(self) -> list[tuple[str, Mapping[str, str]]]:
        """Return the key and the row of each case that the table keeps."""
        return [(key, row) for key, row in self._by_id.items() if self._kept(row)]

    def cell(self, row: Mapping[str, str], column: str) -> str:
        """Return the value of a row in a column."""
        self._check_column(column)
        return row[column]

    def value(self, case_id: str, column: str) -> str:
        """Return the value of a case's row in a column."""
        self._check_column(column)
        return self._by_id[case_id][column]

    def _kept(self, row: Mapping[str, str]) -> bool:
        return all(row[column] in wanted for column, wanted in self._keep.items())

    def _check_column(self, column: str) -> None:
        if column not in self._columns:
            raise ValueError(
                f"{self.file} has no column {column!r}.{near_match(str(column), self._columns)} "
                f"It has: {', '.join(self._columns)}."
            )


def _read_rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"The table {path} cannot be read ({error}).") from error
    if not rows:
        raise ValueError(f"The table {path} has no rows.")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError(f"The table {path} has rows with more or fewer fields than its header.")
    return rows
