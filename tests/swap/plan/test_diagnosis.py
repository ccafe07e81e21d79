"""A budget that no plan meets: what is in the way, and what would help."""

import dataclasses
import traceback

import pytest
import tensorflow as tf
from traces import CHAIN, make_trace, plan_for

from tfunet import cli, exit_codes
from tfunet.process.full_memory import noting, out_of_memory
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.diagnosis import SPLITTING, in_the_way
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.text import out_of_memory_line, over_line

MIB = 2**20
# Tensors at the peak, and ops that alone need more, with more of them than a line has.
OVER = Plan(
    budget_bytes=40 * MIB,
    peak_bytes=60 * MIB,
    peak_op="loss/mul",
    peak_tensors={"skip:0": 30 * MIB, "logits:0": 20 * MIB, "a:0": 5 * MIB, "b:0": 5 * MIB},
    obstacles={"up/concat": 54 * MIB},
    advice=("a smaller batch or patch", "mixed_bfloat16"),
)


def test_a_plan_within_its_budget_has_no_obstacles():
    plan = plan_for(CHAIN, 400)
    assert (plan.obstacles, plan.advice, over_line(plan)) == ({}, (), "")


def test_ops_that_alone_need_more_than_the_budget_are_named():
    plan = plan_for(CHAIN, 250)
    assert plan.peak_bytes == 300
    # Loss reads c and makes L; the gradients read two and make one.
    assert plan.obstacles == {"op4": 300, "op5": 300}
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("kind", "item_bytes", "allowed", "expected"),
    [
        ("ConvGrad", 4, ("swap", "split"), ["mixed_bfloat16"]),
        ("ConvGrad", 2, ("swap", "split"), []),
        ("ConvGrad", 2, ("swap",), ["splitting tensors too"]),
        ("FusedBatchNormGradV3", 2, ("split",), ["group or instance normalisation"]),
        # It would not be in slabs anyway.
        ("FusedBatchNormGradV3", 4, (), ["mixed_bfloat16", "splitting tensors too"]),
    ],
)
def test_what_would_help_is_what_was_not_done(kind, item_bytes, allowed, expected):
    trace, _ = make_trace(*CHAIN[:4], (kind, "Lb", "B", 100), *CHAIN[5:])
    ops = tuple(dataclasses.replace(op, item_bytes=item_bytes) for op in trace.ops)
    _, advice = in_the_way(
        dataclasses.replace(trace, ops=ops),
        budget_bytes=250,
        scratch={},
        held=("L",),
        allowed=allowed,
    )
    assert advice[:2] == ("a smaller batch or patch", "fewer filters")
    assert [line.partition(" (")[0] for line in advice[2:]] == expected


def test_normalisation_far_from_the_peak_is_not_blamed():
    trace, _ = make_trace(("FusedBatchNormV3", "x", "a", 10), *CHAIN[1:])
    _, advice = in_the_way(trace, budget_bytes=250, scratch={}, held=("L", "C"), allowed=("split",))
    assert not any("normalisation" in line for line in advice)


def test_the_line_names_the_few_largest_and_what_would_help():
    assert over_line(OVER) == (
        "That is more than the 40 MiB that a step may use. In the way at once, at loss/mul: "
        "skip:0 (30 MiB), logits:0 (20 MiB), a:0 (5.0 MiB) and 1 more; ops that alone need more: "
        "up/concat (54 MiB). What would help: a smaller batch or patch or mixed_bfloat16."
    )
    limited = dataclasses.replace(OVER, wanted_host_bytes=9 * MIB, wanted_peak_bytes=39 * MIB)
    line = over_line(dataclasses.replace(limited, disk_budget_bytes=0))
    assert "The limit on host memory" in line
    assert line.endswith(
        "What would help: a higher limit on host memory (swap_host), a disk (swap_disk), a smaller "
        "batch or patch or fewer filters."
    )
    line = over_line(dataclasses.replace(limited, disk_budget_bytes=MIB))
    assert "more of the disk (swap_disk_size), a smaller batch" in line
    # A plan of an earlier version.
    plan = Plan(budget_bytes=1, peak_bytes=2 * MIB, floor_bytes=MIB, floor_op="conv")
    assert "the largest single op needs 1 MiB (conv). What would help: a smaller" in over_line(plan)


def test_a_plan_that_is_shown_says_what_is_in_the_way(tmp_path, capsys):
    (tmp_path / "plan.json").write_text(OVER.to_json())
    assert cli.main(["swap", "show", str(tmp_path / "plan.json")]) == exit_codes.OK
    assert over_line(OVER) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (OVER, "What would help: a smaller batch or patch or mixed_bfloat16."),
        (dataclasses.replace(OVER, budget_bytes=64 * MIB), "a larger margin would help"),
    ],
)
def test_a_device_without_memory_ends_a_step_with_what_is_in_the_way(plan, words):
    support = LargeModelSupport(0, verbose=0)
    support.plans = [plan]

    def run():
        text = "OOM when allocating tensor with shape[1,72,32] and type float"
        raise tf.errors.ResourceExhaustedError(None, None, text)

    with pytest.raises(tf.errors.ResourceExhaustedError) as error, noting("auto"):
        support.guarding(run)()
    assert out_of_memory(error.value) == (
        f"out of memory: no room for a tensor of [1,72,32], float. {out_of_memory_line(plan)}"
    )
    last = "".join(traceback.format_exception(error.value)).splitlines()[-1]
    assert last == out_of_memory_line(plan)
    assert words in last
    assert "skip:0 (30 MiB)" in last


@pytest.mark.parametrize(
    ("allowed", "splits"), [(["swap", "recompute"], True), (["swap", "split"], False)]
)
def test_splitting_is_advised_where_it_was_not_allowed(allowed, splits):
    support = LargeModelSupport(0, verbose=0, allowed=allowed)
    support.plans = [dataclasses.replace(OVER, budget_bytes=64 * MIB)]

    def run():
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        support.guarding(run)()
    (note,) = error.value.__notes__
    assert (SPLITTING in note) == splits
    assert "would help, and so would " in note
    assert "a smaller batch or patch or fewer filters. At the peak" in note
