"""What is asked of a server of files, and what a failure of it says. No TensorFlow."""

from __future__ import annotations

import calendar
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tfunet.files.urls import Url, without_secrets

# Seconds between the tries of one request: 31 in all.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.5)
TIMEOUT_SECONDS = 60
NUM_THREADS = 16
# Asking again cannot help: all other answers from 400 to 499.
TRANSIENT = (408, 425, 429)
LONGEST = 300
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Result = TypeVar("Result")


class RemoteError(RuntimeError):
    """A server that fails, or whose file is not what it was. The message says what to do.

    It is no ValueError and no OSError: the sample that was wanted is not to blame for it.
    """


class CutError(Exception):
    """A transfer ended before the file did."""


@dataclass(frozen=True)
class Version:
    """What tells one content of a file on a server from the next.

    Args:
        num_bytes: Its size.
        seconds: When it was changed (Unix time); 0 where the server does not say it.
        tag: The server's own mark of this content; empty where it has none.
    """

    num_bytes: int
    seconds: int
    tag: str = ""

    @property
    def stamp(self) -> int:
        """The time (ns) of a local file that stands for it: the second, and a hash of the tag."""
        return self.seconds * 10**9 + (_microseconds(self.tag) * 1000 if self.tag else 0)

    def is_stamped(self, facts: os.stat_result) -> bool:
        """Whether a local file stands for it. Some file systems keep whole seconds only."""
        stamps = (self.stamp, self.seconds * 10**9)
        return facts.st_size == self.num_bytes and facts.st_mtime_ns in stamps

    def __str__(self) -> str:
        return shown_version(self.num_bytes, self.seconds)


def shown_version(num_bytes: int, seconds: float) -> str:
    """Return a size and a time in words."""
    when = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{num_bytes} bytes" + (f" of {when}" if seconds else "")


def _microseconds(tag: str) -> int:
    """Return a number from 1 to 999999: 0 is that of a file system without parts of seconds."""
    return int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") % 999_999 + 1


class Transport(Protocol):
    """A way to the files of a server. Errors of files are FileNotFoundError, PermissionError."""

    def find(self, url: Url) -> dict[str, Version]:
        """Return all files below a URL, by relative names; "" is the URL, if it is a file."""

    def version(self, url: Url) -> Version:
        """Return what there is now."""

    def fetch(self, url: Url, target: Path) -> Version | None:
        """Write the content into a new file; return its version, where the answer says it."""

    def head(self, url: Url, num_bytes: int) -> bytes:
        """Return the first bytes of a file."""

    def server(self, url: Url) -> str:
        """Return who is asked, for messages."""


def seconds_of(changed: Any) -> int:
    """Return the Unix time of a datetime, a text (ISO, RFC 2822) or a number; 0 for nothing."""
    if isinstance(changed, str):
        try:
            changed = datetime.fromisoformat(changed)
        except ValueError:
            from email.utils import parsedate_to_datetime  # It imports sockets.

            changed = parsedate_to_datetime(changed)
    if isinstance(changed, datetime):
        return calendar.timegm(changed.utctimetuple())
    return int(changed or 0)


def attempted(transport: Transport, url: Url, what: str, ask: Callable[[], Result]) -> Result:
    """Return what a server answers, which is asked again where it may have been a hiccup.

    Raises FileNotFoundError, PermissionError and ValueError at once, and RemoteError after the last
    try.
    """
    for pause in (*PAUSES, None):
        try:
            return ask()
        except (FileNotFoundError, PermissionError, RemoteError, ValueError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise
            status = status_of(error)
            is_final = 400 <= (status or 0) < 500 and status not in TRANSIENT
            if pause is None or is_final:
                tries = "" if is_final else f", {len(PAUSES) + 1} times"
                raise RemoteError(
                    f"{url} cannot be {what}: the server {transport.server(url)} "
                    f"{answer(error)}{tries}. What is done is kept: the same command goes on."
                ) from error
        time.sleep(pause)
    raise AssertionError


def answer(error: BaseException) -> str:
    """Return what a server, or the way to it, said, on one line and without secrets."""
    status, said = status_of(error), " ".join(str(error).split())
    said = without_secrets(said or type(error).__name__)[:LONGEST].rstrip(".")
    return f"answered {status} ({said})" if status else f"did not answer ({said})"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in an error of any library; None without one."""
    for each in _causes(error):
        response = vars(each).get("response")
        if isinstance(response, Mapping):  # botocore
            return int(response["ResponseMetadata"]["HTTPStatusCode"])
        for name in ("status", "code", "status_code"):
            if isinstance(status := vars(each).get(name), int):
                return status
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
