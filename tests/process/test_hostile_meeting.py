"""Strangers at the port of a meeting: none ends it, holds it up, joins it or learns from it."""

import contextlib
import itertools
import json
import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfunet.process import meeting
from tfunet.process.launcher_variables import Place, ports_of
from tfunet.process.meeting import Meeting
from tfunet.process.sealed_line import MOST_BYTES_OF_STRANGERS, SealedLine

# What is raised in a thread ends no test by itself.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
SECRET = b"known to all processes of a run"
FOREVER = 1e9
KEYS = (f"hostile-{os.getpid()}-{number}" for number in itertools.count())
HELLO = {"index": 1, "count": 2, "host": "here", "address": "127.0.0.1:1", "code": "code"}


HELLO_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _little_time(monkeypatch):
    monkeypatch.setattr(meeting, "HELLO_SECONDS", HELLO_SECONDS)


def places(key):
    hosts = ("127.0.0.1",) * 2
    return [Place(index=i, count=2, host="here", hosts=hosts, key=key) for i in range(2)]


def connected(port):
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def says(*parts):
    """A stranger who says this, and stays."""

    def act(connection, key):
        for part in parts:
            connection.sendall(part)

    return act


def trickle(connection, key):
    """One byte now and then, for ever."""

    def go_on():
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b"1")
                time.sleep(0.2)

    threading.Thread(target=go_on, daemon=True).start()


def plain_hello(connection, key):
    """The right hello, without a seal."""
    connection.sendall(json.dumps({**HELLO, "key": key}).encode() + b"\n")


def hang_up(connection, key):
    connection.close()


def reset(connection, key):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def echo(connection, key):
    """What the chief says, back to it."""
    with contextlib.suppress(OSError):
        connection.settimeout(1)
        while data := connection.recv(4096):
            connection.sendall(data)


def sealed(secret=SECRET, **changes):
    """One who knows a secret, and says hello with other fields; None leaves a field out."""

    def act(connection, key):
        line = SealedLine(connection, secret, is_chief=False)
        if line.open(time.monotonic() + 5):
            hello = {**HELLO, "key": key, **changes}
            line.send({name: value for name, value in hello.items() if value is not None})

    return act


def sealed_text(text):
    """One who knows the secret, and seals what is no object of JSON."""

    def act(connection, key):
        line = SealedLine(connection, SECRET, is_chief=False)
        if line.open(time.monotonic() + 5):
            line._write(line._seal(False, 0, text) + b" " + text + b"\n")

    return act


NUMBER = b"0" * 64 + b"\n"
STRANGERS = {
    "silent": says(),
    "hangs up": hang_up,
    "resets": reset,
    "one byte now and then": trickle,
    "a line without an end": says(b"x" * 10 * MOST_BYTES_OF_STRANGERS),
    "100,000 brackets": says(b"[" * 100_000 + b"\n"),
    "brackets after a number": says(NUMBER, b"[" * 100_000 + b"\n"),
    "a web browser": says(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"),
    "bytes": says(bytes(range(256)) * 8 + b"\n"),
    "only newlines": says(b"\n" * 1000),
    "a number, and no more": says(NUMBER),
    "a number and an empty seal": says(NUMBER, b" {}\n"),
    "the right hello without a seal": plain_hello,
    "what the chief said": echo,
    "a wrong secret": sealed(b"guessed"),
    "no secret": sealed(b""),
}
# Processes of the same user, of other code.
MISTAKEN = {
    "no index": sealed(index=None),
    "an index of text": sealed(index="1"),
    "true as an index": sealed(index=True),
    "a broken index": sealed(index=1.5),
    "a negative index": sealed(index=-1),
    "the chief's index": sealed(index=0),
    "an index beyond the last": sealed(index=2),
    "a huge index": sealed(index=10**400),
    "no count": sealed(count=None),
    "a list as a host": sealed(host=["here"]),
    "no address": sealed(address=None),
    "an address of words": sealed(address="no address at all"),
    "an address of two lines": sealed(address="127.0.0.1:1\n"),
    "a number as code": sealed(code=7),
    "another run": sealed(key="another run"),
    "a list": sealed_text(b"[1, 2]"),
    "brackets": sealed_text(b"[" * 4000),
    "no JSON": sealed_text(b"\xff\xfe{"),
    "a huge number": sealed_text(b'{"index": ' + b"9" * 3900 + b"}"),
}


@pytest.mark.parametrize("kind", [*STRANGERS, *MISTAKEN])
def test_a_stranger_neither_joins_nor_ends_nor_delays_a_meeting(kind, monkeypatch):
    # Longer than the meeting may take: who waited for the stranger would not meet in time.
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 60.0)
    chief, other = places(next(KEYS))
    with ThreadPoolExecutor(2) as pool:
        met = pool.submit(Meeting, chief, "code", [], SECRET, seconds=20)
        with connected(ports_of(chief.key, 0)[0]) as connection:
            {**STRANGERS, **MISTAKEN}[kind](connection, chief.key)
            addresses = Meeting(other, "code", [], SECRET, seconds=20).addresses
            assert met.result(20).addresses == addresses
            assert HELLO["address"] not in addresses


def test_all_strangers_at_once_and_hundreds_of_silent_ones():
    chief, other = places(next(KEYS))
    port = ports_of(chief.key, 0)[0]
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        met = pool.submit(Meeting, chief, "code", [], SECRET, seconds=40)
        for _ in range(200):
            stack.enter_context(connected(port))
        for act in (*STRANGERS.values(), *MISTAKEN.values()):
            connection = stack.enter_context(connected(port))
            threading.Thread(target=act, args=(connection, chief.key), daemon=True).start()
        addresses = Meeting(other, "code", [], SECRET, seconds=40).addresses
        assert met.result(40).addresses == addresses


def heard(connection):
    """All that the other end says until it hangs up."""
    connection.settimeout(10)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            data += part
    return data


@pytest.mark.parametrize("act", [plain_hello, sealed(b"guessed"), trickle])
def test_a_stranger_learns_nothing_and_is_let_go_in_time(act):
    chief, other = places(next(KEYS))
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(Meeting, chief, "the right code", [], SECRET, seconds=40)
        with connected(ports_of(chief.key, 0)[0]) as connection:
            # In this thread: two threads that set the timeout of one socket disturb each other.
            act(connection, chief.key)
            said = heard(connection)
            # The stranger's time is over, and the meeting's is not.
            assert not met.done()
        # The chief's random number, and no word of the run. `sealed` reads it itself.
        assert len(said) in (0, len(NUMBER))
        addresses = Meeting(other, "the right code", [], SECRET, seconds=20).addresses
        assert met.result(20).addresses == addresses


@pytest.mark.parametrize(
    "sent",
    [b"x" * 10 * MOST_BYTES_OF_STRANGERS, b"no number\n"],
    ids=["a line without an end", "words"],
)
def test_who_says_what_is_no_number_is_let_go_at_once(sent, monkeypatch):
    # Not when the time for a hello is over.
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 60.0)
    chief, other = places(next(KEYS))
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(Meeting, chief, "code", [], SECRET, seconds=40)
        with connected(ports_of(chief.key, 0)[0]) as connection:
            connection.sendall(sent)
            assert len(heard(connection)) in (0, len(NUMBER))
        assert Meeting(other, "code", [], SECRET, seconds=20).addresses == met.result(20).addresses


def test_connections_that_did_not_show_the_secret_are_counted():
    chief, _ = places(next(KEYS))
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(Meeting, chief, "code", [], SECRET, seconds=2)
        with connected(ports_of(chief.key, 0)[0]) as connection:
            plain_hello(connection, chief.key)
            heard(connection)
        assert "1 connection did not show the secret" in str(met.exception(20))


def listening(key, act):
    """A stranger at the chief's first port; `act` is done with each connection."""
    server = socket.create_server(("127.0.0.1", ports_of(key, 0)[0]))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=quietly, args=(connection,), daemon=True).start()

    def quietly(connection):
        with contextlib.suppress(OSError):
            act(connection, key)

    threading.Thread(target=serve, daemon=True).start()
    return server


def false_addresses(connection, key):
    """A chief that does not know the secret."""
    line = SealedLine(connection, b"guessed", is_chief=True)
    if line.open(time.monotonic() + 5):
        line.send({"welcome": True})
        line.send({"addresses": ["127.0.0.1:1", "127.0.0.1:2"]})


FALSE_CHIEFS = {
    "plain addresses": says(b'{"welcome": true}\n{"addresses": ["127.0.0.1:1", "127.0.0.1:2"]}\n'),
    "addresses with a wrong seal": false_addresses,
    "a refusal": says(NUMBER, b'{"refused": "go away"}\n'),
    "brackets": says(NUMBER, b"[" * 100_000 + b"\n"),
    "what the process said": echo,
}


@pytest.mark.parametrize("kind", FALSE_CHIEFS)
def test_a_false_chief_captures_no_process(kind):
    chief, other = places(next(KEYS))
    with listening(chief.key, FALSE_CHIEFS[kind]), ThreadPoolExecutor(2) as pool:
        met = [
            pool.submit(Meeting, place, "code", [], SECRET, seconds=20) for place in (chief, other)
        ]
        addresses = [meeting.result(30).addresses for meeting in met]
        assert addresses[0] == addresses[1]
        assert "127.0.0.1:2" not in addresses[0]


@pytest.mark.parametrize("act", [trickle, says()])
def test_a_false_chief_holds_a_process_no_longer_than_its_limit(act):
    key = next(KEYS)
    with listening(key, act), ThreadPoolExecutor(1) as pool:
        met = pool.submit(Meeting, places(key)[1], "code", [], SECRET, seconds=1)
        # Without a limit a byte now and then would hold it for ever.
        assert "did not show the secret" in str(met.exception(20))


@pytest.mark.parametrize(
    "bad",
    [
        {"beat": "fast"},
        {"beat": [1, 2]},
        {"beat": ["a", "b", "c"]},
        {"last_step": "soon"},
        {"last_step": None},
        {"answer": {"x": []}},
        {"unknown": 1},
    ],
)
def test_a_wrong_message_ends_no_run(bad):
    chief, other = places(next(KEYS))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(Meeting, p, "code", [], SECRET, seconds=20) for p in (chief, other)]
        first, second = (meeting.result(20) for meeting in both)
    # Nobody is found hanging, which would end this process, before its tests are over.
    first.watch(FOREVER)
    second.watch(FOREVER)
    second._peers[0].send(bad)
    first._peers[1].send(bad)
    time.sleep(0.1)
    assert not first.stops_after(1)
    assert not second.stops_after(1)


def pair():
    """Both ends of a sealed connection."""
    ends = socket.socketpair(socket.AF_UNIX)
    lines = [SealedLine(end, SECRET, is_chief=not n) for n, end in enumerate(ends)]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda line: line.open(time.monotonic() + 5), lines))
    return *lines, *ends


def soon():
    """Later than any answer comes: what is not taken is answered at once."""
    return time.monotonic() + 60


def test_a_line_that_was_changed_repeated_or_returned_is_not_taken():
    chief, process, _, its_end = pair()
    process.send({"step": 1})
    assert chief.receive(soon()) == {"step": 1}
    text = b'{"step": 2}'
    seal = process._seal(False, 1, text)
    for line in (
        process._seal(False, 0, text) + b" " + text,  # An earlier line.
        process._seal(True, 1, text) + b" " + text,  # The chief's own.
        seal + b' {"step": 3}',
        seal[:-1] + b" " + text,
        b"",
    ):
        its_end.sendall(line + b"\n")
        assert chief.receive(soon()) is None
    its_end.sendall(seal + b" " + text + b"\n")
    assert chief.receive(soon()) == {"step": 2}


def test_two_connections_have_different_seals():
    seals = set()
    for _ in range(2):
        chief, *_ = pair()
        seals.add(chief._seal(True, 0, b"{}"))
    assert len(seals) == 2
