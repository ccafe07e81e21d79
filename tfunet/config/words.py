"""Words that every reader of settings needs: near matches, and what a docstring says of a key."""

import difflib
import inspect
import re
from collections.abc import Iterable


def near_match(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known word, or an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_known(kind: str, given: str, known: Iterable[str]) -> None:
    """Raise ValueError, with the near match, for a word that is not among the known ones."""
    known = list(known)
    if given not in known:
        raise ValueError(
            f"Unknown {kind} {given!r}.{near_match(given, known)} Known: {', '.join(known)}."
        )


def check_reference(kind: str, ref: str) -> None:
    """Raise ValueError for a reference without a module, or without what is in it."""
    module, _, attribute = ref.rpartition(":")
    if not module or not attribute:
        raise ValueError(
            f"The {kind} {ref!r} names {'nothing in a module' if module else 'no module'}. Write "
            "'package.module:attribute' or 'file.py:attribute'."
        )


def title_of(documented: object) -> str:
    """Return the first sentence of a docstring, without its full stop."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split()).rstrip(".")


def descriptions(documented: object) -> dict[str, str]:
    """Return what the section "Args:" of a docstring says of each argument."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(documented) or "", re.M | re.S)
    entries = re.findall(r"^    \**(\w+): (.*(?:\n     .*)*)", section[1] if section else "", re.M)
    return {name: " ".join(text.split()) for name, text in entries}
