"""Expands `~` in paths. No TensorFlow."""

from pathlib import Path


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
