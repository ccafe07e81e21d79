"""Progress on a terminal, and only there. Imports no TensorFlow."""

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, final

from tqdm import tqdm

from tfunet.files.printable import printable

Item = TypeVar("Item")

LINE_SECONDS = 60.0
TERMINAL_VARIABLE = "TFUNET_TERMINAL"
FORMATTED = warnings.formatwarning


def shows_progress() -> bool:
    """Whether standard error is a terminal; under the supervisor a variable says so."""
    return sys.stderr.isatty() or os.environ.get(TERMINAL_VARIABLE) == "1"


@final
class Minutes:
    """Says when it is time for a line without a terminal: once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def have_passed(self) -> bool:
        """Whether a minute has passed since the beginning, or since this was last true."""
        now = self._clock()
        if now - self._last < LINE_SECONDS:
            return False
        self._last = now
        return True


@contextmanager
def decoding_bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (cases done, cases in all) that draws the progress of decoding."""
    # Nothing is drawn for cases in the cache, or if another process decodes.
    bar = tqdm(desc="Decoding", unit="case", delay=1, leave=False, disable=not shows_progress())
    minutes = Minutes()

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if bar.disable and minutes.have_passed():
            print(f"Decoding: {done} of {total} cases", flush=True)

    with bar:
        yield show


def reading(
    what: str, noun: str, minutes: Minutes | None = None
) -> Callable[[Collection[Item]], Iterator[Item]]:
    """Return a function that wraps what is read, and shows on standard error how far it is.

    Without a terminal that is a line at the beginning, and one a minute. `what` is read, such as
    "masks", and is counted in `noun`, such as "file".
    """

    def wrapped(items: Collection[Item]) -> Iterator[Item]:
        if shows_progress():
            yield from tqdm(items, desc=f"Reading {what}", unit=noun)
            return
        total = counted(len(items), noun)
        print(f"Reading {what}: {total}", file=sys.stderr, flush=True)
        clock = minutes or Minutes()
        for done, item in enumerate(items):
            if clock.have_passed():
                print(f"Reading {what}: {done} of {total}", file=sys.stderr, flush=True)
            yield item

    return wrapped


def lines_of(text: object) -> str:
    """Return a text of several lines for a terminal, which acts on nothing in it."""
    return printable(str(text), keep="\n\t")


def show_messages_safely() -> None:
    """Have what Python, TensorFlow and other libraries warn of and log act on no terminal either.

    They name files and cases, too: Matplotlib has the title of a picture in a warning.
    """
    warnings.formatwarning = _formatted
    logging.setLogRecordFactory(_record)


def _formatted(*given: Any, **more: Any) -> str:
    return lines_of(FORMATTED(*given, **more))


def _record(*given: Any, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord(*given, **more)
    with suppress(TypeError, ValueError, KeyError):  # A library's own mistake; logging tells it.
        record.msg, record.args = lines_of(record.getMessage()), None
    return record


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def counted(number: int, noun: str) -> str:
    """Return "1 trial", "3 trials" or "2 classes"."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")
