"""Text from outside on one line: in a terminal, a table, a job script. No TensorFlow."""

import unicodedata
from typing import Final

# Control characters, marks that change the direction of text, separators of lines, and halves of
# characters. A tab and a newline are control characters too.
HIDDEN: Final = ("Cc", "Cf", "Zl", "Zp", "Cs")
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

    Those in `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(character)[1:-1] if _is_hidden(character) and character not in keep else character
        for character in text
    )


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in HIDDEN
