"""Schedules and their simulation: closed forms, clock cycles, memory, no waiting for ever."""

import itertools
import random

import pytest

from tfunet.config.placement_keys import SCHEDULES
from tfunet.pipeline.schedules import (
    StagePass,
    check_schedule,
    gpipe,
    homes,
    most_live,
    one_f_one_b,
    waiting,
)
from tfunet.pipeline.simulation import (
    Link,
    Work,
    greedy,
    scheduled,
    simulate,
    training_orders,
)


def work(num_stages, *, forward=1.0, backward=2.0, link=None, is_folded=False, skips=()):
    """Return equal chunks, each of which reads what the one before makes, with more skips."""
    chunks = 2 * num_stages if is_folded else num_stages
    devices = list(range(num_stages))
    messages = {(chunk, chunk + 1): 1 for chunk in range(chunks - 1)}
    return Work(
        forward=[forward * num_stages / chunks] * chunks,
        backward=[backward * num_stages / chunks] * chunks,
        devices=[*devices, *reversed(devices)] if is_folded else devices,
        messages={**messages, **dict.fromkeys(skips, 1)},
        kept_bytes=[10] * chunks,
        link=link or Link(),
    )


CASES = [(stages, micro) for stages in range(1, 7) for micro in (1, 2, 3, 4, 8)]


@pytest.mark.parametrize(("stages", "micro"), CASES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_of_equal_stages(schedule, stages, micro):
    step = scheduled(schedule, work(stages), micro)
    assert step.bubble == pytest.approx((stages - 1) / (micro + stages - 1))
    assert step.step_seconds == pytest.approx(3 * (micro + stages - 1))


@pytest.mark.parametrize(("stages", "micro"), CASES)
def test_micro_batches_that_wait(stages, micro):
    assert scheduled("gpipe", work(stages), micro).peak_micro_batches == (micro,) * stages
    live = tuple(min(micro, stages - stage) for stage in range(stages))
    assert scheduled("1f1b", work(stages), micro).peak_micro_batches == live
    assert most_live("1f1b", stages, micro) == list(live)
    # Both chunks of a device count.
    folded = scheduled("v", work(stages, is_folded=True), micro)
    assert max(folded.peak_micro_batches) <= 2 * min(micro, 2 * stages)


@pytest.mark.parametrize(
    ("micro", "stages", "cycles"),
    [
        (1, 1, [[(0, 0)]]),
        (1, 3, [[(0, 0)], [(0, 1)], [(0, 2)]]),
        (3, 1, [[(0, 0)], [(1, 0)], [(2, 0)]]),
        (3, 3, [[(0, 0)], [(1, 0), (0, 1)], [(2, 0), (1, 1), (0, 2)], [(2, 1), (1, 2)], [(2, 2)]]),
        (4, 2, [[(0, 0)], [(1, 0), (0, 1)], [(2, 0), (1, 1)], [(3, 0), (2, 1)], [(3, 1)]]),
    ],
)
def test_torchgpipes_clock_cycles(micro, stages, cycles):
    step = simulate(gpipe(stages, micro), work(stages))
    forward = [event for event in step.events if event.action.kind == "forward"]
    assert [
        [(event.action.micro_batch, event.action.chunk) for event in sorted_by_stage(group)]
        for _, group in itertools.groupby(forward, key=lambda event: event.begin)
    ] == cycles


def sorted_by_stage(events):
    return sorted(events, key=lambda event: event.action.chunk)


@pytest.mark.parametrize(("stages", "micro"), CASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pass_happens_once_and_in_order(schedule, stages, micro):
    """The rules of PyTorch's test of schedule plans, with skips across any cut."""
    draw = random.Random(stages * micro)
    chunks = 2 * stages if schedule == "v" else stages
    skips = [pair for pair in itertools.combinations(range(chunks), 2) if draw.random() < 0.5]
    given = work(stages, is_folded=schedule == "v", skips=skips, link=Link(seconds=0.3))
    step = scheduled(schedule, given, micro)
    ends = {event.action: event.end for event in step.events}
    assert len(ends) == len(step.events) == 2 * chunks * micro
    for event in step.events:
        kind, chunk, number = event.action
        if kind == "backward":
            assert ends[StagePass("forward", chunk, number)] <= event.begin
        for maker, reader in given.messages:
            before = (maker, reader) if kind == "forward" else (reader, maker)
            if before[1] == chunk:
                is_sent = given.devices[before[0]] != given.devices[chunk]
                arrived = ends[StagePass(kind, before[0], number)] + 0.3 * is_sent
                assert arrived <= event.begin + 1e-9
        if number:
            assert ends[StagePass(kind, chunk, number - 1)] <= event.begin
    for _, group in itertools.groupby(
        sorted(step.events, key=lambda event: (event.device, event.begin)),
        key=lambda event: event.device,
    ):
        for first, second in itertools.pairwise(group):
            assert first.end <= second.begin
    # A device that does its passes in this order ends at the same time: nobody waits for ever.
    assert simulate(step.orders, given).step_seconds == pytest.approx(step.step_seconds)


@pytest.mark.parametrize(("stages", "micro"), [(2, 8), (4, 8), (4, 16), (6, 12)])
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_two_chunks_a_device_halve_the_bubble(stages, micro, backward):
    """To that of interleaved stages (Narayanan et al. 2021), for less than twice the memory."""
    folded = scheduled("v", work(stages, is_folded=True, backward=backward), micro)
    assert folded.bubble == pytest.approx((stages - 1) / (2 * micro + stages - 1))
    straight = scheduled("1f1b", work(stages, backward=backward), micro)
    # The chunks are half as large.
    assert max(folded.peak_bytes) / 2 < 1.6 * max(straight.peak_bytes)


def test_a_skip_of_a_folded_network_stays_on_its_device():
    given = work(2, is_folded=True, skips=[(0, 3)])
    straight = work(4, skips=[(0, 3)])
    # Between the outer and the inner device, and back; each gradient goes the other way.
    assert sum(scheduled("v", given, 1).sent_bytes) == 4
    assert sum(scheduled("gpipe", straight, 1).sent_bytes) == 8


def test_what_waits_counts_as_memory():
    given = work(3, skips=[(0, 2)])
    step = scheduled("1f1b", given, 6)
    # Three micro-batches of 10 wait at the first stage; gradients of 1 come to it, two at a time.
    assert step.peak_bytes[0] in range(31, 34)
    # The skips of those that are still on their way wait at the last stage.
    assert step.peak_bytes[2] >= 12


def test_transfer_time_counts_once_a_message_and_links_are_shared():
    quick, slow = (work(2, link=Link(bytes_per_second=rate)) for rate in (1e9, 1.0))
    assert scheduled("gpipe", quick, 1).step_seconds == pytest.approx(6)
    assert scheduled("gpipe", slow, 1).step_seconds == pytest.approx(6 + 2)
    # A message takes two seconds, a pass one: the link is what the forward passes wait for.
    slower = work(2, link=Link(bytes_per_second=0.5))
    step = scheduled("gpipe", slower, 4)
    begins = [event.begin for event in step.events if event.action.chunk == 1 and event.device == 1]
    assert begins[:4] == pytest.approx([3, 5, 7, 9])


def test_orders_that_wait_for_each_other_are_refused():
    first = (StagePass("forward", 0, 0), StagePass("backward", 0, 0), StagePass("forward", 0, 1))
    second = (StagePass("forward", 1, 1), StagePass("forward", 1, 0))
    with pytest.raises(ValueError, match="for ever: device 0 before the backward pass of micro-"):
        simulate((first, second), work(2))


def test_more_in_flight_takes_more_memory():
    given = work(4, is_folded=True)
    peaks = [max(greedy(given, 16, limit).peak_bytes) for limit in (4, 8)]
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize(
    ("schedule", "micro", "words"), [("1f1", 4, "Unknown schedule"), ("gpipe", 0, "at least 1")]
)
def test_schedules_that_cannot_be_are_refused(schedule, micro, words):
    with pytest.raises(ValueError, match=words):
        check_schedule(schedule, micro)


@pytest.mark.parametrize(("stages", "micro"), CASES)
def test_orders_of_training_do_every_pass_and_need_no_times(stages, micro):
    draw = random.Random(stages * micro)
    for schedule in SCHEDULES:
        devices = homes(schedule, stages)
        skips = list(itertools.combinations(range(len(devices)), 2))
        skips = [pair for pair in skips if pair[1] == pair[0] + 1 or draw.random() < 0.5]
        orders = training_orders(schedule, stages, micro, skips)
        assert [{devices[action.chunk] for action in order} for order in orders] == [
            {device} for device in range(stages)
        ]
        work = Work(
            forward=[draw.random() for _ in devices],
            backward=[draw.random() for _ in devices],
            devices=devices,
            messages=dict.fromkeys(skips, 1),
            kept_bytes=[1] * len(devices),
        )
        assert len(simulate(orders, work).events) == 2 * len(devices) * micro


def test_only_micro_batches_that_wait_are_recomputed():
    # Micro-batches do not wait in the last stage of 1f1b: their backward passes follow at once.
    assert waiting(one_f_one_b(3, 4)) == {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}}
    assert waiting(gpipe(2, 3)) == {0: {0, 1, 2}, 1: {0, 1, 2}}
    assert waiting(gpipe(3, 1)) == {}
