import dataclasses

import pytest
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.dice_target import (
    common_target,
    curves_of,
    dice_curve,
    reach,
    reached,
    read_dice_target,
)
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.run_tables import read_epochs
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.record import RunFolder, epoch_columns


def write_epochs(folder, dice, regions=("cell",), seconds=2.0, steps=5):
    """Write epochs.csv with these Dice, None where an epoch had no evaluation."""
    with RunFolder(folder).epochs_table(regions) as table:
        for epoch, value in enumerate(dice, 1):
            row = dict.fromkeys(epoch_columns(regions), "")
            row |= {"epoch": epoch, "steps": epoch * steps, "training_seconds": seconds}
            if value is not None:
                row |= {f"dice_{region}": value for region in regions}
            table.append(row)


@pytest.fixture
def sweep(tmp_path):
    study = make_study(repeats=2, grid={"backend": ["single", "horovod"], "num_replicas": [1, 2]})
    trials = write_sweep(tmp_path, study)
    for trial in trials:
        best = 0.80 if trial.config.backend == "single" else 0.709
        write_epochs(tmp_path / trial.id, [None, 0.5, 0.7, best])
    return tmp_path


def cells(folder):
    (family,) = summarise(read_sweep(folder)).families
    return {cell.label: cell for cell in family.cells}


def test_effort_is_samples_seconds_and_device_hours(sweep):
    cell = cells(sweep)["horovod x2"]
    curve = dice_curve(cell.done[0])
    assert [dice for dice, _ in curve] == [0.5, 0.7, 0.709]
    effort = reach(curve, 0.7)
    # 15 steps of 2 x 4 samples, 3 epochs of 2 seconds on 2 devices.
    assert (effort.samples, effort.seconds) == (120, 6.0)
    assert effort.device_hours == pytest.approx(12 / 3600)
    assert reach(curve, 0.9) is None


def test_the_common_target_is_what_the_worst_run_reached(sweep):
    target = read_dice_target(cells(sweep).values())
    assert target.dice == 0.70
    assert target.reached["horovod x2"].num_reached == 2
    assert common_target([]) is None
    assert common_target([[(0.009, None)]]) is None
    assert common_target([[(0.29, None)]]) == 0.29
    assert common_target([(), [(0.999, None)]]) == 0.99


def test_repeats_that_did_not_reach_it_are_counted(sweep):
    cell = cells(sweep)["single x1"]
    write_epochs(cell.done[0].folder, [0.5, 0.75])
    curves = curves_of(cell)
    both, one = reached(curves, 0.7), reached(curves, 0.8)
    assert (both.num_reached, both.num_repeats) == (2, 2)
    assert both.seconds.values == (4.0, 6.0)
    assert (one.num_reached, one.num_repeats) == (1, 2)
    assert reached(curves, 0.99) is None
    assert "single x1" not in read_dice_target([cell], 0.99).reached


def test_cells_without_a_dice_have_no_target(sweep):
    for cell in cells(sweep).values():
        for trial in cell.done:
            (trial.folder / "epochs.csv").unlink()
    target = read_dice_target(cells(sweep).values())
    assert (target.dice, target.reached) == (None, {})
    assert read_dice_target(cells(sweep).values(), 0.5).reached == {}


def test_the_mean_over_regions_counts(tmp_path):
    with RunFolder(tmp_path).epochs_table(("a", "b")) as table:
        row = dict.fromkeys(table.columns, 0.0)
        table.append({**row, "epoch": 1, "steps": 3, "dice_a": 0.5, "dice_b": 0.7})
    table = read_epochs(tmp_path, ["a", "b"])
    assert (table["steps"], table["dice"]) == ([3], [pytest.approx(0.6)])
    assert read_epochs(tmp_path / "none", ["a"]) == {"steps": [], "seconds": [], "dice": []}
    assert read_epochs(tmp_path, [])["dice"] == []


def test_a_trial_without_numbers_or_record_has_no_curve(sweep):
    trial = cells(sweep)["single x1"].done[0]
    (trial.folder / "epochs.csv").unlink()
    assert list(dice_curve(trial)) == []
    assert dice_curve(dataclasses.replace(trial, result=None)) == ()
