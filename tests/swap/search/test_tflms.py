"""Plans by the rule of TFLMS v2, and training under them."""

import dataclasses

import keras
import pytest
from kinds import KINDS
from supported_runs import assert_same, plain, trained
from traces import CHAIN, costs, make_trace

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.placement import Tiers
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report import text
from tfunet.swap.rewrite import rewrite
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem
from tfunet.swap.search.tflms import Levels, Rule

GIB = 2**30
# a is read by M, at a distance of 3, and by P, at 6: three levels lie between the two.
TWICE = (
    ("Conv3D", "x", "a", 100),
    ("Conv3D", "a", "b", 10),
    ("Loss", "b", "L", 10),
    ("Grad", "La", "M", 10),
    ("Grad", "M", "N", 10),
    ("Grad", "N", "O", 10),
    ("Grad", "Oa", "P", 10),
)
# b and c do not depend on each other.
BRANCHES = (
    ("Relu", "x", "a", 100),
    ("Relu", "a", "b", 100),
    ("Relu", "a", "c", 100),
    ("Relu", "c", "d", 10),
    ("Add", "bc", "e", 10),
    ("Loss", "e", "E", 10),
    ("Grad", "Eb", "B", 100),
    ("Grad", "Ec", "C", 100),
)


def plan_for(rows, *, budget=1000, threshold_bytes=1, cost=None, tiers=None, **rule):
    trace, _ = make_trace(*rows)
    strategy = Rule(**{"swapout_threshold": 0, "swapin_ahead": 0, "swapin_groupby": 0, **rule})
    problem = Problem(
        trace=trace,
        budget_bytes=budget,
        costs=costs(trace, tiers=tiers or Tiers(), **{"copy_seconds": 2.5, **(cost or {})}),
        threshold_bytes=threshold_bytes,
    )
    return strategy.plan(problem)


def num_bytes_at(plan, seconds):
    return [use for at, use in plan.curve if at <= seconds][-1]


def test_level_is_the_longest_path_to_an_op():
    trace, _ = make_trace(*BRANCHES)
    assert Levels(trace).of == [0, 1, 1, 2, 2, 3, 4, 4]
    # b before c: what reads c comes later too.
    assert Levels(trace, [1, 2]).of == [0, 1, 2, 3, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("threshold", "swapped"),
    # The gradients A, B and L are at distances of 5, 3 and 1 from a, b and c.
    [(0, "abc"), (1, "ab"), (2, "ab"), (3, "a"), (4, "a"), (5, "")],
)
def test_tensor_is_swapped_if_a_reader_is_farther_than_the_threshold(threshold, swapped):
    plan = plan_for(CHAIN, swapout_threshold=threshold, sync_mode=3)
    assert plan.decisions == dict.fromkeys(swapped, "swap")
    assert plan.peak_bytes == (400 if swapped == "" else 300)
    assert plan.unlimited_peak_bytes == 400


def test_small_tensors_are_kept():
    assert plan_for(TWICE, threshold_bytes=11).decisions == {"a": "swap"}
    assert plan_for(TWICE, threshold_bytes=101).decisions == {}


@pytest.mark.parametrize(
    ("ahead", "fetched"),
    # A, the reader of a, is op5; 0 is right before it. op2 is the last of the forward pass.
    [(0, {}), (1, {"a": "op3"}), (2, {"a": "op2"}), (3, {"a": "op2"}), (9, {"a": "op2"})],
)
def test_copy_back_begins_so_many_levels_ahead(ahead, fetched):
    plan = plan_for(CHAIN, swapout_threshold=4, swapin_ahead=ahead, sync_mode=1)
    assert plan.fetched == fetched


@pytest.mark.parametrize(
    ("threshold", "groupby", "copies"),
    [
        (1, 0, {"a": {"op3": 1, "op6": 2}}),
        (1, 2, {"a": {"op3": 1, "op6": 2}}),
        (1, 3, {}),  # one for both
        # M is near, and reads what was never away.
        (3, 0, {"a": {"op3": 0, "op6": 1}}),
        (3, 3, {"a": {"op3": 0, "op6": 1}}),
    ],
)
def test_readers_share_a_copy_back_within_so_many_levels(threshold, groupby, copies):
    rule = {"swapout_threshold": threshold, "swapin_groupby": groupby}
    plan = plan_for(TWICE, threshold_bytes=100, **rule)
    assert plan.decisions == {"a": "swap"}
    assert plan.copies == copies


def test_several_copies_back_are_counted_in_memory_and_time():
    rule = {"threshold_bytes": 100, "sync_mode": 3, "cost": {"copy_seconds": 1.0}}
    shared = plan_for(TWICE, swapin_groupby=3, **rule)
    apart = plan_for(TWICE, swapin_groupby=0, **rule)
    assert (shared.copy_seconds, apart.copy_seconds) == (2.0, 3.0)
    # N is made while a is there for P, and not while it is away once more.
    assert shared.peak_bytes == apart.peak_bytes == 120
    assert num_bytes_at(shared, 6.5) == 120
    assert num_bytes_at(apart, 6.5) == 20


def test_further_copies_begin_ahead_too():
    plan = plan_for(TWICE, threshold_bytes=100, swapin_ahead=1, sync_mode=1)
    assert plan.fetched == {"a": "op1"}
    assert plan.fetched_again == {"a": {"2": "op4"}}
    assert Plan.from_json(plan.to_json()) == plan
    assert f"Made by the rule of TFLMS v2: {plan.rule}." in text.text(plan)


@pytest.mark.parametrize(
    ("mode", "awaited", "fetched"),
    [
        # A copy of 100 bytes takes 2.5 ops: that of a is over during L.
        (0, {"a": "op3"}, {"a": "op3"}),
        (1, {}, {"a": "op2"}),
        (2, {"a": "op3"}, {}),
        (3, {}, {}),
    ],
)
def test_sync_mode_says_which_copies_are_waited_for(mode, awaited, fetched):
    plan = plan_for(CHAIN, swapout_threshold=4, swapin_ahead=2, sync_mode=mode)
    assert (plan.awaited, plan.fetched) == (awaited, fetched)


def test_copies_out_that_take_turns_with_ops_are_waited_for():
    plan = plan_for(CHAIN, swapout_threshold=4, sync_mode=0, cost={"overlaps": False})
    assert (plan.awaited, plan.exposed_seconds) == ({}, 5.0)


@pytest.mark.parametrize(
    ("budget", "threshold", "swapped"),
    [
        (400, 7, ""),  # all fits: above any distance
        (399, 4, "a"),
        (300, 4, "a"),
        (10, 1, "ab"),  # none fits
    ],
)
def test_threshold_is_found_for_the_budget(budget, threshold, swapped):
    plan = plan_for(CHAIN, budget=budget, swapout_threshold=-1, sync_mode=3)
    assert plan.rule.startswith(f"swapout_threshold={threshold}, ")
    assert plan.decisions == dict.fromkeys(swapped, "swap")
    assert plan.budget_bytes == budget


def test_what_else_is_left_open_is_as_large_as_fits():
    def rule(budget, **options):
        options = {"swapin_ahead": None, "swapin_groupby": None, "sync_mode": 1, **options}
        return plan_for(TWICE, budget=budget, threshold_bytes=100, **options).rule

    assert rule(1000) == (
        "swapout_threshold=0, swapin_ahead=7, swapin_groupby=7, sync_mode=1 of 7 levels"
    )
    # M reads a, and L of b, beside what it makes. The copy of P may not come before that.
    assert "swapin_ahead=2, swapin_groupby=7" in rule(120)
    assert "swapin_ahead=0, swapin_groupby=0" in rule(119)
    # Without effect there, and without use.
    assert "swapin_ahead=0, swapin_groupby=7" in rule(1000, sync_mode=3)
    assert "swapin_ahead=0, swapin_groupby=7" in rule(1000, cost={"overlaps": False})


def test_host_memory_and_disk_take_what_is_far_first():
    host = plan_for(CHAIN, swapout_threshold=1, tiers=Tiers(host_bytes=100))
    assert host.decisions == {"a": "swap"}
    assert (host.host_bytes, host.host_budget_bytes) == (100, 100)
    disk = plan_for(CHAIN, swapout_threshold=1, tiers=Tiers(host_bytes=100, disk_bytes=None))
    assert disk.decisions == {"a": "swap", "b": "swap"}
    assert disk.on_disk == ("a",)


@pytest.mark.parametrize(
    ("options", "ops"),
    [
        ({}, ()),
        ({"serialization": [1]}, ("op1", "op2")),
        ({"serialization": ["1"]}, ("op1", "op2")),
        ({"serialization": ["0:2"]}, ("op0", "op1", "op2")),
        ({"serialization": ["2:"]}, ("op3", "op4")),  # the rest is of the backward pass
        ({"serialization": ["2:", " : 1"]}, ("op0", "op3", "op4")),
        ({"serialization": [-1]}, ()),
        # The levels read and make 100, 400, 320, 20 and 420 bytes.
        ({"serialization_by_size": 330 / GIB}, ("op1", "op2")),
        ({"serialization_by_size": 319 / GIB}, ("op1", "op2", "op3", "op4")),
        ({"serialization_by_size": 1000 / GIB}, ()),
        ({"serialization_by_size": 330 / GIB, "serialization": [0]}, ("op0", "op1", "op2")),
    ],
)
def test_ops_of_the_forward_pass_that_are_serialized(options, ops):
    plan = plan_for(BRANCHES, threshold_bytes=100, **options)
    assert plan.serialized == ops
    assert Plan.from_json(plan.to_json()) == plan


def test_distances_are_counted_with_what_is_serialized():
    # c and its gradient C are 3 levels apart; with b before c and d before e, so that E comes
    # later, 4.
    rule = {"swapout_threshold": 3, "threshold_bytes": 100}
    assert plan_for(BRANCHES, **rule).decisions == {}
    assert plan_for(BRANCHES, **rule, serialization=["1:3"]).decisions == {
        "b": "swap",
        "c": "swap",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swapout_threshold": -2}, "swapout_threshold must be a number of levels, at least 0"),
        ({"swapin_ahead": 1.5}, "swapin_ahead must be a number of levels"),
        ({"swapin_groupby": True}, "swapin_groupby must be a number of levels"),
        ({"sync_mode": 4}, r"sync_mode must be 0 .* or 3 .*, got 4"),
        ({"sync_mode": -1}, "got -1"),
        ({"serialization": "3:20"}, "must be a list of levels"),
        ({"serialization": ["3-20"]}, "'3-20', which is neither a level such as 4 nor a slice"),
        ({"serialization": ["1::0"]}, "neither a level"),
        ({"serialization": [1.5]}, "neither a level"),
        ({"serialization_by_size": -1}, "an amount in GiB, at least 0, got -1"),
        ({"swapout_threshold": 5, "plan": Plan()}, "give one of the two"),
        ({"sync_mode": 0, "plan": Plan()}, "give one of the two"),
        ({"swapin_ahead": 5, "allowed": ["recompute"]}, "tensors are swapped and nothing else"),
        ({"swapin_ahead": 5, "allowed": ["swap", "recompute"]}, "nothing else"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LargeModelSupport(0, **options)


def test_levels_that_a_step_does_not_have_are_refused():
    with pytest.raises(ValueError, match="serialization has '9:', and the step has the levels 0"):
        plan_for(CHAIN, serialization=["9:"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"swapout_threshold": -1, "swapin_ahead": -1, "swapin_groupby": -1, "plan": Plan()},
        {"swapout_threshold": -1, "allowed": ["recompute"]},
    ],
)
def test_without_a_value_of_it_the_planner_plans(options):
    assert isinstance(LargeModelSupport(0, **options).strategy, Planner)


def test_parameters_make_the_rule_the_strategy():
    assert LargeModelSupport(0, swapin_ahead=1).strategy == Rule(swapin_ahead=1)


def test_only_swapping_may_be_allowed_beside_it():
    support = LargeModelSupport(0, swapout_threshold=3, allowed=["swap"])
    assert support.strategy == Rule(swapout_threshold=3)


def copied(kind, **rule):
    """Return the plan of a training of three steps that changes no bit, and its copies."""
    told = []
    support = LargeModelSupport(
        0, threshold_bytes=256, verbose=0, note=lambda what, *_: told.append(what), **rule
    )
    assert_same(trained(kind, [support]), plain(kind))
    return support.plans[-1], told


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        # Each reader has a copy of its own, long before it runs.
        ("shared layers", {"swapin_ahead": 3, "swapin_groupby": 0}),
        ("unet 3D", {"swapout_threshold": 12, "swapin_groupby": 4, "sync_mode": 3}),
        ("own train_step", {"swapout_threshold": 1, "sync_mode": 1}),
        ("two outputs", {"swapout_threshold": 1, "serialization": ["0:"]}),
    ],
)
def test_same_bits_under_the_rule(kind, rule):
    plan, told = copied(kind, **rule)
    swapped = plan.count("swap")
    backs = {name: max(numbers.values()) for name, numbers in plan.copies.items()}
    assert swapped > 0
    assert set(plan.decisions.values()) == {"swap"}
    assert told.count("swap out") == 3 * swapped
    assert told.count("swap in") == 3 * (swapped - len(backs) + sum(backs.values()))
    if rule.get("swapin_groupby") == 0:
        assert max(backs.values()) > 1
        assert plan.fetched
        assert plan.fetched_again
    if "serialization" in rule:
        assert plan.serialized


def test_several_copies_come_back_from_disk(tmp_path):
    rule = {"swapout_threshold": 1, "swapin_groupby": 0}
    plan, told = copied("shared layers", **rule, host=0, disk=tmp_path)
    assert sorted(plan.on_disk) == sorted(plan.decisions)
    assert told.count("swap in") > told.count("swap out") == 3 * plan.count("swap")


def branches():
    image = keras.Input((16, 16, 1))
    branches = [
        keras.layers.Conv2D(4, 3, padding="same", activation="elu", name=name)(image)
        for name in ("one", "two")
    ]
    return keras.Model(image, keras.layers.Conv2D(3, 1)(keras.layers.Concatenate()(branches)))


@pytest.fixture
def steps(monkeypatch):
    """The trace and the ops of each step that was made to follow a plan."""
    followed = []
    follow = rewrite.follow

    def spied(cut, ops, *rest, **options):
        follow(cut, ops, *rest, **options)
        followed.append((cut.whole, {op.name: op for op in ops}))

    monkeypatch.setattr(rewrite, "follow", spied)
    monkeypatch.setitem(KINDS, "branches", branches)
    return followed


def waits_for(op):
    """Return the names of all ops that run before one."""
    seen, following = set(), [op]
    while following:
        earlier = following.pop()
        if earlier.name not in seen:
            seen.add(earlier.name)
            following += [*(tensor.op for tensor in earlier.inputs), *earlier.control_inputs]
    return seen


def test_serialized_branches_wait_for_each_other(steps):
    for rule, expected in (({}, False), ({"serialization": ["0:"]}, True)):
        # Two convolutions, their biases and activations: parted, they round differently.
        copied("branches", swapout_threshold=1000, **rule)
        _, ops = steps[-1]
        (second,) = (op for name, op in ops.items() if "two" in name and op.type == "Conv2D")
        assert any("one" in name and "Elu" in name for name in waits_for(second)) == expected


def test_each_reader_has_the_copy_that_the_plan_says(steps):
    plan, _ = copied("shared layers", swapout_threshold=1, swapin_groupby=0)
    assert {max(read.values()) for read in plan.copies.values()} == {2}
    nearer = {
        name: {op: number - 1 for op, number in read.items()} for name, read in plan.copies.items()
    }
    for followed in (plan, dataclasses.replace(plan, copies=nearer, fetched={}, fetched_again={})):
        copied("shared layers", plan=followed)
        trace, ops = steps[-1]
        for name, read in followed.copies.items():
            copies = {}
            for op in trace.ops:
                inputs = [trace.tensors[index].name for index in op.inputs]
                if op.name in read and name in inputs:
                    held = ops[op.name].inputs[inputs.index(name)]
                    copies.setdefault(read[op.name], set()).add(held.name)
            # Each number is one tensor, and 0 the one that its op made.
            assert [len(held) for held in copies.values()] == [1] * len(copies)
            assert len(copies) == len(set.union(*copies.values())) == 2
            assert [number for number, held in copies.items() if held == {name}] == (
                [0] if followed is not plan else []
            )


def test_line_at_the_start_tells_the_rule(capsys):
    support = LargeModelSupport(0, threshold_bytes=256, swapout_threshold=1)
    trained("shared layers", [support])
    shown = capsys.readouterr().out
    assert f"By the rule of TFLMS v2: {support.plans[-1].rule}." in shown
    assert "swapout_threshold=1, " in shown
    assert "That is more than the 0 MiB that a step may use" in shown
