"""The memory of a step as TensorFlow's profile tells it, and how it is shown beside the plan."""

import dataclasses
import json

import pytest

from tfunet import cli, exit_codes
from tfunet.record import RunFolder
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import MOST_POINTS, Measured, account
from tfunet.swap.report.picture import draw
from tfunet.swap.report.text import read_measured, read_plans, text
from tfunet.timing.xplane import Allocation

MIB = 2**20
PLAN = Plan(
    decisions={"unet/conv:0": "swap", "unet/act:0": "recompute"},
    tensor_bytes={"unet/conv:0": 20 * MIB, "unet/act:0": 10 * MIB},
    budget_bytes=64 * MIB,
    peak_bytes=60 * MIB,
    unlimited_peak_bytes=90 * MIB,
    peak_op="unet/planned_op",
    peak_tensors={"unet/skip:0": 30 * MIB, "unet/up:0": MIB // 2},
    step_seconds=0.5,
    unlimited_step_seconds=0.4,
    curve=((0.0, 0), (0.1, 60 * MIB), (0.5, 0)),
    unlimited_curve=((0.0, 0), (0.1, 90 * MIB), (0.4, 0)),
)
MEASURED = Measured(
    step_seconds=0.61,
    peak_bytes=62 * MIB,
    curve=((0.0, 0), (0.3, 62 * MIB), (1.0, 0)),
    peak_op="unet/measured_op",
    peak_tensors={"unet/other": 31 * MIB},
)


def made(*rows, call=7, allocator="cpu"):
    """Return blocks from rows of (op, address, bytes); those of no op are given back."""
    return [
        Allocation(
            op=op,
            address=address,
            num_bytes=num_bytes,
            begins=bool(op),
            allocator=allocator,
            call=call if op else 0,
            seconds=float(second),
        )
        for second, (op, address, num_bytes) in enumerate(rows)
    ]


# c takes the place of a; 99 was there before.
ROWS = (
    ("a", 1, 50),
    ("b", 2, 30),
    ("", 1, 50),
    ("", 99, 10),
    ("c", 1, 60),
    ("", 2, 30),
    ("", 1, 0),
)


def test_the_peak_is_exact_and_has_the_ops_that_hold_it():
    measured = account(made(*ROWS))
    assert (measured.peak_bytes, measured.peak_op) == (90, "c")
    assert list(measured.peak_tensors.items()) == [("c", 60), ("b", 30)]
    assert measured.curve == (
        *((0.0, 50), (0.1667, 80), (0.3333, 30), (0.5, 30)),
        *((0.6667, 90), (0.8333, 60), (1.0, 0)),
    )


def test_batches_made_beside_the_step_and_memory_beside_a_gpu_are_not_of_the_step():
    batch = made(("map", 5, 70), call=8)
    assert account([*batch, *made(*ROWS)]).peak_bytes == 90
    # Threads of an op's own know of no call.
    assert (
        account([*made(("", 5, 0)), *made(("scratch", 5, 7), call=0), *made(*ROWS)]).peak_bytes
        == 97
    )
    gpus = [
        *made(("host", 5, 500), allocator="gpu_host_bfc"),
        *made(*ROWS, allocator="GPU_0_bfc"),
        *made(("other", 6, 500), allocator="GPU_1_bfc"),
    ]
    assert account(gpus).peak_bytes == 90


def test_a_profile_without_allocations_is_told_apart():
    with pytest.raises(ValueError, match="no allocations"):
        account(made(("", 1, 50)))


def test_a_curve_of_many_points_is_small_and_keeps_its_peak():
    rows = [row for at in range(5000) for row in ((f"op{at}", at, 1 + (at == 3210)), ("", at, 0))]
    measured = account(made(*rows))
    assert len(measured.curve) <= MOST_POINTS
    assert max(num_bytes for _, num_bytes in measured.curve) == measured.peak_bytes == 2


@pytest.fixture
def run(tmp_path):
    RunFolder(tmp_path).write_plans([dataclasses.asdict(PLAN)], dataclasses.asdict(MEASURED))
    return tmp_path


def test_the_record_keeps_what_was_measured(run):
    assert read_plans(run) == [PLAN]
    assert read_measured(run) == MEASURED
    (run / "plan.json").write_text(PLAN.to_json())
    assert read_measured(run / "plan.json") is None


def test_measured_stands_beside_planned_with_the_tensors_at_both_peaks(run, capsys):
    assert cli.main(["swap", "show", str(run)]) == exit_codes.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["all", "kept", "this", "plan", "measured"]
    assert lines[1].split()[4:] == ["90", "MiB", "60", "MiB", "62", "MiB"]
    assert lines[2].split()[4:] == ["400", "ms", "500", "ms", "610", "ms"]
    planned = next(at for at, line in enumerate(lines) if "planned peak (unet/planned_op)" in line)
    assert [line.split() for line in lines[planned + 1 : planned + 3]] == [
        ["30", "MiB", "unet/skip:0"],
        ["0.5", "MiB", "unet/up:0"],
    ]
    measured = next(at for at, line in enumerate(lines) if "measured peak (unet/measured" in line)
    assert lines[measured + 1].split() == ["31", "MiB", "unet/other"]


def test_what_was_not_measured_is_said(tmp_path):
    why = Measured(step_seconds=0.61, why_not="the allocator keeps no account")
    shown = text(PLAN, why)
    assert "Memory was not measured: the allocator keeps no account." in shown
    assert "610 ms" in shown
    assert "measured" not in text(PLAN)
    assert "the 2 replicas of one process" in text(
        PLAN, dataclasses.replace(MEASURED, num_replicas=2)
    )
    # A record of an earlier version.
    (tmp_path / "swap.json").write_text(json.dumps({"plans": [dataclasses.asdict(PLAN)]}))
    assert "did not measure" in text(PLAN, read_measured(tmp_path))


def test_both_curves_are_drawn_where_both_are_there(tmp_path):
    for name, measured in (("both", MEASURED), ("planned", None), ("why", Measured(why_not="x"))):
        draw(PLAN, tmp_path / f"{name}.svg", measured)
    both, planned, why = (
        (tmp_path / f"{name}.svg").read_text() for name in ("both", "planned", "why")
    )
    assert ">measured<" in both
    assert "share of the step (%)" in both
    assert "62 MiB measured" in both
    for drawing in (planned, why):
        assert ">measured<" not in drawing
        assert "predicted time in the step (s)" in drawing
