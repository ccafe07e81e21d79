"""Processes meet, name who is missing, and stop after the same step."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tfunet.process.addresses import address_of
from tfunet.process.launcher_variables import Place, ports_of
from tfunet.process.meeting import Meeting
from tfunet.process.sealed_line import SealedLine

KEYS = iter(range(10**6))
SECRET = b"known to all processes of a run"


def places(count, key=None):
    hosts = ("127.0.0.1",) * count
    key = key or f"{next(KEYS)}-{threading.get_native_id()}"
    return [Place(index=i, count=count, host="here", hosts=hosts, key=key) for i in range(count)]


def meet(all_places, codes=None, noted=None, seconds=None, chief_comes_after=0.0):
    """The meeting of each process, or its error."""

    def one(place):
        index = place.index
        if index == 0:
            time.sleep(chief_comes_after)
        code, signals = (codes or {}).get(index, "code"), (noted or {}).get(index, [])
        try:
            return Meeting(place, code, signals, SECRET, seconds=(seconds or {}).get(index))
        except ConnectionError as error:
            return str(error)

    with ThreadPoolExecutor(len(all_places)) as pool:
        return list(pool.map(one, all_places))


def test_all_get_the_same_addresses_in_the_order_of_processes():
    met = meet(places(4))
    assert len({side.addresses for side in met}) == 1
    ports = [int(address.rpartition(":")[2]) for address in met[0].addresses]
    assert len(set(ports)) == 4


def test_two_runs_whose_ports_clash_do_not_mix():
    ours = places(2)
    # Somebody else listens where our chief would.
    with socket.create_server(("127.0.0.1", ports_of(ours[0].key, 0)[0])):
        met = meet(ours)
    assert met[0].addresses == met[1].addresses


def test_another_run_at_the_same_port_is_refused(monkeypatch):
    # No port that the system gives to others meanwhile.
    both = ports_of(f"{next(KEYS)}-{threading.get_native_id()}", 0)
    monkeypatch.setattr("tfunet.process.meeting.ports_of", lambda key, index: [] if index else both)
    met = meet([places(2, "1-0-")[0], places(2, "2-0-")[1]], seconds={0: 4, 1: 4})
    assert met[0].startswith("process 1 of 2 on 127.0.0.1 did not come within 4 s; ")
    assert "did not show the secret of this run" in met[1]


def test_who_does_not_come_is_named_by_host_and_rank():
    three = [replace(place, hosts=("127.0.0.1", "n2", "n10")) for place in places(3)]
    # The chief's time ends after that of the one that came, which waits for its word.
    met = meet(three[:2], seconds={0: 4, 1: 4}, chief_comes_after=0.5)
    assert met[0] == "process 2 of 3 on n10 did not come within 4 s."
    assert met[1] == met[0]


@pytest.mark.parametrize("count", [2, 3])
def test_who_hung_up_before_it_was_welcome_may_come_again(count):
    chief, *others = places(count)
    address = ("127.0.0.1", ports_of(chief.key, 0)[0])
    hello = {"key": chief.key, "index": 1, "count": count, "host": "here", "code": "code"}
    with ThreadPoolExecutor(count) as pool:
        meeting = pool.submit(Meeting, chief, "code", [], SECRET, seconds=60)
        line = SealedLine(connected(address), SECRET, is_chief=False)
        assert line.open(time.monotonic() + 5)
        line.send({**hello, "address": "127.0.0.1:1"})
        line.close()
        met = list(pool.map(lambda place: Meeting(place, "code", [], SECRET, seconds=60), others))
        assert {side.addresses for side in met} == {meeting.result(60).addresses}
        assert "127.0.0.1:1" not in met[0].addresses


def connected(address):
    """A connection to who will listen there."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        time.sleep(0.01)


def test_a_missing_chief_is_named():
    (met,) = meet(places(2)[1:], seconds={1: 0.5})
    assert met.startswith("process 0 of 2 on 127.0.0.1 (127.0.0.1, ports ")
    assert "did not answer process 1 of 2" in met


def test_other_code_is_refused_everywhere():
    met = meet(places(2), codes={1: "other"})
    assert "process 1 of 2 on here runs other code (other) than the chief (code)" in met[0]
    assert met[1] == met[0]


@pytest.mark.parametrize("signalled", [0, 1, 2])
def test_all_stop_after_the_same_step_whoever_was_signalled(signalled):
    noted = {index: [] for index in range(3)}
    met = meet(places(3), noted=noted)
    barrier = threading.Barrier(3)  # The all-reduce of a step: nobody ends it before all began it.

    def train(index):
        for step in range(1, 1000):
            barrier.wait(timeout=100)
            if step == 5 and index == signalled:
                noted[index].append(15)
            if met[index].stops_after(step):
                return step
        return None

    with ThreadPoolExecutor(3) as pool:
        stopped = set(pool.map(train, range(3)))
    assert len(stopped) == 1
    assert 5 < stopped.pop() < 1000


def test_a_run_of_one_process_stops_at_once():
    noted = []
    (met,) = meet(places(1), noted={0: noted})
    assert not met.stops_after(1)
    noted.append(15)
    assert met.stops_after(2)


def test_a_host_without_an_address_is_named():
    with pytest.raises(ConnectionError, match=r"'no-such-host\.invalid' has no address"):
        address_of("no-such-host.invalid")


def test_meeting_and_place_import_no_tensorflow():
    code = "import sys, tfunet.worker; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
