"""Horovod's key-value store answers only the processes of a run, and only until they have met."""

import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from horovod.runner.common.util.hosts import SlotInfo
from paths import ROOT

from hvd import rendezvous
from hvd.rendezvous import Rendezvous, is_of_this_user
from tfunet.bench.launch.processes_to_start import free_ports

NOBODY = 65534
ASK = """
import encodings.idna, http.client, os, socket, sys
# All is imported: another user may not read this Python.
os.setgid(int(sys.argv[4]))
os.setuid(int(sys.argv[4]))
store = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
if sys.argv[5:]:
    store.sock = socket.socket()
    store.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.sock.bind(("127.0.0.1", int(sys.argv[5])))
    store.sock.connect(("127.0.0.1", store.port))
try:
    store.request(*sys.argv[2:4], body=b"false")
    print(store.getresponse().read())
except (ConnectionError, http.client.HTTPException):
    print("no answer")
"""
MEET = """
import os, socket, sys
import numpy as np
from hvd.backend import HorovodBackend
from tfunet.backend import Launch

index, *addresses = sys.argv[1:]
backend = HorovodBackend(
    Launch(process_index=int(index), process_count=2, num_replicas=2, addresses=tuple(addresses))
)
backend.start()
total = backend.sum(np.ones(1))[0]  # The chief has closed it before it takes part in this.
host, port = addresses[0].split(":")
with socket.socket() as stranger:
    print("open" if stranger.connect_ex((host, int(port))) == 0 else "closed")
print(total)
print(os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"])
backend.stop()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def store():
    slot = SlotInfo(
        hostname="127.0.0.1",
        rank=0,
        local_rank=0,
        cross_rank=0,
        size=1,
        local_size=1,
        cross_size=1,
    )
    server = Rendezvous("127.0.0.1", 0, [slot])
    yield server.server_address[1]
    server.close()


def ask(port, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body=b"true")
    return connection.getresponse().read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_another_user_of_the_machine_gets_no_answer(store, method):
    ask(store, "PUT", "/scope/key")
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ASK, str(store), method, "/scope/key", str(NOBODY)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (said.stdout, said.stderr) == ("no answer\n", "")
    assert ask(store, "GET", "/scope/key") == b"true"


class Table:
    """The kernel's table of sockets, which takes longer the more processes connect."""

    reads = 0

    def read_text(self):
        self.reads += 1
        return Path("/proc/net/tcp").read_text()


def test_a_request_reads_no_table_of_all_connections(store, monkeypatch):
    table = Table()
    monkeypatch.setattr(rendezvous, "SOCKETS", table)
    for number in range(20):
        ask(store, "PUT", f"/scope/{number}")
    assert table.reads == 0


def test_without_the_kernels_answer_the_table_says_who_connects(store, monkeypatch):
    table = Table()
    monkeypatch.setattr(rendezvous, "SOCKETS", table)
    monkeypatch.setattr(rendezvous, "NETLINK_SOCK_DIAG", 99)
    ask(store, "PUT", "/scope/key")
    assert table.reads == 1
    test_a_connection_from_nowhere_is_nobodys()


def test_a_connection_from_nowhere_is_nobodys():
    assert not is_of_this_user(("127.0.0.1", free_port()), ("127.0.0.1", free_port()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_strangers_connection_by_a_port_that_is_also_ours_gets_no_answer(store):
    ask(store, "PUT", "/scope/key")
    with socket.create_server(("127.0.0.1", 0)) as other_server, socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(("127.0.0.1", 0))
        ours.connect(other_server.getsockname())
        said = subprocess.run(
            [
                *(sys.executable, "-I", "-S", "-c", ASK, str(store), "GET", "/scope/key"),
                *(str(NOBODY), str(ours.getsockname()[1])),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (said.stdout, said.stderr) == ("no answer\n", "")


@pytest.mark.multiprocess
def test_the_store_is_closed_once_all_are_connected():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEET, str(index), *addresses],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        assert [process.communicate(timeout=300)[0].split() for process in started] == [
            # Gloo waits for others as long as we do.
            ["closed", "2.0", "60"]
        ] * 2
    finally:
        for process in started:
            process.kill()
