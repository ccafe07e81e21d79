"""The planner, on steps whose best plan is known."""

import itertools

import pytest
from traces import CHAIN, UNET, costs_of, make_trace, plan_for

from tfunet.swap.plan.plan import Plan
from tfunet.swap.search import decisions
from tfunet.swap.search.candidates import may_go
from tfunet.swap.search.planner import largest_op
from tfunet.swap.search.strategy import Problem


def test_what_fits_is_kept():
    plan = plan_for(CHAIN, 400)
    assert plan.decisions == {}
    assert plan.peak_bytes == plan.unlimited_peak_bytes == 400
    assert plan.step_seconds == plan.unlimited_step_seconds


def test_plan_stays_within_a_budget_that_can_be_met():
    plan = plan_for(CHAIN, 300)
    assert plan.peak_bytes <= 300
    assert plan.decisions


def test_cheap_op_is_repeated_rather_than_copied():
    assert set(plan_for(UNET, 320, {"link_rate": 1e-3}).decisions.values()) == {"recompute"}


def test_fast_link_is_used_rather_than_a_slow_op():
    assert set(plan_for(UNET, 320, {"op_rate": 1e-3}).decisions.values()) == {"swap"}


def test_allowed_restricts_the_plan():
    assert set(plan_for(UNET, 320, allowed=["swap"]).decisions.values()) == {"swap"}
    assert set(plan_for(UNET, 320, allowed=["recompute"]).decisions.values()) == {"recompute"}


def test_scratch_of_an_op_on_small_tensors_counts():
    # Y reads and writes next to nothing, and needs 350 while a, b and c are there.
    rows = (*CHAIN[:3], ("Unfold", "x", "y", 1), *CHAIN[3:])
    options = {"threshold_bytes": 50, "scratch": {3: 350}}
    kept = plan_for(rows, 1000, **options)
    assert (kept.peak_bytes, kept.decisions) == (651, {})
    plan = plan_for(rows, 500, **options)
    assert plan.decisions
    assert plan.peak_bytes <= 500


def test_small_tensors_are_kept():
    assert plan_for(CHAIN, 0, threshold_bytes=101).decisions == {}


def test_budget_that_cannot_be_met_gives_the_lowest_peak_and_says_so():
    plan = plan_for(CHAIN, 10)
    assert plan.peak_bytes == 300  # L, b and B at once
    assert plan.peak_bytes > plan.budget_bytes


def test_floor_is_the_largest_working_set_of_one_op():
    trace, _ = make_trace(*CHAIN)
    assert largest_op(trace, {}) == (300, "op4")
    assert largest_op(trace, {5: 50}) == (350, "op5")


@pytest.mark.parametrize("budget", [0, 300, 320, 350, 400])
@pytest.mark.parametrize("rows", [CHAIN, UNET])
def test_what_is_held_at_the_peak_is_told_by_name(rows, budget):
    plan = plan_for(rows, budget, {"copies_overlap": True})
    assert sum(plan.peak_tensors.values()) == plan.peak_bytes
    assert plan.peak_op


def test_scratch_at_the_peak_is_told_apart():
    plan = plan_for(CHAIN, 1000, scratch={4: 350})
    assert plan.peak_op == "op4"
    # The op's input c is not needed any more, L, b and a are; B is what it makes.
    assert plan.peak_tensors == {"scratch of op4": 350, "L": 100, "a": 100, "b": 100, "B": 100}


def test_stateful_op_is_never_repeated():
    rows = (("Stateful", "x", "a", 100), *CHAIN[1:])
    assert "recompute" not in plan_for(rows, 0, allowed=["recompute"]).decisions.values() or (
        plan_for(rows, 0, allowed=["recompute"]).decisions.get("a") is None
    )


@pytest.mark.parametrize("budget", [300, 320, 350, 400])
def test_plan_is_the_same_every_time_and_survives_json(budget):
    plan = plan_for(UNET, budget)
    assert plan == plan_for(UNET, budget)
    assert Plan.from_json(plan.to_json()) == plan


def test_smaller_budget_never_costs_less():
    times = [plan_for(UNET, budget).step_seconds for budget in (500, 400, 350, 320, 300)]
    assert times == sorted(times)


@pytest.mark.parametrize("costs", [{}, {"link_rate": 4.0}, {"link_rate": 4.0, "op_rate": 0.5}])
@pytest.mark.parametrize("copies_overlap", [False, True])
@pytest.mark.parametrize("budget", [300, 320, 350, 400])
def test_both_ways_together_are_never_slower_than_one_alone(costs, copies_overlap, budget):
    costs = {**costs, "copies_overlap": copies_overlap}
    both = plan_for(UNET, budget, costs)
    assert both.peak_bytes <= budget
    for way in ("swap", "recompute"):
        alone = plan_for(UNET, budget, costs, allowed=[way])
        assert both.step_seconds <= alone.step_seconds or alone.peak_bytes > budget


def test_copies_beside_computation_cost_less():
    apart = plan_for(CHAIN, 300, allowed=["swap"])
    beside = plan_for(CHAIN, 300, {"copies_overlap": True}, allowed=["swap"])
    assert beside.exposed_seconds < apart.exposed_seconds
    assert beside.step_seconds < apart.step_seconds


def test_deep_network_is_planned_in_few_trials(monkeypatch):
    layers = 60
    forward = [("Conv3D", [f"x{at}"], f"x{at + 1}", 100) for at in range(layers)]
    backward = [("Grad", [f"G{at + 1}", f"x{at}"], f"G{at}", 100) for at in range(layers)][::-1]
    rows = (*forward, ("Loss", [f"x{layers}"], f"G{layers}", 100), *backward)
    trials = []
    schedule = decisions.schedule
    monkeypatch.setattr(decisions, "schedule", lambda *a: trials.append(1) or schedule(*a))
    plan = plan_for(rows, 2500, {"link_rate": 4.0})
    assert plan.peak_bytes <= 2500
    # Tensor by tensor it would be several for each of them, each as long as the network is deep.
    assert len(trials) < 250


def test_what_is_better_is_found_as_if_all_were_weighed():
    trace, _ = make_trace(*UNET)
    tensors = [index for index in range(len(trace.tensors)) if may_go(trace, index, 1)][:4]
    trials = [
        {tensor: way for tensor, way in zip(tensors, ways, strict=True) if way != "keep"}
        for ways in itertools.product(("keep", "swap", "recompute"), repeat=len(tensors))
    ]
    found = 0
    for budget, overlaps in itertools.product((100, 320, 1000), (False, True)):
        problem = Problem(
            trace=trace,
            costs=costs_of(trace, copies_overlap=overlaps),
            budget_bytes=budget,
            threshold_bytes=1,
        )
        for best, trial in itertools.product(map(problem.weigh, trials[::7]), trials):
            outcome, weighed = problem.better(trial, best), problem.weigh(trial)
            is_better = problem.badness(weighed) < problem.badness(best)
            assert (outcome is not None) == is_better
            found += is_better
            if outcome is not None:
                assert problem.badness(outcome) == problem.badness(weighed)
    assert found > 100
