"""All processes of a run stop after the same step, whenever they are asked to."""

import os

import pytest

from tfunet.process.stop_request import VARIABLE, StopRequest, stop_request


@pytest.fixture
def request_to_stop():
    request = StopRequest.new()
    yield request
    request.close()


def test_a_process_alone_stops_after_the_step_that_it_is_in(request_to_stop):
    assert not request_to_stop.has_steps
    assert not request_to_stop.stops_after(4, is_chief=True, is_alone=True)
    assert request_to_stop.has_steps
    request_to_stop.ask()
    assert request_to_stop.stops_after(5, is_chief=True, is_alone=True)
    assert request_to_stop.last_step == 5
    # After the epoch that ends with this step, too.
    assert request_to_stop.stops_after(5, is_chief=True, is_alone=True)


@pytest.mark.parametrize("order", ["chief first", "chief last"])
@pytest.mark.parametrize("asked_after", ["nobody", "first", "all"])
def test_all_stop_after_the_same_step(request_to_stop, order, asked_after):
    """Whichever of them ends the step first in which the request comes."""
    chief_first = order == "chief first"
    stopped = {}
    for step in range(1, 6):
        ends = [True, False] if chief_first else [False, True]
        for place, is_chief in enumerate(ends):
            if step == 3 and place == ["nobody", "first", "all"].index(asked_after):
                request_to_stop.ask()
            if request_to_stop.stops_after(step, is_chief=is_chief, is_alone=False):
                stopped[is_chief] = step
        if step == 3 and asked_after == "all":
            request_to_stop.ask()
        if stopped:
            break
    late = asked_after == "all" or (asked_after == "first" and chief_first)
    assert stopped == dict.fromkeys((True, False), 5 if late else 4)
    assert request_to_stop.last_step == (5 if late else 4)


def test_a_process_of_the_run_sees_the_memory_of_the_supervisor(request_to_stop):
    assert stop_request({}) is None
    copy = os.dup(request_to_stop.descriptor)
    environment = {VARIABLE: str(copy)}
    theirs = stop_request(environment)
    assert environment == {}
    assert not os.get_inheritable(copy)
    request_to_stop.ask()
    assert theirs.stops_after(7, is_chief=True, is_alone=True)
    assert request_to_stop.last_step == 7
    theirs.close()
