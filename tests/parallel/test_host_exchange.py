"""Processes that exchange through shared memory: what comes, in which order, and who has ended."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("exchange_in_memory.py")


def said(count, what):
    """What each process printed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, (rank, count, port)), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        told = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [json.loads(out) if out else errors for out, errors in told]


def test_each_gets_what_the_others_sent_at_the_same_place_of_a_step():
    count = 3
    for rank, steps in enumerate(said(count, "all")):
        others = [other for other in range(count) if other != rank]
        for number, (first, second, third) in enumerate(steps, start=1):
            assert first == {str(other): number + 10 * other for other in others}
            before = {str(rank - 1): 2.0 * (number + 10 * (rank - 1))} if rank else {}
            assert second == before
            assert third == {str(other): number * 1000 * (1 + other) for other in others}


def test_a_process_that_ends_is_noticed_by_those_that_wait_for_it():
    first, _, third = said(3, "dies")
    # The second to notice may miss the first one, which has ended, too.
    assert all("ended during an exchange." in each for each in (first, third))
    assert any("Process 1 ended" in each for each in (first, third))


@pytest.mark.parametrize("what", ["elsewhere", "closed", "gpu"])
def test_all_leave_it_to_the_backend_where_one_cannot(what):
    assert said(2, what) == [None, None]
