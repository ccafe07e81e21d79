"""A report tells energy where it was measured, and says nothing of it elsewhere."""

import pytest
from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet.bench.analysis.dice_target import read_dice_target
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.sweep_report import write_report
from tfunet.bench.report.tables import cell_facts, cost_rows, trial_facts

GRID = {"backend": ["single", "mirrored"], "num_replicas": [1, 2]}
COLUMNS = ("energy a run (Wh)", "J a sample")


@pytest.fixture
def sweep(tmp_path):
    """Three repeats of two cells: 3600, 7200 and 10800 J on one replica, nothing on two."""
    for trial in write_sweep(tmp_path, make_study(grid=GRID)):
        if trial.config.num_replicas == 1:
            joules = 3600.0 * trial.repeat
            write_trial(tmp_path, trial, energy_joules=joules, energy_packages=1.0, energy_gpus=0.0)
    return tmp_path


def test_the_cost_table_tells_watt_hours_and_joules_a_sample(sweep):
    (family,) = summarise(read_sweep(sweep)).families
    one, two = cost_rows(family, read_dice_target(family.cells))
    # 60 steps of 4 samples.
    assert [one[name] for name in COLUMNS] == ["2 [1, 3]", "30 [15, 45]"]
    assert [two[name] for name in COLUMNS] == ["-", "-"]


def test_programs_get_joules_unrounded(sweep):
    summary = summarise(read_sweep(sweep))
    (family,) = summary.families
    target = read_dice_target(family.cells)
    facts = cell_facts(family, family.cells[0], target)
    assert (facts["energy_joules"], facts["joules_per_sample_high"]) == (7200.0, 45.0)
    assert "energy_joules" not in cell_facts(family, family.cells[1], target)
    trial = trial_facts(family.cells[0].trials[2])
    assert (trial["energy_joules"], trial["energy_packages"]) == (10800.0, 1.0)


def test_the_report_says_what_is_left_out(sweep):
    report = write_report(sweep)
    assert "leaves out memory, fans and power supply" in report.markdown.read_text()
    assert "leaves out memory, fans and power supply" in report.html.read_text()


def test_without_counters_nothing_is_said_of_energy(tmp_path):
    write_sweep(tmp_path, make_study(grid=GRID, repeats=1))
    (family,) = summarise(read_sweep(tmp_path)).families
    assert not any(
        name in row for row in cost_rows(family, read_dice_target(family.cells)) for name in COLUMNS
    )
    report = write_report(tmp_path)
    assert "nergy" not in report.markdown.read_text() + report.html.read_text()
