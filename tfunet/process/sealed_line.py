"""A connection between two processes of a run that both know its secret. No TensorFlow.

    chief                        process i
      ----> a random number
            <---- a random number
      <---> lines: seal, JSON object

A seal is an HMAC of the sender, the number of the line and its text. Its key is made of the secret
and both random numbers. So a stranger can neither send a line, nor repeat, alter or return one, and
no line is parsed before its seal is right. The text itself is not encrypted.
"""

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import socket
import threading
import time
from typing import Any, final

NUMBER = re.compile(rb"[0-9a-f]{64}")
# Before the other end has shown that it knows the secret.
MOST_BYTES_OF_STRANGERS = 4096
MOST_BYTES = 1 << 20


@final
class SealedLine:
    """A connection on which each line is a sealed JSON object; errors of sending are ignored."""

    def __init__(self, connection: socket.socket, secret: bytes, *, is_chief: bool) -> None:
        # Firewalls drop connections that are silent for hours.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = connection
        self._secret = secret
        self._is_chief = is_chief
        self._key = b""
        self._buffer = b""
        self._sent = 0
        self._received = 0
        self._sending = threading.Lock()

    def open(self, deadline: float) -> bool:
        """Exchange random numbers; return whether the other end sent one."""
        ours = secrets.token_hex(32).encode()
        self._write(ours + b"\n")
        theirs = self._read_line(deadline)
        if theirs is None or not NUMBER.fullmatch(theirs):
            return False
        numbers = ours + theirs if self._is_chief else theirs + ours
        self._key = hmac.digest(self._secret, numbers, hashlib.sha256)
        return True

    def send(self, message: dict[str, Any]) -> None:
        """Send one object."""
        text = json.dumps(message).encode()
        with self._sending:
            seal = self._seal(self._is_chief, self._sent, text)
            self._sent += 1
            self._write(seal + b" " + text + b"\n")

    def receive(self, deadline: float | None = None) -> dict[str, Any] | None:
        """Return the next object; None if there is none with a right seal before the deadline."""
        line = self._read_line(deadline)
        if line is None:
            return None
        seal, _, text = line.partition(b" ")
        if not hmac.compare_digest(seal, self._seal(not self._is_chief, self._received, text)):
            return None
        self._received += 1
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def is_gone(self) -> bool:
        """Return whether the other end has closed the connection."""
        self._connection.setblocking(False)
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._connection.setblocking(True)

    def host(self) -> str:
        """Return the address of this end."""
        return str(self._connection.getsockname()[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _seal(self, is_of_chief: bool, number: int, text: bytes) -> bytes:
        what = f"{'chief' if is_of_chief else 'process'} {number} ".encode() + text
        return hmac.new(self._key, what, hashlib.sha256).hexdigest().encode()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(data)

    def _read_line(self, deadline: float | None) -> bytes | None:
        most = MOST_BYTES if self._received else MOST_BYTES_OF_STRANGERS
        try:
            while b"\n" not in self._buffer:
                if len(self._buffer) > most:
                    return None
                left = None if deadline is None else max(0.001, deadline - time.monotonic())
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                self._connection.settimeout(left)
                data = self._connection.recv(65536)
                if not data:
                    return None
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\n")
        except OSError:
            return None
        finally:
            with contextlib.suppress(OSError):
                self._connection.settimeout(None)
        return line
