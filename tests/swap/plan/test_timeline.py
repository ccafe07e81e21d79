"""When copies and ops of a step happen."""

import pytest
from traces import CHAIN, costs, make_trace

from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.plan.timeline import Moves, moved, overlap, timeline


def swapped(*letters):
    trace, names = make_trace(*CHAIN)
    return trace, names, schedule(trace, {names.index(name): "swap" for name in letters})


@pytest.mark.parametrize(
    ("letters", "overlaps", "copy_seconds", "step", "exposed"),
    [
        ("", True, 1.0, 7.0, 0.0),
        # out a and in a, each awaited at once.
        ("a", True, 1.0, 9.0, 2.0),
        ("a", False, 1.0, 9.0, 2.0),
        ("ab", False, 2.0, 15.0, 8.0),
    ],
)
def test_copies_that_are_awaited_at_once_are_exposed(
    letters, overlaps, copy_seconds, step, exposed
):
    trace, _, actions = swapped(*letters)
    times = timeline(trace, actions, costs(trace, overlaps=overlaps, copy_seconds=copy_seconds))
    assert (times.step_seconds, times.exposed_seconds) == (step, exposed)


def test_repeated_ops_take_their_time():
    trace, names = make_trace(*CHAIN)
    actions = schedule(trace, {names.index("b"): "recompute"})
    times = timeline(trace, actions, costs(trace))
    assert (times.step_seconds, times.repeat_seconds) == (8.0, 1.0)


def test_with_room_all_copies_are_hidden():
    trace, names, actions = swapped("a")
    moves = overlap(trace, actions, costs(trace), budget_bytes=1000)
    # Copied while b is computed, and back while B is.
    assert {names[tensor]: op for tensor, op in moves.awaited.items()} == {"a": 1}
    assert {names[tensor]: op for tensor, op in moves.fetched.items()} == {"a": 3}
    times = timeline(trace, moved(actions, moves), costs(trace))
    assert (times.step_seconds, times.exposed_seconds, times.copy_seconds) == (7.0, 0.0, 2.0)


def test_slow_copies_of_several_tensors_follow_each_other():
    # a leaves during b and c, then b during L and B; b is wanted back for B and a for A.
    trace, _, actions = swapped("a", "b")
    slow = costs(trace, copy_seconds=2.0)
    with_room = moved(actions, overlap(trace, actions, slow, budget_bytes=1000))
    assert (
        timeline(trace, with_room, slow).step_seconds < timeline(trace, actions, slow).step_seconds
    )


@pytest.mark.parametrize("budget", [300, 320, 400, 500])
@pytest.mark.parametrize("letters", ["a", "b", "ab"])
@pytest.mark.parametrize("copy_seconds", [0.5, 1.0, 2.0, 5.0])
def test_moving_copies_needs_no_memory_beyond_the_budget(budget, letters, copy_seconds):
    trace, _, actions = swapped(*letters)
    link = costs(trace, copy_seconds=copy_seconds)
    before = memory(trace, actions).max()
    later = moved(actions, overlap(trace, actions, link, budget_bytes=budget))
    assert memory(trace, later).max() <= max(budget, before)
    assert sorted(map(repr, later)) == sorted(map(repr, actions))
    assert timeline(trace, later, link).step_seconds <= timeline(trace, actions, link).step_seconds


def test_without_room_nothing_moves():
    trace, _, actions = swapped("a")
    assert overlap(trace, actions, costs(trace), budget_bytes=0) == Moves(awaited={}, fetched={})


def test_copies_that_take_a_core_are_not_moved():
    trace, _, actions = swapped("a")
    link = costs(trace, overlaps=False)
    assert overlap(trace, actions, link, budget_bytes=1000) == Moves(awaited={}, fetched={})


def test_a_copy_back_begins_after_the_one_out_also_where_the_reader_is_near():
    # A forward pass in two parts: b is read by the second op after its own.
    rows = (("Conv3D", "x", "a"), ("Conv3D", "x", "b"), ("Loss", "a", "L"), ("ConvGrad", "Lb", "B"))
    trace, names = make_trace(*((*row, 100) for row in rows))
    actions = schedule(trace, {names.index("b"): "swap"})
    slow = costs(trace, copy_seconds=50.0)
    moves = overlap(trace, actions, slow, budget_bytes=10**6)
    order = [action.kind for action in moved(actions, moves) if action.kind in ("out", "in")]
    assert order == ["out", "in"]
