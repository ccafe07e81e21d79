"""What is in the way of a large tensor leaves for a while, and comes back where it is read."""

import dataclasses

import pytest
from strategies import Fixed
from traces import CHAIN, costs, make_trace

from tfunet.swap.arena.arena import Arena, Memory, failing, requests
from tfunet.swap.arena.detours import Detour, find, movable, name_of, with_detours
from tfunet.swap.plan.placement import Tiers
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.plan.timeline import timeline
from tfunet.swap.report.diff import difference
from tfunet.swap.report.text import begin_line, text
from tfunet.swap.search import applied
from tfunet.swap.search.fitting import fitted
from tfunet.swap.search.strategy import Problem

MIB = 2**20
# When a is gone, b has one of 8 MiB free on one side and six on the other, and c wants more.
APART = (
    ("Conv3D", "x", "a", MIB),
    ("Conv3D", "a", "b", MIB),
    ("Conv3D", "b", "c", 13 * MIB // 2),
    ("Loss", "bc", "L", 100),
)


def actions_of(trace, decisions=()):
    return schedule(trace, dict(decisions))


def arenas(mib):
    """Return what makes an arena with all of its memory in one piece, alone."""

    def made():
        arena = Arena(mib * MIB)
        arena.extend(mib * MIB, at_once=True)
        return arena

    return [made]


def kinds(trace, actions):
    return [(action.kind, name_of(trace, action)) for action in actions]


def test_a_detour_ends_one_copy_and_begins_another():
    trace, names = make_trace(*CHAIN)
    b = names.index("b")
    actions = with_detours(trace, actions_of(trace), [Detour(b, "op3", "op4")])
    assert kinds(trace, actions)[3:7] == [
        ("leave", "leave b"),
        ("op", "op3"),
        ("return", "return b"),
        ("op", "op4"),
    ]
    assert actions[3].inputs == ((b, 0),)
    assert actions[5].outputs == ((b, 1),)
    assert actions[6].inputs == ((names.index("L"), 0), (b, 1))
    in_use = memory(trace, actions_of(trace)), memory(trace, actions)
    assert in_use[0][3] - in_use[1][4] == 100


def test_a_tensor_that_left_twice_comes_back_twice():
    trace, names = make_trace(*CHAIN)
    a = names.index("a")
    detours = [Detour(a, "op2", "op4"), Detour(a, "op5", "op5")]
    actions = with_detours(trace, actions_of(trace), detours)
    back = [action.outputs for action in actions if action.kind == "return"]
    assert back == [((a, 1),), ((a, 2),)]
    left = [action.inputs for action in actions if action.kind == "leave"]
    assert left == [((a, 0),), ((a, 1),)]
    assert actions[-2].inputs == ((names.index("B"), 0), (a, 2))


def test_a_tensor_of_which_a_view_is_read_too_stays():
    rows = list(CHAIN)
    rows[2:3] = [("Reshape", "b", "v", 100), ("Conv3D", "vb", "c", 100)]
    rows[-1] = ("ConvGrad", "Av", "X", 10)
    trace, names = make_trace(*rows)
    place = next(
        at for at, action in enumerate(actions_of(trace)) if name_of(trace, action) == "op4"
    )
    unread, _ = movable(trace, actions_of(trace), [], place, least_bytes=1)
    assert [names[detour.tensor] for detour in unread] == ["a"]


def test_what_leaves_to_make_room_is_waited_for_unless_it_is_on_the_host():
    trace, names = make_trace(*CHAIN)
    b = names.index("b")
    detours = [Detour(b, "op3", "op3")]
    for decisions, copies in (({}, 2), ({b: "swap"}, 3)):
        actions = actions_of(trace, decisions)
        link = costs(trace, overlaps=False)
        times = timeline(trace, with_detours(trace, actions, detours), link)
        assert times.copy_seconds == copies
        # A tensor that is swapped has left already, and is only copied back once more.
        expected = 2 if not decisions else 1
        without = timeline(trace, actions, link)
        assert times.step_seconds - without.step_seconds == expected


def test_what_lies_in_the_way_of_a_large_tensor_is_moved():
    trace, names = make_trace(*APART)
    actions = actions_of(trace)
    (make,) = arenas(8)
    assert failing(make(), requests(trace, actions, {})) == 2  # c has no room
    detours = find(trace, actions, {}, [make], limit_bytes=8 * MIB)
    assert [(names[detour.tensor], detour.leaves, detour.returns) for detour in detours] == [
        ("b", "op2", "op2")
    ]
    assert failing(make(), requests(trace, with_detours(trace, actions, detours), {})) is None


def test_what_nobody_reads_leaves_until_it_is_read():
    after = ("Conv3D", "c", "d", 100), ("Loss", "bd", "L", 100)
    rows = [*APART[:2], ("Conv3D", "x", "c", 7 * MIB), *after]
    trace, names = make_trace(*rows)
    detours = find(trace, actions_of(trace), {}, arenas(8), limit_bytes=8 * MIB)
    assert [(names[detour.tensor], detour.leaves, detour.returns) for detour in detours] == [
        ("b", "op2", "op4")
    ]


def test_nothing_moves_where_it_would_not_help():
    trace, _ = make_trace(*APART)
    assert find(trace, actions_of(trace), {}, arenas(6), limit_bytes=6 * MIB) == []


@pytest.fixture(name="tight")
def _tight():
    """A step that is within its budget, and for which the allocator has no room all the same."""
    trace, _ = make_trace(*APART)
    plan = Plan(budget_bytes=8 * MIB, peak_bytes=8 * MIB, step_seconds=4.0)
    device = Memory(limit_bytes=8 * MIB, first_bytes=0)
    link = costs(trace, overlaps=False)
    link = dataclasses.replace(link, out_bytes_per_second=MIB, in_bytes_per_second=MIB)
    problem = Problem(trace=trace, costs=link, budget_bytes=0, threshold_bytes=1)
    return problem, device, plan


def test_a_plan_without_room_gets_detours(tight):
    problem, device, plan = tight
    detoured = fitted(problem, device, Fixed(lambda _: plan))
    assert detoured.detours == (("b", "op2", "op2"),)
    assert detoured.finds_room > 0
    assert (detoured.out_bytes, detoured.in_bytes, detoured.host_bytes) == (MIB, MIB, MIB)
    assert detoured.step_seconds == 6
    assert detoured.gives_up
    actions = applied.scheduled(problem.trace, Plan.from_json(detoured.to_json()))
    assert [action.kind for action in actions].count("leave") == 1
    assert "1 moved to make room" in begin_line(detoured, "all")
    assert "b, before op2" in text(detoured)
    assert difference(plan, detoured).moved["detours"] == 1


def test_detours_need_room_on_the_host(tight):
    problem, device, plan = tight
    costs = dataclasses.replace(problem.costs, tiers=Tiers(host_bytes=MIB - 1))
    problem = dataclasses.replace(problem, costs=costs)
    assert fitted(problem, device, Fixed(lambda _: plan)).detours == ()


def test_a_detour_of_another_model_is_refused(tight):
    problem, _, plan = tight
    other = dataclasses.replace(plan, detours=(("b", "op2", "another"),))
    with pytest.raises(ValueError, match="names another and"):
        applied.scheduled(problem.trace, other)
