"""Text from outside on one line: in a terminal, a table, a job script. No TensorFlow."""

import unicodedata
from typing import Final

# Control characters, marks that change the direction of text, separators of lines, and halves of
# characters. A tab and a newline are control characters too.
HIDDEN: Final = ("Cc", "Cf", "Zl", "Zp", "Cs")


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
