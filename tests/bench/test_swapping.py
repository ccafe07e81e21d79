from dataclasses import replace

import pytest
from synthetic_sweep import make_study, write_swap_sweep, write_sweep

from tfunet.bench.collect import read_sweep
from tfunet.bench.comparison import summarise
from tfunet.bench.plot_style import styles_of
from tfunet.bench.swap_plots import memory_curves, predicted_and_measured
from tfunet.bench.swapping import (
    memory_rows,
    plan_rows,
    read_swapped,
    tensor_rows,
    time_rows,
    verdicts,
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swapped")
    write_swap_sweep(folder)
    return read_sweep(folder)


@pytest.fixture(scope="module")
def found(sweep):
    return read_swapped(sweep)


@pytest.fixture(scope="module")
def styles(sweep):
    return styles_of(summarise(sweep))


def test_every_cell_with_a_budget_meets_the_same_cell_without(found):
    assert [one.label for one in found] == [
        "single x1, batch 4, 24MiB",
        "horovod x2, batch 4, 24MiB",
    ]
    for one in found:
        assert {trial.config.swap for trial in one.upper} == {"24MiB"}
        assert {trial.config.swap for trial in one.lower} == {None}
        assert (len(one.upper), len(one.lower), len(one.plans)) == (3, 3, 3)


def test_the_planted_cost_comes_out_with_its_verdict(found):
    for one in found:
        assert one.ratio.value == pytest.approx(0.8)
        assert one.ratio_repeats == pytest.approx([0.8] * 3)
    for line in verdicts(found):
        assert "0.80 times as fast as without (95 % interval 0.80 to 0.80, 3 repeats" in line
        assert line.endswith(": slower.")
    assert [row["times as fast as without"] for row in time_rows(found)] == (
        ["0.80 (0.80 to 0.80)"] * 2
    )
    assert {row["predicted"] for row in time_rows(found)} == {"0.90 [0.90, 0.90]"}


def test_of_several_plans_the_one_that_needs_most_is_told(found):
    for row in plan_rows(found):
        assert row["all kept (MiB)"] == "50.0 [50.0, 50.0]"
        assert row["under the plan"] == "20.0 [20.0, 20.0]"
        assert (row["tensors swapped"], row["recomputed"]) == ("1", "1")


def test_memory_is_told_where_it_was_counted(found):
    single, horovod = memory_rows(found)
    assert single["less on the device, predicted"] == "30.0 [30.0, 30.0]"
    assert single["device"].startswith("160.0")
    assert single["device without"].startswith("200.0")
    assert (horovod["device"], horovod["device without"]) == ("-", "-")
    assert horovod["processes"].startswith("950.0")
    assert horovod["processes without"].startswith("900.0")


def test_replicas_of_one_process_count_as_one_and_the_largest_tensor_comes_first(found):
    assert tensor_rows(found) == [
        {"tensor": "unet/large:0", "MiB": "20.00", "batch 4, 24MiB": "swap 6"},
        {"tensor": "unet/small:0", "MiB": "10.00", "batch 4, 24MiB": "recompute 6"},
    ]


def test_a_tensor_that_another_plan_gives_up_is_kept(found):
    kept = replace(found[0].plans[0], decisions={"unet/large:0": "swap"})
    other = replace(found[0], budget="40MiB", plans=(kept,))
    rows = tensor_rows([*found, other])
    assert [row["batch 4, 40MiB"] for row in rows] == ["swap 1", "keep 1"]


def test_limits_of_host_and_disk_are_part_of_the_budget(sweep):
    limits = {"swap_host": "1GiB", "swap_disk": "/nvme", "swap_disk_size": "9GiB"}
    trials = [
        one if one.config.swap is None else replace(one, config=replace(one.config, **limits))
        for one in sweep.trials
    ]
    found = read_swapped(replace(sweep, trials=tuple(trials)))
    assert found[0].label == "single x1, batch 4, 24MiB, host 1GiB, disk up to 9GiB"
    assert [(len(one.upper), len(one.lower)) for one in found] == [(3, 3), (3, 3)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, "24MiB"),
        ({"swap_host": "0"}, "24MiB, host 0"),
        ({"swap_host": 0, "swap_disk": "/nvme"}, "24MiB, host 0, on disk"),
        ({"swap_compression": "bfloat16"}, "24MiB, compressed to bfloat16"),
    ],
)
def test_limits_of_nothing_are_limits_and_folders_are_none(limits, expected, sweep):
    swapped = [one for one in sweep.trials if one.config.swap is not None]
    others = [replace(one, config=replace(one.config, **limits)) for one in swapped]
    found = read_swapped(replace(sweep, trials=tuple(others)))
    assert {one.budget for one in found} == {expected}


def test_the_disk_has_a_column_where_a_plan_uses_one(found):
    assert all("on disk" not in row for row in plan_rows(found))
    plan = replace(found[0].plans[0], on_disk=("unet/large:0",), disk_bytes=20 * 2**20)
    rows = plan_rows([replace(found[0], plans=(plan,)), found[1]])
    assert [row["on disk"] for row in rows] == ["20.0", "0.0 [0.0, 0.0]"]


def test_rounded_tensors_are_another_budget_with_a_column_of_their_own(sweep, found):
    assert all("compressed" not in row for row in plan_rows(found))
    one, *others = (trial for trial in sweep.trials if trial.config.swap is not None)
    rounded = replace(one, config=replace(one.config, swap_compression="bfloat16"))
    without = [trial for trial in sweep.trials if trial.config.swap is None]
    swapped = read_swapped(replace(sweep, trials=(*without, rounded, *others)))
    assert [(one.budget, len(one.upper), len(one.lower)) for one in swapped] == [
        ("24MiB", 2, 3),
        ("24MiB, compressed to bfloat16", 1, 3),
        ("24MiB", 3, 3),
    ]
    plan = replace(
        found[0].plans[0], compression="bfloat16", compressed_bytes={"unet/large:0": 10 * 2**20}
    )
    rows = plan_rows([replace(found[0], plans=(plan,)), found[1]])
    assert [row["compressed"] for row in rows] == ["1", "0"]


def test_rounded_runs_are_compared_with_none_that_are_not(sweep):
    trials = [one for one in sweep.trials if one.config.swap is not None]
    rounded = [
        replace(one, config=replace(one.config, swap_compression="bfloat16")) for one in trials
    ]
    families = summarise(replace(sweep, trials=(*trials, *rounded))).families
    assert len(families) == 2 * len(summarise(replace(sweep, trials=tuple(trials))).families)
    for family in families:
        kinds = {trial.config.swap_compression for cell in family.cells for trial in cell.trials}
        assert len(kinds) == 1
        assert ("bfloat16" in family.title) == ("bfloat16" in kinds)


def test_without_the_same_runs_without_a_budget_nothing_is_compared(tmp_path):
    write_swap_sweep(tmp_path, swaps=("24MiB",))
    sweep = read_sweep(tmp_path)
    found = read_swapped(sweep)
    assert verdicts(found) == []
    assert {row["times as fast as without"] for row in time_rows(found)} == {"-"}
    left, right = predicted_and_measured(found, styles_of(summarise(sweep))).axes
    marks = {line.get_marker() for axes in (left, right) for line in axes.lines}
    assert marks == {"None", "|"}  # the lines of no change, and what is predicted


def test_a_sweep_without_budgets_is_refused_with_what_to_do(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    with pytest.raises(ValueError, match=r"no finished run with large-model .* swap = \[\"none\""):
        read_swapped(read_sweep(tmp_path))


def test_curves_have_a_panel_for_each_batch_and_budget_and_a_line_for_each_way(found, styles):
    (axes,) = memory_curves(found, styles).axes
    assert axes.get_title(loc="left") + axes.get_title() == "batch 4 a replica, 24MiB"
    lines = {line.get_label(): line for line in axes.lines}
    assert {"everything kept", "planned, single", "planned, horovod"} <= lines.keys()
    assert max(lines["everything kept"].get_ydata()) == 50
    for way in ("single", "horovod"):
        line = lines[f"planned, {way}"]
        assert max(line.get_ydata()) == 20
        assert (line.get_color(), line.get_marker()) == styles[way]
        assert line.get_xdata()[-1] == pytest.approx(100)


def test_predicted_stands_beside_measured(found, styles):
    left, right = predicted_and_measured(found, styles).axes
    assert [one.get_text() for one in left.get_yticklabels()] == [one.label for one in found]
    places = [line.get_xdata()[0] for line in left.lines if line.get_marker() == "|"]
    assert 0.9 in [pytest.approx(one) for one in places]
    labels = {line.get_label(): line.get_xdata()[0] for line in right.lines}
    assert labels["predicted (of memory: the device's)"] == -30
    assert labels["measured, device memory"] == -40
    assert labels["measured, host memory of the processes"] == 50
