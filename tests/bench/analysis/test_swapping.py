import json
from dataclasses import replace

import pytest
from synthetic_sweep import make_study, write_swap_sweep, write_sweep

from tfunet.bench.analysis.swapping import budget_facts, compare_budgets
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.notebooks.swap_plots import memory_curves, predicted_and_measured
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.plot_style import styles_of
from tfunet.bench.report.swapping_tables import (
    memory_rows,
    plan_rows,
    tensor_rows,
    time_rows,
    traffic_rows,
    verdicts,
)
from tfunet.bench.report.sweep_report import summary_json, summary_table, write_report
from tfunet.files.typed import FieldError
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import Measured

MIB = 2**20


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swapped")
    write_swap_sweep(folder)
    return read_sweep(folder)


@pytest.fixture(scope="module")
def comparisons(sweep):
    return compare_budgets(sweep)


@pytest.fixture(scope="module")
def styles(sweep):
    return styles_of(summarise(sweep))


def test_every_cell_with_a_budget_meets_the_same_cell_without(comparisons):
    assert [comparison.label for comparison in comparisons] == [
        "single x1, batch 4, 24MiB",
        "horovod x2, batch 4, 24MiB",
    ]
    for comparison in comparisons:
        assert {trial.config.swap for trial in comparison.upper} == {"24MiB"}
        assert {trial.config.swap for trial in comparison.lower} == {None}
        assert (len(comparison.upper), len(comparison.lower), len(comparison.plans)) == (3, 3, 3)


def test_the_planted_cost_comes_out_with_its_verdict(comparisons):
    for comparison in comparisons:
        assert comparison.ratio.value == pytest.approx(0.8)
        assert comparison.ratio_repeats == pytest.approx([0.8] * 3)
    for line in verdicts(comparisons):
        assert "0.80 times as fast as without (95 % interval 0.80 to 0.80, 3 repeats" in line
        assert line.endswith(": slower.")
    assert [row["times as fast as without"] for row in time_rows(comparisons)] == (
        ["0.80 (0.80 to 0.80)"] * 2
    )
    assert {row["predicted"] for row in time_rows(comparisons)} == {"0.90"}


def test_of_several_plans_the_one_that_needs_most_is_told(comparisons):
    for row in plan_rows(comparisons):
        assert row["all kept (MiB)"] == "50.0"
        assert row["under the plan"] == "20.0"
        assert (row["tensors swapped"], row["recomputed"]) == ("1", "1")


def test_memory_is_told_where_it_was_counted(comparisons):
    single, horovod = memory_rows(comparisons)
    assert single["less on the device, predicted"] == "30.0"
    assert single["device"].startswith("160.0")
    assert single["device without"].startswith("200.0")
    assert (horovod["device"], horovod["device without"]) == ("-", "-")
    assert horovod["processes"].startswith("950.0")
    assert horovod["processes without"].startswith("900.0")


def test_measured_memory_of_a_step_stands_beside_the_planned(comparisons):
    single, horovod = plan_rows(comparisons)
    assert single["measured"] == "21.0"
    assert horovod["measured"] == "-"
    assert all("measured" not in row for row in plan_rows([comparisons[1]]))
    # Nobody knows how much each of the replicas has that share an allocator.
    together = Measured(peak_bytes=42 * MIB, num_replicas=2)
    (row,) = plan_rows([replace(comparisons[1], measured=(together,))])
    assert "measured" not in row


def test_what_a_step_copies_is_told_and_whether_it_waits_for_it(comparisons):
    for row in traffic_rows(comparisons):
        assert row["to the host (MiB a step)"] == "20.0"
        assert row["and back"] == "25.0"
        assert row["copies (ms a step)"] == "50.0"
        assert row["hidden"] == "30.0"
        assert row["exposed"] == "20.0"
        assert not {"to the disk, and back", "copies, measured (ms)"} & row.keys()


def test_copies_of_traced_runs_were_measured(tmp_path):
    write_swap_sweep(tmp_path)
    run = next(tmp_path.glob("single-*24mib*-r1-*"))
    # Steps 2 and 3 count; the first one traces, and what comes after the last is no step's.
    lines = ["step,name,begin_seconds,seconds", "0,start,90,9", "1,step,100,5", "1,swap out,101,4"]
    for step, begin in ((2, 110), (3, 120)):
        lines += [f"{step},step,{begin},5", f"{step},swap out,{begin + 1},0.03"]
        lines += [f"{step},swap out,{begin + 2},0.01", f"{step},swap in,{begin + 3},0.02"]
    lines += ["3,timing steps,130,5", "3,swap in,131,4"]
    (run / "spans-0.csv").write_text("".join(f"{line}\n" for line in lines))
    single, horovod = traffic_rows(compare_budgets(read_sweep(tmp_path)))
    assert single["copies, measured (ms)"] == "60.0"
    assert horovod["copies, measured (ms)"] == "-"


def test_programs_get_the_numbers_unrounded(comparisons):
    single, horovod = (
        json.loads(json.dumps(budget_facts(comparison), allow_nan=False))
        for comparison in comparisons
    )
    assert (single["out_bytes"], single["in_bytes"]) == (20 * MIB, 25 * MIB)
    assert single["hidden_seconds"] == pytest.approx(0.03)
    assert (single["tensors_swapped"], single["tensors_recomputed"]) == (1, 1)
    assert single["measured_peak_bytes"] == 21 * MIB
    assert horovod["measured_peak_bytes"] is None
    assert single["ratio"] == pytest.approx(0.8)
    assert (single["verdict"], horovod["num_replicas"]) == ("slower", 2)


def test_plans_of_earlier_records_tell_what_is_swapped():
    table = {"decisions": {"a": "swap", "b": "recompute"}, "tensor_bytes": {"a": 5, "b": 3}}
    plan = Plan.from_table(table)
    assert (plan.out_bytes, plan.in_bytes) == (5, 5)
    assert Plan.from_table({**table, "compression": None, "compressed_bytes": {}}) == plan
    with pytest.raises(FieldError, match="Use the version that wrote it"):
        Plan.from_table({**table, "compression": "bfloat16"})


def test_the_report_has_a_section(tmp_path, sweep):
    report = write_report(sweep.folder, tmp_path)
    for text in (report.html.read_text(), report.markdown.read_text(), summary_table(sweep.folder)):
        assert "Large-model support" in text
        assert "to the host (MiB a step)" in text
        assert "24MiB: 0.80 times as fast as without" in text
    assert len(summary_json(sweep.folder)["swapping"]) == 2


def test_a_record_without_its_plan_does_not_end_the_report(tmp_path):
    write_swap_sweep(tmp_path)
    path = next(tmp_path.glob("single-*24mib*/swap.json"))
    path.unlink()
    assert "A run with --swap writes it" in summary_table(tmp_path)
    runs = {row["backend"]: row["runs"] for row in summary_json(tmp_path)["swapping"]}
    assert runs == {"single": 2, "horovod": 3}
    for other in tmp_path.glob("*/swap.json"):
        other.write_text("[]")
    assert "swap.json holds no plan of this version" in summary_table(tmp_path)
    assert summary_json(tmp_path)["swapping"] == []


def test_a_sweep_without_support_has_no_section(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    assert "Large-model support" not in summary_table(tmp_path)


def test_replicas_of_one_process_count_as_one_and_the_largest_tensor_comes_first(comparisons):
    assert tensor_rows(comparisons) == [
        {"tensor": "unet/large:0", "MiB": "20.00", "batch 4, 24MiB": "swap 6"},
        {"tensor": "unet/small:0", "MiB": "10.00", "batch 4, 24MiB": "recompute 6"},
    ]


def test_a_tensor_that_another_plan_gives_up_is_kept(comparisons):
    kept = replace(comparisons[0].plans[0], decisions={"unet/large:0": "swap"})
    other = replace(comparisons[0], budget="40MiB", plans=(kept,))
    rows = tensor_rows([*comparisons, other])
    assert [row["batch 4, 40MiB"] for row in rows] == ["swap 1", "keep 1"]


def test_limits_of_host_and_disk_are_part_of_the_budget(sweep):
    limits = {"swap_host": "1GiB", "swap_disk": "/nvme", "swap_disk_size": "9GiB"}
    trials = [
        trial
        if trial.config.swap is None
        else replace(trial, config=replace(trial.config, **limits))
        for trial in sweep.trials
    ]
    comparisons = compare_budgets(replace(sweep, trials=tuple(trials)))
    assert comparisons[0].label == "single x1, batch 4, 24MiB, host 1GiB, disk up to 9GiB"
    assert [(len(comparison.upper), len(comparison.lower)) for comparison in comparisons] == [
        (3, 3),
        (3, 3),
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, "24MiB"),
        ({"swap_host": "0"}, "24MiB, host 0"),
        ({"swap_host": "0", "swap_disk": "/nvme"}, "24MiB, host 0, on disk"),
    ],
)
def test_limits_of_nothing_are_limits_and_folders_are_none(limits, expected, sweep):
    swapped = [trial for trial in sweep.trials if trial.config.swap is not None]
    others = [replace(trial, config=replace(trial.config, **limits)) for trial in swapped]
    comparisons = compare_budgets(replace(sweep, trials=tuple(others)))
    assert {comparison.budget for comparison in comparisons} == {expected}


def test_the_disk_has_a_column_where_a_plan_uses_one(comparisons):
    assert all("on disk" not in row for row in plan_rows(comparisons))
    plan = replace(comparisons[0].plans[0], on_disk=("unet/large:0",), disk_bytes=20 * 2**20)
    rows = plan_rows([replace(comparisons[0], plans=(plan,)), comparisons[1]])
    assert [row["on disk"] for row in rows] == ["20.0", "0.0"]


def test_without_the_same_runs_without_a_budget_nothing_is_compared(tmp_path):
    write_swap_sweep(tmp_path, swaps=("24MiB",))
    sweep = read_sweep(tmp_path)
    comparisons = compare_budgets(sweep)
    assert verdicts(comparisons) == []
    assert {row["times as fast as without"] for row in time_rows(comparisons)} == {"-"}
    left, right = predicted_and_measured(comparisons, styles_of(summarise(sweep))).axes
    marks = {line.get_marker() for axes in (left, right) for line in axes.lines}
    assert marks == {"None", "|"}  # the lines of no change, and what is predicted


def test_a_sweep_without_budgets_is_refused_with_what_to_do(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    with pytest.raises(ValueError, match=r"no finished run with large-model .* swap = \[\"none\""):
        compare_budgets(read_sweep(tmp_path))


def test_curves_have_a_panel_for_each_batch_and_budget_and_a_line_for_each_way(comparisons, styles):
    (axes,) = memory_curves(comparisons, styles).axes
    assert axes.get_title(loc="left") + axes.get_title() == "batch 4 a replica, 24MiB"
    lines = {line.get_label(): line for line in axes.lines}
    assert {"everything kept", "planned, single", "planned, horovod"} <= lines.keys()
    assert max(lines["everything kept"].get_ydata()) == 50
    for way in ("single", "horovod"):
        line = lines[f"planned, {way}"]
        assert max(line.get_ydata()) == 20
        assert (line.get_color(), line.get_marker()) == styles[way]
        assert line.get_xdata()[-1] == pytest.approx(100)


def test_predicted_stands_beside_measured(comparisons, styles):
    left, right = predicted_and_measured(comparisons, styles).axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        comparison.label for comparison in comparisons
    ]
    places = [line.get_xdata()[0] for line in left.lines if line.get_marker() == "|"]
    assert 0.9 in [pytest.approx(place) for place in places]
    labels = {line.get_label(): line.get_xdata()[0] for line in right.lines}
    assert labels["predicted (of memory: the device's)"] == -30
    assert labels["measured, device memory"] == -40
    assert labels["measured, host memory of the processes"] == 50
