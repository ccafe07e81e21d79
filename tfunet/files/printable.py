"""Text from outside on one line: in a terminal, a table, a job script. No TensorFlow."""

import re
import unicodedata
from typing import Final

# Control characters, marks that change the direction of text, separators of lines, and halves of
# characters. A tab and a newline are control characters too.
HIDDEN: Final = ("Cc", "Cf", "Zl", "Zp", "Cs")
# Spreadsheets begin a formula with these, some also with their wide forms. What has an apostrophe
# before them gets another, so that all texts are read back as they were.
FORMULA: Final = re.compile("'*[=+@\uff1d\uff0b\uff0d\uff20-]")
# What to do about the name of a file that is none of UTF-8.
NO_UTF8: Final = (
    "its name is no UTF-8, and cannot be written into a record. Rename it, such as with "
    "convmv -f latin1 -t utf8 --notest FILE"
)


def is_utf8(name: str) -> bool:
    """Whether a name can be written: Python reads other bytes as halves of characters."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def check_utf8(name: str) -> None:
    """Raise ValueError for the name of a file that cannot be written."""
    if not is_utf8(name):
        raise ValueError(f"{printable(name)}: {NO_UTF8}.")


def is_printable(text: str) -> bool:
    """Whether a text has neither newlines nor other characters that a terminal acts on."""
    return text.isprintable() or not any(map(_is_hidden, text))


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with such characters written as Python does: "\n", "\x1b", "\u202e".

    Characters in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(character)[1:-1] if _is_hidden(character) and character not in keep else character
        for character in text
    )


def cell_of(text: str) -> str:
    """Return a text as a cell of a CSV file that no spreadsheet takes for a formula.

    It gets an apostrophe before it, as is usual, if it begins with = + - @ and is no number.
    """
    text = printable(text)
    if len(text) < 2 or not FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def text_of(cell: str) -> str:
    """Return the text that a cell was made of."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in HIDDEN
