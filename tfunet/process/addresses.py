"""Addresses of hosts, and free ports there. No TensorFlow."""

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence

ANSWER_SECONDS = 30.0


def address_of(host: str) -> str:
    """Return the IP address of a host; if DNS does not know it, SLURM is asked."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    if shutil.which("scontrol"):
        shown = subprocess.run(
            ["scontrol", "show", "node", host, "--oneliner"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        ).stdout
        for word in shown.split():
            name, _, value = word.partition("=")
            if name == "NodeAddr":
                with contextlib.suppress(OSError):
                    return socket.gethostbyname(value)
    raise ConnectionError(
        f"The host {host!r} has no address: neither DNS nor SLURM knows it. Give addresses: "
        "TFUNET_HOSTS=10.0.0.1,10.0.0.2"
    )


def listening(address: str, ports: Sequence[int], who: str) -> socket.socket:
    """Return a socket that listens on the first free one of `ports`; `who` is for the error."""
    for port in ports:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), backlog=128)
    raise ConnectionError(
        f"{who} cannot listen on any of the ports {ports[0]} to {ports[-1]} of {address}."
    )


def free_port(address: str, ports: Sequence[int]) -> int:
    """Return the first free one of `ports` at an address, or any other free port."""
    for port in (*ports, 0):
        with contextlib.suppress(OSError), socket.create_server((address, port)) as server:
            return int(server.getsockname()[1])
    raise ConnectionError(f"{sys.argv[0]}: {address} has no free port.")
