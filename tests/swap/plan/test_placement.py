"""Which swapped tensors lie in host memory and which on disk, and what a plan makes of it."""

import dataclasses
import itertools

import pytest
from traces import CHAIN, UNET, costs_of, make_trace

from tfunet.swap.plan.placement import Tiers
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import schedule
from tfunet.swap.report.text import limits_line, text
from tfunet.swap.search.candidates import Candidates
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem

# Each a size, in the order in which the forward pass makes them.
SIZES = (("Conv3D", "x", "a", 30), ("Conv3D", "a", "b", 50), ("Conv3D", "b", "c", 20))


def named(rows):
    trace, names = make_trace(*rows)
    tensors = [
        dataclasses.replace(tensor, name=name)
        for tensor, name in zip(trace.tensors, names, strict=True)
    ]
    return dataclasses.replace(trace, tensors=tuple(tensors)), names


def plan_for(rows, budget, tiers, *, allowed=("swap", "recompute"), **costs):
    trace, _ = named(rows)
    costs = dataclasses.replace(costs_of(trace, **costs), tiers=tiers)
    problem = Problem(trace=trace, budget_bytes=budget, costs=costs, threshold_bytes=1)
    return Planner(allowed).plan(problem)


@pytest.mark.parametrize(
    ("host_bytes", "expected"),
    [
        (None, ""),
        (100, ""),
        # The first one made is wanted back last.
        (99, "a"),
        (70, "a"),
        # b does not fit beside c, and a does.
        (69, "b"),
        (50, "b"),
        (49, "ab"),
        (20, "ab"),
        (19, "abc"),
        (0, "abc"),
    ],
)
def test_what_stays_away_longest_goes_to_the_disk(host_bytes, expected):
    trace, names = named(SIZES)
    tiers = Tiers(host_bytes=host_bytes, disk_bytes=None)
    on_disk = tiers.on_disk(trace, [names.index(name) for name in "abc"])
    assert "".join(names[tensor] for tensor in sorted(on_disk)) == expected


@pytest.mark.parametrize(
    ("host_bytes", "disk_bytes", "swapped", "tensor", "expected"),
    [
        (None, 0, "ab", "c", 40),
        # On the host, beside what is there; and beside itself, where it is asked again.
        (100, 0, "ab", "c", 40),
        (100, 0, "abc", "c", 40),
        (99, 0, "ab", "c", None),
        # To the disk goes a, which is away longest: the link carries c, the disk a.
        (99, 30, "ab", "c", 40 + 30 / 4 + 30 / 10),
        (99, 29, "ab", "c", None),
        (0, 100, "ab", "c", 40 + 20 / 4 + 20 / 10),
        (0, None, "", "b", 100 + 50 / 4 + 50 / 10),
    ],
)
def test_swapping_one_more_costs_what_has_to_go_to_the_disk(
    host_bytes, disk_bytes, swapped, tensor, expected
):
    trace, names = named(SIZES)
    tiers = Tiers(
        host_bytes=host_bytes,
        disk_bytes=disk_bytes,
        disk_out_bytes_per_second=4,
        disk_in_bytes_per_second=10,
    )
    costs = dataclasses.replace(costs_of(trace), tiers=tiers)
    decisions = {names.index(name): "swap" for name in swapped}
    assert costs.swap_seconds(trace, names.index(tensor), decisions) == expected


def test_tensor_of_unknown_size_is_no_candidate_under_any_threshold():
    trace, names = named((("Conv3D", "x", "a", 0), *CHAIN[1:]))
    for threshold_bytes in (0, 1):
        costs = costs_of(trace)
        problem = Problem(trace=trace, costs=costs, budget_bytes=0, threshold_bytes=threshold_bytes)
        search = Candidates(problem, ("swap",))
        idle = {names[at] for at in search.idle(schedule(trace, {}), {})}
        assert "a" not in idle
        assert "b" in idle


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("allowed", [("swap",), ("swap", "recompute")])
@pytest.mark.parametrize("host_bytes", [0, 40, 100, 120, 250])
@pytest.mark.parametrize("disk_bytes", [0, 60, 100, None])
def test_no_plan_takes_more_of_host_and_disk_than_it_may(overlaps, allowed, host_bytes, disk_bytes):
    tiers = Tiers(
        host_bytes=host_bytes,
        disk_bytes=disk_bytes,
        disk_out_bytes_per_second=0.5,
        disk_in_bytes_per_second=0.5,
    )
    for rows, budget in itertools.product((CHAIN, UNET), (0, 300, 320, 350)):
        plan = plan_for(rows, budget, tiers, allowed=allowed, copies_overlap=overlaps)
        swapped = {name for name, decision in plan.decisions.items() if decision == "swap"}
        assert (plan.host_budget_bytes, plan.disk_budget_bytes) == (host_bytes, disk_bytes)
        assert plan.host_bytes <= host_bytes
        assert disk_bytes is None or plan.disk_bytes <= disk_bytes
        assert set(plan.on_disk) <= swapped
        assert plan.disk_bytes == sum(plan.tensor_bytes[name] for name in plan.on_disk)
        assert plan.host_bytes + plan.disk_bytes == sum(plan.tensor_bytes[name] for name in swapped)
        assert Plan.from_json(plan.to_json()) == plan


def test_without_room_to_swap_a_plan_recomputes():
    # By the link alone all would be swapped: test_planner.py.
    assert set(plan_for(UNET, 320, Tiers(), op_rate=1e-3).decisions.values()) == {"swap"}
    plan = plan_for(UNET, 320, Tiers(host_bytes=0), op_rate=1e-3)
    assert set(plan.decisions.values()) == {"recompute"}
    assert plan.peak_bytes <= 320


def test_step_is_longer_by_what_the_disk_takes():
    on_host = plan_for(CHAIN, 300, Tiers(), allowed=["swap"])
    tiers = Tiers(
        host_bytes=0, disk_bytes=None, disk_out_bytes_per_second=4, disk_in_bytes_per_second=10
    )
    on_disk = plan_for(CHAIN, 300, tiers, allowed=["swap"])
    assert on_disk.decisions == on_host.decisions
    more = on_disk.disk_bytes / 4 + on_disk.disk_bytes / 10
    assert on_disk.step_seconds == pytest.approx(on_host.step_seconds + more)
    assert on_disk.copy_seconds == pytest.approx(on_host.copy_seconds + more)


def test_slow_disk_is_avoided_by_recomputing():
    fast = Tiers(host_bytes=0, disk_bytes=None)
    slow = dataclasses.replace(fast, disk_out_bytes_per_second=1e-6)
    assert plan_for(UNET, 320, fast, op_rate=1e-3).on_disk
    assert not plan_for(UNET, 320, slow, op_rate=1e-3).on_disk


def test_copies_to_the_disk_are_begun_as_early_as_they_take():
    tiers = Tiers(
        host_bytes=0, disk_bytes=None, disk_out_bytes_per_second=1e9, disk_in_bytes_per_second=0.5
    )
    swapped = {"allowed": ["swap"], "link_rate": 1.0, "op_rate": 1.0, "copies_overlap": True}
    on_host = plan_for(UNET, 320, Tiers(), **swapped)
    on_disk = plan_for(UNET, 320, tiers, **swapped)
    trace, _ = named(UNET)
    places = {op.name: at for at, op in enumerate(trace.ops)}
    both = on_host.fetched.keys() & on_disk.fetched.keys()
    assert both
    assert all(places[on_disk.fetched[name]] <= places[on_host.fetched[name]] for name in both)
    assert any(places[on_disk.fetched[name]] < places[on_host.fetched[name]] for name in both)


def test_words_say_what_is_on_disk_and_what_stands_in_the_way():
    tiers = Tiers(host_bytes=0, disk_bytes=None)
    plan = plan_for(CHAIN, 300, tiers, allowed=["swap"])
    assert "on disk" in text(plan)
    assert "(disk)" in text(plan)
    assert limits_line(plan) == ""
    more = dataclasses.replace(plan, wanted_host_bytes=2**30, wanted_peak_bytes=2**20)
    assert "limits on host memory and disk stand in the way: with 1,024 MiB" in limits_line(more)
    alone = dataclasses.replace(more, disk_budget_bytes=0)
    assert "limit on host memory stands in the way" in limits_line(alone)
