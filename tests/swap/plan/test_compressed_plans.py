"""What a plan knows of tensors that are swapped in fewer bits, on small hand-made steps."""

import dataclasses

import pytest
from traces import CHAIN, UNET, costs_of, make_trace

from tfunet.graph.step import without_small
from tfunet.swap.plan import split
from tfunet.swap.plan.exact import compared, without_compared
from tfunet.swap.plan.placement import Tiers
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.plan.timeline import Moves, moved, overlap, timeline
from tfunet.swap.search.applied import as_planned
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem

# A pooling's gradient looks for the numbers of its output p in its input a.
POOLED = (
    ("Conv3D", "x", "c", 100),
    ("Tanh", "c", "a", 100),
    ("MaxPool3D", "a", "p", 20),
    ("Reshape", "p", "r", 20),
    ("Conv3D", "r", "b", 20),
    ("Loss", "b", "L", 20),
    ("ConvGrad", "Lr", "P", 20),
    ("MaxPool3DGrad", "apP", "A", 100),
    ("TanhGrad", "Aa", "C", 100),
)
# So does that of a maximum, in a view of it that the backward pass makes.
MAXIMUM = (
    *POOLED[:2],
    ("Max", "a", "m", 10),
    ("Loss", "m", "L", 10),
    ("Reshape", "m", "M", 10),
    ("Equal", "Ma", "E", 10),
    ("Mul", "EL", "A", 100),
)


def compressed(*rows, letters=None):
    """Return a step whose forward tensors, or those with a letter, take half where they are
    swapped."""
    trace, names = make_trace(*rows)
    tensors = [
        dataclasses.replace(
            tensor,
            name=name,
            compressed_bytes=tensor.num_bytes // 2 if name in (letters or name.lower()) else 0,
        )
        for tensor, name in zip(trace.tensors, names, strict=True)
    ]
    return dataclasses.replace(trace, tensors=tuple(tensors), compression="bfloat16"), names


def decided(names, decisions):
    return {names.index(name): decision for name, decision in decisions.items()}


@pytest.mark.parametrize(
    ("rows", "decisions", "expected"),
    [
        (POOLED, {"a": "swap"}, "a"),
        (POOLED, {"p": "swap"}, "p"),
        (POOLED, {"a": "swap", "p": "recompute"}, "a"),
        # What it looks in is computed again from what was rounded.
        (POOLED, {"c": "swap", "a": "recompute"}, "c"),
        (POOLED, {"c": "swap", "a": "recompute", "p": "recompute"}, "c"),
        # Nothing is computed again from it: a is kept.
        (POOLED, {"c": "swap"}, ""),
        (POOLED, {"b": "swap"}, ""),
        (POOLED, {"c": "recompute"}, ""),
        (MAXIMUM, {"a": "swap"}, "a"),
        (MAXIMUM, {"m": "swap"}, "m"),
        (MAXIMUM, {"a": "swap", "m": "swap"}, "am"),
    ],
)
def test_what_is_looked_for_is_found(rows, decisions, expected):
    trace, names = compressed(*rows)
    tensors = compared(split.cut(trace, ()), decided(names, decisions))
    assert "".join(sorted(names[tensor] for tensor in tensors)) == expected


def test_a_gradient_that_is_handed_on_is_not_looked_for():
    # The third input of a pooling's gradient; here P was rounded on its way.
    rows = (*POOLED[:-2], ("MaxPool3DGrad", "xxr", "A", 100))
    trace, names = compressed(*rows)
    assert not compared(split.cut(trace, ()), decided(names, {"p": "swap"}))


def test_what_is_looked_for_directly_is_known_before_anything_is_planned():
    trace, names = compressed(*POOLED)
    without = without_compared(trace)
    sizes = dict(zip(names, (tensor.compressed_bytes for tensor in without.tensors), strict=True))
    assert {name for name, size in sizes.items() if size} == {"c", "b", "r"}
    plain, _ = make_trace(*POOLED)
    assert without_compared(plain) is plain


@pytest.mark.parametrize("link_rate", [5.0, 20.0, 100.0])
def test_what_is_looked_for_is_not_computed_again_from_what_was_rounded(link_rate):
    # c is swapped, and a computed again from it: convolutions are dear. The peak is at e.
    rows = (
        ("Conv3D", "x", "c", 100),
        ("Norm", "c", "a", 100),
        ("MaxPool3D", "a", "p", 20),
        ("Conv3D", "p", "b", 200),
        ("Conv3D", "b", "e", 200),
        ("Loss", "e", "L", 20),
        ("ConvGrad", "Lp", "P", 20),
        ("MaxPool3DGrad", "apP", "A", 100),
        ("NormGrad", "Ac", "C", 100),
    )
    trace, _ = compressed(*rows)
    seconds = [1e3 if op.kind == "Conv3D" else 1.0 for op in trace.ops]
    costs = dataclasses.replace(costs_of(trace, link_rate=link_rate), op_seconds=seconds)
    plan = Planner().plan(Problem(trace=trace, budget_bytes=430, costs=costs, threshold_bytes=1))
    assert plan.decisions == {"c": "swap", "a": "recompute"}
    assert (plan.compressed_bytes, plan.compression) == ({}, None)
    assert plan.host_bytes == 100


def test_a_plan_compresses_what_it_names():
    trace, names = compressed(*CHAIN)
    step = as_planned(trace, Plan(compressed_bytes={"b": 50}))
    sizes = [tensor.compressed_bytes for tensor in step.tensors]
    assert sizes == [50 * (name == "b") for name in names]


def test_both_forms_take_memory_while_one_becomes_the_other():
    trace, names = compressed(*CHAIN)
    actions = schedule(trace, decided(names, {"a": "swap"}))
    # op a, out a, b, c, L, B, in a, A, X
    assert memory(trace, actions).tolist() == [100, 150, 200, 200, 300, 300, 250, 300, 110]


def test_compressed_form_waits_for_its_copy_and_for_its_reader():
    trace, names = compressed(*CHAIN)
    a = names.index("a")
    moves = Moves(awaited={a: 2}, fetched={a: 3})
    actions = moved(schedule(trace, {a: "swap"}), moves)
    shown = [f"{action.kind} {action.index}" for action in actions]
    assert shown[:6] == ["op 0", "op 1", "op 2", f"out {a}", "op 3", f"in {a}"]
    # a goes when b is there, its half after c; when it is back, both are there until A is made.
    assert memory(trace, actions).tolist() == [100, 250, 250, 250, 300, 350, 450, 300, 110]


@pytest.mark.parametrize("budget", [300, 320, 360, 400, 450, 500])
@pytest.mark.parametrize("letters", ["a", "b", "ab"])
@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0, 5.0])
def test_moving_compressed_copies_needs_no_memory_beyond_the_budget(budget, letters, seconds):
    trace, names = compressed(*CHAIN, letters="a")  # b is swapped as it is.
    actions = schedule(trace, decided(names, dict.fromkeys(letters, "swap")))
    costs = dataclasses.replace(
        costs_of(trace, link_rate=100 / seconds, copies_overlap=True),
        op_seconds=[1.0] * len(trace.ops),
    )
    before = memory(trace, actions).max()
    later = moved(actions, overlap(trace, actions, costs, budget_bytes=budget))
    assert memory(trace, later).max() <= max(budget, before)
    times = [timeline(trace, order, costs).step_seconds for order in (actions, later)]
    assert times[1] <= times[0]


@pytest.mark.parametrize("overlaps", [False, True])
def test_copies_take_half_and_casts_their_time(overlaps):
    trace, names = compressed(*CHAIN, letters="a")
    costs = costs_of(trace, link_rate=10.0, copies_overlap=overlaps)
    costs = dataclasses.replace(costs, cast_bytes_per_second=50.0)
    times = {
        letter: timeline(trace, schedule(trace, decided(names, {letter: "swap"})), costs)
        for letter in "ab"
    }
    assert times["b"].copy_seconds == 2 * 100 / 10
    assert times["a"].copy_seconds == 2 * (50 / 10 + 100 / 50)
    for letter, seconds in (("a", 14.0), ("b", 20.0)):
        assert costs.swap_seconds(trace, names.index(letter), {}) == pytest.approx(seconds)


def test_tiers_have_room_for_twice_as_many():
    trace, names = compressed(*CHAIN)
    swapped = [names.index(name) for name in "abc"]
    assert not Tiers(host_bytes=150).on_disk(trace, swapped)
    assert Tiers(host_bytes=149).on_disk(trace, swapped) == {names.index("a")}
    assert Tiers(host_bytes=0, disk_bytes=150).has_room(trace, swapped)
    assert not Tiers(host_bytes=0, disk_bytes=149).has_room(trace, swapped)


@pytest.mark.parametrize("tiers", [Tiers(), Tiers(host_bytes=0, disk_bytes=None)])
@pytest.mark.parametrize("budget", [0, 320, 350])
def test_plan_says_what_is_compressed_and_counts_it_so(tiers, budget):
    plain, _ = make_trace(*UNET)
    trace, _ = compressed(*UNET, letters="smnuv")
    found = []
    for source in (plain, trace):
        costs = dataclasses.replace(costs_of(source), tiers=tiers)
        problem = Problem(trace=source, budget_bytes=budget, costs=costs, threshold_bytes=1)
        found.append(Planner(["swap"]).plan(problem))
    without, plan = found
    assert Plan.from_json(plan.to_json()) == plan
    assert (plan.compression, without.compression) == ("bfloat16", None)
    assert set(plan.compressed_bytes) == set(plan.decisions) & set("smnuv") != set()
    away = plan.host_bytes + plan.disk_bytes
    assert away == sum(
        plan.compressed_bytes.get(name, plan.tensor_bytes[name]) for name in plan.decisions
    )
    assert away < without.host_bytes + without.disk_bytes
    assert plan.copy_seconds < without.copy_seconds
    # At the least that can be reached, the largest tensor comes back in both forms.
    assert plan.peak_bytes <= max(budget, without.peak_bytes + 50)


def test_a_step_without_small_ops_and_a_cut_one_know_it_too():
    trace, _ = compressed(*CHAIN)
    large, _ = without_small(trace, 100)
    assert [tensor.compressed_bytes for tensor in large.tensors] == [
        tensor.compressed_bytes for tensor in trace.tensors
    ]
    cut = split.cut(trace, ())
    assert cut.trace.tensors == trace.tensors
    assert cut.trace.compression == "bfloat16"
