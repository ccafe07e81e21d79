"""Where users keep files, and how much of their disk is ours. No TensorFlow."""

import os
from pathlib import Path

CACHE_VARIABLE = "TFUNET_CACHE"
LIMIT_VARIABLE = "TFUNET_CACHE_LIMIT"
DEFAULT_LIMIT = "100GiB"
UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def cache_home() -> Path:
    """Return the folder of the cache: $TFUNET_CACHE, else ~/.cache/tfunet."""
    return expand_home(os.environ.get(CACHE_VARIABLE) or "~/.cache/tfunet")


def limit_bytes() -> int:
    """Return the most bytes of all data sets together: $TFUNET_CACHE_LIMIT, else 100 GiB."""
    text = os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT
    number, unit = text[:-3].strip(), text[-3:]
    try:
        limit = int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        limit = 0
    if limit <= 0:
        raise ValueError(
            f"${LIMIT_VARIABLE} must be a size in {', '.join(UNITS)}, such as {DEFAULT_LIMIT}, "
            f"got {text!r}."
        )
    return limit


def expand_home(path: str | Path) -> Path:
    """Return a path with `~` and `~USER` expanded; ValueError where nobody knows that home.

    An empty text is no path: it would be the current folder.
    """
    if not str(path):
        raise ValueError("A path is empty. Give a name, or '.' for the current folder.")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"The home folder in {str(path)!r} is not known. Write the whole path, or set $HOME."
        ) from error
