"""In its private network a run reaches itself, and nobody else reaches the run."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tfunet.bench.launch.child_process import start
from tfunet.bench.launch.private_network import VARIABLE, private_network
from tfunet.machine.cores import usable_cores

# As TensorFlow does: on all interfaces.
LISTEN = """
import socket, sys
with socket.create_server(("0.0.0.0", 0)) as server:
    print(server.getsockname()[1], flush=True)
    server.accept()[0].sendall(b"hello")
    sys.stdin.read()
"""
CONNECT = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10) as connection:
    print(connection.recv(5), os.geteuid(), len(socket.if_nameindex()))
"""


def may_have_namespaces():
    tried = subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True)
    return tried.returncode == 0


@pytest.fixture
def network():
    with private_network({VARIABLE: "1"}) as holder:
        yield holder


def started(code, *arguments, network=None):
    command = [sys.executable, "-I", "-c", code, *map(str, arguments)]
    return start(0, command, usable_cores(), os.environ, network)


needs_namespaces = pytest.mark.skipif(
    not may_have_namespaces(), reason="this kernel refuses namespaces"
)


@needs_namespaces
def test_only_processes_of_the_run_reach_each_other(network):
    server = started(LISTEN, network=network)
    try:
        port = int(server.pipes()[0].readline())
        for host in {"127.0.0.1", socket.gethostbyname(socket.gethostname())}:
            with socket.socket() as stranger:
                assert stranger.connect_ex((host, port)) != 0
        client = started(CONNECT, port, network=network)
        said, wrong = (pipe.read().decode() for pipe in client.pipes())
        assert (said, wrong) == (f"b'hello' {os.geteuid()} 1\n", "")
        client.popen.wait(10)
    finally:
        server.signal_group(signal.SIGKILL)
        server.popen.wait(10)


def test_the_same_processes_without_it_are_reached():
    server = started(LISTEN)
    try:
        port = int(server.pipes()[0].readline())
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            assert stranger.recv(5) == b"hello"
    finally:
        server.signal_group(signal.SIGKILL)
        server.popen.wait(10)


@needs_namespaces
def test_it_ends_with_the_run():
    with private_network({VARIABLE: "1"}) as holder:
        os.kill(holder, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(holder, 0)


def test_a_kernel_that_refuses_is_a_message(tmp_path, monkeypatch):
    holder = tmp_path / "holder.py"
    holder.write_text("print('Operation not permitted')")
    monkeypatch.setattr("tfunet.bench.launch.private_network.HOLDER", holder)
    with (
        pytest.raises(ValueError, match="the kernel refuses: Operation not permitted"),
        private_network({VARIABLE: "1"}),
    ):
        pass


@pytest.mark.parametrize("environment", [{}, {VARIABLE: "0"}, {VARIABLE: ""}])
def test_it_is_made_only_if_asked_for(environment):
    with private_network(environment) as holder:
        assert holder is None
