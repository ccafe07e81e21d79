"""Progress on a terminal, and only there. Imports no TensorFlow."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from tfunet.files.printable import printable

TERMINAL_VARIABLE = "TFUNET_TERMINAL"


def shows_progress() -> bool:
    """Whether standard error is a terminal; under the supervisor a variable says so."""
    return sys.stderr.isatty() or os.environ.get(TERMINAL_VARIABLE) == "1"


@contextmanager
def decoding_bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (cases done, cases in all) that draws the progress of decoding."""
    # Nothing is drawn for cases in the cache, or if another process decodes.
    bar = tqdm(desc="Decoding", unit="case", delay=1, leave=False, disable=not shows_progress())

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    with bar:
        yield show


def lines_of(text: object) -> str:
    """Return a text of several lines for a terminal, which acts on nothing in it."""
    return printable(str(text), keep="\n\t")


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def counted(number: int, noun: str) -> str:
    """Return "1 trial" or "3 trials"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
