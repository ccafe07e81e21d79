"""In what two plans differ, as text, as JSON, and by the exit code."""

import dataclasses
import json

import pytest

from tfunet import cli, exit_codes
from tfunet.record import RunFolder
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.diff import difference
from tfunet.swap.report.measured import Measured

MIB = 2**20
FIRST = Plan(
    decisions={"a:0": "swap", "b:0": "recompute", "c:0": "swap"},
    awaited={"a:0": "op1"},
    tensor_bytes={"a:0": 20 * MIB, "b:0": 30 * MIB, "c:0": MIB},
    peak_bytes=60 * MIB,
    budget_bytes=64 * MIB,
    detours=(("e:0", "op1", "op8"), ("f:0", "op2", "op9")),
    step_seconds=0.5,
)


def saved(folder, plan, measured=None):
    if measured is None:
        folder.mkdir()
        (folder / "plan.json").write_text(plan.to_json())
        return str(folder / "plan.json")
    folder.mkdir()
    RunFolder(folder).write_plans([dataclasses.asdict(plan)], dataclasses.asdict(measured))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # Times are measured anew for each plan, and budgets are what is asked for.
        ({"step_seconds": 0.7, "budget_bytes": 0, "peak_bytes": 1}, "do the same with every"),
        ({"decisions": {**FIRST.decisions, "b:0": "keep"}}, "recompute -> keep"),
        ({"on_disk": ("a:0",)}, "swap -> swap to disk"),
        ({"split": ("d:0",), "tensor_bytes": {"d:0": MIB}}, "keep -> split"),
        ({"awaited": {"a:0": "op2"}}, "copies out that are awaited elsewhere: 1"),
        ({"awaited": {}}, "copies out that are awaited elsewhere: 1"),
        ({"fetched": {"c:0": "op3"}}, "copies back that begin elsewhere: 1"),
        ({"slab_rows": {"op4": 8}}, "or not in slabs: 1"),
        ({"detours": FIRST.detours[:1]}, "leave for a while, to make room, elsewhere or under"),
        # One that leaves first has more places to come back to.
        ({"detours": FIRST.detours[::-1]}, "elsewhere or under one plan only: 2"),
        ({"is_placed": True}, "in a fixed order under one plan only: 1"),
    ],
)
def test_what_steers_a_step_makes_plans_differ(changes, told, tmp_path, capsys):
    second = dataclasses.replace(FIRST, **changes)
    paths = saved(tmp_path / "first", FIRST), saved(tmp_path / "second", second)
    expected = exit_codes.OK if "same" in told else exit_codes.DIFFERENT
    assert cli.main(["swap", "diff", *paths]) == expected
    assert told in capsys.readouterr().out
    assert cli.main(["swap", "diff", *paths, "--json"]) == expected
    assert json.loads(capsys.readouterr().out)["same"] == (expected == exit_codes.OK)


def test_the_largest_tensor_comes_first_and_measured_beside_planned(tmp_path, capsys):
    second = dataclasses.replace(FIRST, decisions={"a:0": "swap"}, peak_bytes=90 * MIB)
    measured = Measured(peak_bytes=91 * MIB, step_seconds=0.6)
    paths = saved(tmp_path / "first", FIRST), saved(tmp_path / "run", second, measured)
    assert cli.main(["swap", "diff", *paths]) == exit_codes.DIFFERENT
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["memory", "of", "a", "step", "60", "MiB", "90", "MiB"] in lines
    assert lines.count(["-", "measured", "-", "91", "MiB"]) == 1
    assert lines.count(["-", "measured", "-", "600", "ms"]) == 1
    assert [line[-1] for line in lines if "->" in line] == ["b:0", "c:0"]
    cli.main(["swap", "diff", *paths, "--json"])
    table = json.loads(capsys.readouterr().out)
    assert table["peak_bytes"] == {"first": 60 * MIB, "second": 90 * MIB}
    assert table["measured_peak_bytes"] == {"first": None, "second": 91 * MIB}
    assert table["tensors"][0] == {
        "name": "b:0",
        "num_bytes": 30 * MIB,
        "first": "recompute",
        "second": "keep",
    }


def test_a_place_of_a_tensor_that_is_not_swapped_any_more_is_no_difference_of_its_own():
    second = dataclasses.replace(FIRST, decisions={"b:0": "recompute", "c:0": "swap"}, awaited={})
    changed = difference(FIRST, second)
    assert [change.name for change in changed.changes] == ["a:0"]
    assert not any(changed.moved.values())


def test_replicas_of_one_process_are_as_those_of_several():
    second = dataclasses.replace(
        FIRST,
        decisions={f"replica_1/{name}": what for name, what in FIRST.decisions.items()},
        awaited={"replica_1/a:0": "replica_1/op1"},
    )
    assert difference(FIRST, second).is_same


def test_what_is_no_plan_is_refused(tmp_path, capsys):
    path = saved(tmp_path / "first", FIRST)
    assert cli.main(["swap", "diff", path, str(tmp_path / "none")]) == exit_codes.BAD_INPUT
    assert "A run with --swap writes it" in capsys.readouterr().err
