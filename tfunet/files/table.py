"""A CSV file that grows by complete lines. No TensorFlow."""

import csv
import errno
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from tfunet.files.atomic import write_atomic, writing
from tfunet.files.printable import cell_of, text_of
from tfunet.files.regular import open_regular
from tfunet.files.typed import RecordError, read_record


@final
class Table:
    """A CSV file that grows by complete lines. A line is in the file when `append` returns.

    Args:
        path: The file; created if it is missing.
        columns: Names of the columns. The first one is a number (step, epoch) that counts from 1.
        last: Rows of an earlier attempt are kept up to this number; with 0 all are dropped.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, last: int = 0) -> None:
        self.path = path
        self.columns = tuple(columns)
        write_atomic(path, csv_line(columns) + _rows_up_to(path, self.columns, last))
        with writing(path):
            self._file = open_regular(path, os.O_WRONLY | os.O_APPEND)

    def append(self, row: Mapping[str, object]) -> None:
        """Add one row, with a value for every column. After a WriteError nothing is added."""
        if row.keys() != set(self.columns):
            raise ValueError(
                f"A row of {self.path.name} needs {', '.join(self.columns)}; got {', '.join(row)}."
            )
        line = csv_line([row[column] for column in self.columns]).encode()
        with writing(self.path):
            size = os.fstat(self._file).st_size
            try:
                # A disk that is nearly full writes the start of a line and raises no error.
                if os.write(self._file, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._file, size)
                raise

    def close(self) -> None:
        """Sync the rows to the disk, so that a later result.json never outlives them."""
        with writing(self.path):
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, as text; none if the file is missing.

    An incomplete last line is left out: its writer died there, or is still writing it. Raises
    RecordError for a file that is no table.
    """
    try:
        rows = csv.DictReader(_complete_lines(path))
        return [
            {text_of(key): text_of(cell or "") for key, cell in row.items() if key is not None}
            for row in rows
        ]
    except csv.Error as error:
        raise RecordError(path, error) from error


def csv_line(values: Iterable[object]) -> str:
    """Return values as a line of a CSV file: one line, whatever the values hold, and no formula."""
    line = io.StringIO()
    cells = [cell_of(value) if isinstance(value, str) else value for value in values]
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _complete_lines(path: Path) -> list[str]:
    lines = (read_record(path) or "").split("\n")
    return [f"{line}\n" for line in lines[:-1]]


def _rows_up_to(path: Path, columns: tuple[str, ...], last: int) -> str:
    if last < 1:
        return ""
    header, *rows = _complete_lines(path) or [""]
    if header != csv_line(columns):
        raise ValueError(
            f"{path} has the columns {header.strip() or '(none)'}, but this run writes "
            f"{','.join(columns)}. Start the run in another folder."
        )
    return "".join(row for row in rows if _number_of(row, path) <= last)


def _number_of(row: str, path: Path) -> int:
    first = row.partition(",")[0]
    # int() takes spaces, signs and any script's digits, too.
    if not re.fullmatch("[0-9]{1,18}", first):
        raise RecordError(path, f"a row begins with {first!r:.40}, and not with a number")
    return int(first)
