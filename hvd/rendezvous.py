"""Horovod's rendezvous: the chief's key-value store over HTTP, by which Gloo's processes connect.

Horovod's client sends no password, so the store looks at who connects instead: on this machine only
processes of the same user, from elsewhere only hosts of the run. It is open only until all
processes are connected.
"""

import os
import socket
import struct
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
# As linux/netlink.h, sock_diag.h and inet_diag.h have them.
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
HEADER = struct.Struct("=IHHII")  # Bytes, type, flags, sequence, port.
ENDS_OF_SOCKET = "2s2s16s16s4x8s"
ASKED = struct.Struct(f"=BBxxI{ENDS_OF_SOCKET}")
TOLD = struct.Struct(f"=BBxx{ENDS_OF_SOCKET}12xI")
ANY = b"\xff" * 8
ANSWER_SECONDS = 1.0


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
    # Each of n processes asks for the addresses of all others, and the table takes 10 ms to read.
    if (owner := _owner(client, server)) is not None:
        return owner == os.geteuid()
    ends = [_address(*client), _address(*server)]
    # More than once: while others connect, the system can leave out a row of its table.
    return any(_is_owner(ends) for _ in range(3))


def _owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user of the client's socket, as the kernel tells of one; None if it does not."""
    ends = (
        *(struct.pack("!H", port) for _, port in (client, server)),
        *(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (client, server)),
    )
    asked = ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 2**32 - 1, *ends, ANY)
    size = HEADER.size + len(asked)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(ANSWER_SECONDS)
            kernel.send(HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0) + asked)
            answer = kernel.recv(4096)
        _, state, *told, _, owner = TOLD.unpack_from(answer, HEADER.size)
    except (OSError, struct.error):
        return None  # Also a container whose kernel has no such sockets.
    is_found = HEADER.unpack_from(answer)[1] == SOCK_DIAG_BY_FAMILY and told == [*ends]
    return owner if is_found and state == int(ESTABLISHED, 16) else None


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
