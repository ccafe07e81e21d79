"""A CSV or TSV file with a row for each case. Imports no TensorFlow."""

import codecs
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfunet.config.words import check_known, near_match
from tfunet.data.defects import Defect
from tfunet.data.formats.container import composed
from tfunet.data.layouts.case_files import CaseFiles
from tfunet.files.regular import read_bytes

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
            check_known("key of table=:", name, KEYS)
        if "file" not in options or "key" not in options:
            raise ValueError("table= needs file (CSV or TSV) and key (its column of case ids).")
        self.file = str(options["file"])
        self._group = options.get("group")
        self._keep = {
            column: list(map(str, wanted if isinstance(wanted, list | tuple) else [wanted]))
            for column, wanted in options.get("keep", {}).items()
        }
        key = options["key"]
        if not (root / self.file).exists():
            tables = [path.name for path in root.iterdir() if path.suffix in (".csv", ".tsv")]
            raise ValueError(
                f"There is no table {self.file!r} in the folder {str(root.absolute())!r}."
                f"{near_match(self.file, tables)} The path of a table is relative to root, or, for "
                'data = "csv", to the folder in which tfunet is started.'
            )
        self._columns, self._rows = read_table(root / self.file)
        for column in [key, *([self._group] if self._group else []), *self._keep]:
            self._check_column(column)
        self._ids = {row[key] for row in self._rows}
        self._by_id: dict[str, Mapping[str, str]] = {}
        for row in self._rows:
            if self._kept(row) and self._by_id.setdefault(row[key], row) is not row:
                raise ValueError(
                    f"{root / self.file}: column {key!r} names a case twice: {row[key]!r}. Each "
                    "case needs one row. Choose rows with keep=, such as keep = { rater = ['A'] }, "
                    "or name as key= a column in which they differ."
                )

    def select(self, cases: Sequence[CaseFiles]) -> tuple[list[CaseFiles], list[Defect]]:
        """Return the cases that the table keeps, with its groups, and the defects."""
        chosen: list[CaseFiles] = []
        defects: list[Defect] = []
        for case in cases:
            row = self._by_id.get(case.case_id)
            if case.case_id not in self._ids:
                what = f"{self.file} has no row {case.case_id!r}"
                defects.append(Defect(file=case.images[0], what=what, case_id=case.case_id))
            elif row is not None:
                chosen.append(replace(case, group=row[self._group]) if self._group else case)
        known = {case.case_id for case in cases}
        defects += [
            Defect(file=self.file, what=f"row {case_id!r} has no complete case", case_id=case_id)
            for case_id in self._by_id
            if case_id not in known
        ]
        if not chosen and not defects:
            raise self._nothing_kept()
        return chosen, defects

    def rows(self) -> list[tuple[str, Mapping[str, str]]]:
        """Return the key and the row of each case that the table keeps."""
        if not self._by_id:
            raise self._nothing_kept()
        return list(self._by_id.items())

    def cell(self, row: Mapping[str, str], column: str) -> str:
        """Return the value of a row in a column."""
        self._check_column(column)
        return row[column]

    def value(self, case_id: str, column: str) -> str:
        """Return the value of a case's row in a column."""
        self._check_column(column)
        return self._by_id[case_id][column]

    def _nothing_kept(self) -> ValueError:
        values = {column: sorted({row[column] for row in self._rows})[:8] for column in self._keep}
        held = "; ".join(f"{column!r} holds {', '.join(values[column])}" for column in values)
        return ValueError(
            f"keep={self._keep} leaves no case of {self.file}. Allow more values: {held}."
        )

    def _kept(self, row: Mapping[str, str]) -> bool:
        return all(row[column] in wanted for column, wanted in self._keep.items())

    def _check_column(self, column: str) -> None:
        if column not in self._columns:
            raise ValueError(
                f"{self.file} has no column {column!r}.{near_match(str(column), self._columns)} "
                f"It has: {', '.join(self._columns)}."
            )
        if self._columns.count(column) > 1:
            raise ValueError(f"{self.file} has several columns {column!r}. Rename all but one.")


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and rows of a table as a spreadsheet, pandas or an editor writes it.

    Fields are separated by commas, semicolons, tabs or bars. Spaces around a field and rows of
    empty fields do not count.
    """
    try:
        text = composed(_decoded(read_bytes(path)))
        separators = "\t,;|" if path.suffix.lower() == ".tsv" else ",;\t|"
        if text[:4] == "sep=":  # A spreadsheet's own first line.
            separators, text = text[4], text.partition("\n")[2]
        tables = _split_tables(text, separators)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"The table {path} cannot be read ({error}). Save it as CSV in UTF-8."
        ) from error
    unlike = []
    for (_, columns), *rows in tables:
        wide = [(line, _as_wide(fields, columns)) for line, fields in rows]
        others = [(*row, columns) for row in wide if len(row[1]) != len(columns)]
        if rows and not others:
            return columns, [dict(zip(columns, fields, strict=True)) for _, fields in wide]
        unlike += others
    if not unlike:
        raise ValueError(f"The table {path} has no rows.")
    line, fields, columns = unlike[0]
    raise ValueError(
        f"The table {path} has rows with more or fewer fields than its header: line {line} has "
        f"{len(fields)}, the header {len(columns)} ({', '.join(columns)}). Put a field that holds "
        "the separator in quotes."
    )


def _split_tables(text: str, separators: str) -> list[list[tuple[int, list[str]]]]:
    """Return the text's rows, with the numbers of their lines, by each separator that is in it.

    The separator that gives the most columns comes first. A table of one column has none.
    """
    tables, errors = [], []
    for separator in separators:
        # Strict: a quote that is never closed would swallow the rows after it.
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True
        )
        try:
            rows = [(reader.line_num, [field.strip() for field in fields]) for fields in reader]
        except csv.Error as error:
            errors.append(f"line {reader.line_num}: {error}")
        else:
            tables.append([(line, fields) for line, fields in rows if any(fields)])
    tables = sorted(filter(None, tables), key=lambda table: -len(table[0][1]))
    several = [table for table in tables if len(table[0][1]) > 1]
    if errors and not several:
        raise csv.Error(errors[0])
    return several or tables[:1]


def _decoded(content: bytes) -> str:
    """Return the text of a file in UTF-8, or as older spreadsheets write it."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252")
    if "\0" in text:
        raise csv.Error("it is not text")
    return text


def _as_wide(fields: list[str], columns: list[str]) -> list[str]:
    """Return a row as wide as the header, where only empty fields are too many or too few."""
    num_columns = len(columns)
    if not any(fields[num_columns:]):
        fields = fields[:num_columns]
    if not any(columns[len(fields) :]):
        fields = fields + [""] * (num_columns - len(fields))
    return fields
