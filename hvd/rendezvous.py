"""Horovod's rendezvous: the chief's key-value store over HTTP, by which Gloo's processes connect.

Horovod's client sends no password, so the store looks at who connects instead: on this machine only
processes of the same user, from elsewhere only hosts of the run. It is open only until all
processes are connected.
"""

import os
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

SOCKETS = Path("/proc/net/tcp")
UID_COLUMN = 7


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
        return client_address[0] in self._hosts or is_of_this_user(*client_address)

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


def is_of_this_user(host: str, port: int) -> bool:
    """Whether a process of this user has the other end of a connection, here on this machine."""
    try:
        lines = SOCKETS.read_text().splitlines()
    except OSError:
        return True  # Without it nobody could connect.
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return os.geteuid() in _owners(lines, f"{number:08X}:{port:04X}")


def _owners(lines: Iterable[str], local_address: str) -> set[int]:
    rows = (line.split() for line in lines)
    return {int(row[UID_COLUMN]) for row in rows if row[1] == local_address}
