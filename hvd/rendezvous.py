"""Horovod's rendezvous: the chief's key-value store over HTTP, by which Gloo's processes connect.

Horovod's client sends no password, so the store looks at who connects instead: on this machine only
processes of the same user, from elsewhere only hosts of the run. It is open only until all
processes are connected.
"""

import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

SOCKETS = Path("/proc/net/tcp")
# Columns of that file.
ENDS = slice(1, 3)
STATE = 3
UID = 7
ESTABLISHED = "01"


@final
class Rendezvous(RendezvousHTTPServer):
    """The store, from its start until `close`."""

    daemon_threads = True  # A silent stranger does not hold up `close`.

    def __init__(self, host: str, port: int, slots: Sequence[SlotInfo]) -> None:
        super().__init__((host, port), RendezvousHandler, 0)
        own = self.server_address[0]
        self._hosts = {socket.gethostbyname(slot.hostname) for slot in slots} - {own}
        self.init(slots)
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def verify_request(self, request: Any, client_address: tuple[str, int]) -> bool:
        """Return whether a connection is answered."""
        return client_address[0] in self._hosts or is_of_this_user(
            client_address, request.getsockname()
        )

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


def is_of_this_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether a process of this user has the client's end of a connection, here on this machine.

    Both ends are compared. The system gives one port to several connections with different peers,
    so that another user's connection can have the port of one of ours.
    """
    ends = [_address(*client), _address(*server)]
    # More than once: while others connect, the system can leave out a row of its table.
    return any(_is_owner(ends) for _ in range(3))


def _is_owner(ends: list[str]) -> bool:
    try:
        rows = [line.split() for line in SOCKETS.read_text().splitlines()]
    except OSError:
        return True  # Without the table nobody could connect.
    owners = {int(row[UID]) for row in rows if row[ENDS] == ends and row[STATE] == ESTABLISHED}
    return owners == {os.geteuid()}


def _address(host: str, port: int) -> str:
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
