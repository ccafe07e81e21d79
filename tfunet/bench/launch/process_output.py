"""Passes the output of a run's processes on: all of it to log files, some to the terminal.

The log gets complete lines; of a line that is redrawn (a progress bar) it gets the last state. The
terminal gets a progress bar at once, so that it moves. Messages of TensorFlow's C++ code go to the
log alone. No TensorFlow.
"""

import codecs
import re
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TextIO, final

from tfunet.files.atomic import WriteError, writing
from tfunet.process.terminal import lines_of

TAIL_LINES = 20
# In which the last words of a log are looked for.
LOG_BYTES = 2**20
# Messages of TensorFlow's C++ code, fatal ones excepted: "2024-05-01 12:00:00.000000: E file.cc".
NATIVE_MESSAGE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] |[IWE]\d{4} \d\d:\d\d:\d+\.\d+ "
    r"|WARNING: All log messages before absl::InitializeLog"
)
ERROR = "error: "
PIECE = re.compile(r"[^\r\n]*[\r\n]|[^\r\n]+")


@final
class Screen:
    """The terminal or notebook cell, which several processes share."""

    def __init__(self) -> None:
        self._owner: int | None = None
        self._mid_line = False

    def write(self, owner: int | None, target: TextIO, text: str) -> None:
        """Write at once; start a new line if another process left one unfinished."""
        if self._mid_line and owner != self._owner:
            text = "\n" + text
        try:
            target.write(text)
            target.flush()
        except UnicodeEncodeError:
            encoding = target.encoding
            target.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):
            # The reader has gone (`tfunet train | head`). The run goes on, and the log has it all.
            return
        self._owner = owner
        self._mid_line = not text.endswith("\n")

    def say(self, text: str) -> None:
        """Write a line of the supervisor."""
        self.write(None, sys.stderr, f"{lines_of(text)}\n")


@final
class Log:
    """The log file of one process, and its last lines."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def add(self, lines: Sequence[bytes]) -> None:
        """Write complete lines; raise WriteError on a full disk, and then only keep the tail."""
        self.tail.extend(line.decode(errors="replace") for line in lines[-TAIL_LINES:])
        if self._file.closed:
            return
        try:
            with writing(self.path):
                rest = b"".join(line + b"\n" for line in lines)
                while rest:
                    # A disk that fills up takes a part first, and refuses the rest.
                    rest = rest[self._file.write(rest) :]
        except WriteError:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; `tail` can still be read."""
        self._file.close()


@final
class Stream:
    """One pipe (standard output or error) of one process."""

    def __init__(
        self, log: Log, *, screen: Screen, target: TextIO | None, owner: int, prefix: str
    ) -> None:
        self._log = log
        self._screen = screen
        self._target = target
        self._owner = owner
        self._prefix = prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line = b""
        self._end = "\n"
        self._held = ""
        self._hiding = False

    def feed(self, data: bytes) -> None:
        """Pass on what was read from the pipe; WriteError comes from the log."""
        if self._target is not None:
            shown = self._shown(self._decoder.decode(data))
            if shown:
                self._screen.write(self._owner, self._target, shown)
        *lines, rest = (self._line + data).split(b"\n")
        # What begins with spaces may come in parts, such as a line of a traceback.
        self._line = rest
        if b"\r" in rest:
            self._line = _last_state(rest) + (b"\r" if rest.endswith(b"\r") else b"")
        if lines:
            self._log.add([_last_state(line) for line in lines])

    def finish(self) -> None:
        """End the pipe: write an unfinished line as a line."""
        if self._line.strip():
            self.feed(b"\n")

    def _shown(self, text: str) -> str:
        shown = []
        pieces = PIECE.findall(self._held + text)
        self._held = ""
        for piece in pieces:
            if self._prefix and self._end == "\n" and piece[-1] not in "\r\n":
                # With several processes, half a line waits for the rest: `print` writes a line in
                # parts, and those of another process may come in between.
                self._held = piece
                break
            if self._end in "\r\n":
                self._hiding = NATIVE_MESSAGE.match(piece) is not None
                if piece not in "\r\n" and not self._hiding:
                    shown.append(self._prefix)
            if not self._hiding:
                shown.append(piece)
            self._end = piece[-1]
        return "".join(shown)


def _last_state(line: bytes) -> bytes:
    """Return what a terminal shows of a line that carriage returns redrew."""
    states = (state for state in reversed(line.split(b"\r")) if state.strip())
    return next(states, b"")


def last_words(lines: Sequence[str]) -> str:
    """Return the last line that is not TensorFlow's: the error, after a traceback."""
    words = (line.strip() for line in reversed(lines) if not NATIVE_MESSAGE.match(line))
    return next((line for line in words if line), "")


def last_error(lines: Sequence[str]) -> str:
    """Return the error that a process of ours told last, of all its lines."""
    own = [line for line in lines if not NATIVE_MESSAGE.match(line)]
    first = max((at for at, line in enumerate(own) if line.startswith(ERROR)), default=len(own))
    return "\n".join(own[first:]).removeprefix(ERROR).rstrip()
