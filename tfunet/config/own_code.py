"""Words for errors that a user's own program raises. Imports no TensorFlow."""

import linecache
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfunet.config.kinds import INSTALLED, LIBRARY

COLOUR = re.compile(r"\x1b\[[\d;]*m")
LONGEST = 600
# What a worker tells apart: memory that is full, and errors of ours, which say all.
OTHERS = ("MemoryError", "ResourceExhaustedError")
OURS = ("tfunet", "tf_native", "hvd")


def explain(error: BaseException, what: str, file: str) -> None:
    """Raise a ValueError that tells of an error in a user's program, and of the line it is at.

    It returns where the error has a meaning of its own.

    Args:
        error: What the program raised.
        what: Said first: what was called, with which arguments.
        file: The program's file; files beside it are the user's, too.
    """
    kind = type(error)
    if kind.__name__ in OTHERS or kind.__module__.partition(".")[0] in OURS:
        return
    said = ": ".join(filter(None, (kind.__name__, _words(error))))
    raise ValueError(f"{what} {said}{_place(error, file)}") from error


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as it is written, with the arguments shortened."""
    shown = ", ".join(f"{key}={value!r:.80}" for key, value in arguments.items())
    return f"{name}({shown})"


def _words(error: BaseException) -> str:
    try:
        text = str(error.msg or "") if isinstance(error, SyntaxError) else str(error)
    except Exception:  # Its __str__ may be a user's own.
        text = ""
    lines = [line.strip() for line in COLOUR.sub("", text).splitlines() if line.strip()]
    return "; ".join(lines)[:LONGEST].rstrip(".")


def _place(error: BaseException, file: str) -> str:
    """Return the line of the user's program at which an error arose, ", in FILE, line N: code."."""
    # Code in eval and exec has the file name "<string>"; the line that calls them says more.
    named = error.filename if isinstance(error, SyntaxError) else None
    if isinstance(error, SyntaxError) and isinstance(named, str) and Path(named).is_file():
        return _line(named, error.lineno if isinstance(error.lineno, int) else 0)
    places = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [place for place in places if _is_own(place[0], file)]
    return _line(*own[-1]) if own else "."


def _line(file: str, number: int) -> str:
    if number < 1:
        return f", in {Path(file).name}."
    code = linecache.getline(file, number).strip()
    return f", in {Path(file).name}, line {number}{f': {code}' if code else ''}"


def _is_own(path: str, file: str) -> bool:
    """Return whether a file is the user's program, or lies beside it and is no library."""
    if path == file or not file:
        return bool(file)
    libraries = (LIBRARY, *INSTALLED, str(Path(__file__).parents[1]))
    is_library = any(Path(path).is_relative_to(folder) for folder in libraries)
    return not is_library and Path(path).is_relative_to(Path(file).parent)
