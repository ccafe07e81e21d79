"""A report on runs that predict numbers says their mean absolute error, and nothing of Dice."""

from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet.bench.analysis.dice_target import read_dice_target
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.sweep_report import write_report
from tfunet.bench.report.tables import cell_facts, summary_rows, trial_facts

GRID = {"backend": ["single", "mirrored"], "num_replicas": [1, 2]}


def test_errors_of_numbers_take_the_place_of_scores(tmp_path):
    for trial in write_sweep(tmp_path, make_study(grid=GRID)):
        mae = {"age": 0.1 * trial.repeat, "mass": 2.0}
        write_trial(tmp_path, trial, regions=(), mae=mae)
    summary = summarise(read_sweep(tmp_path))
    (family,) = summary.families
    for row in summary_rows(family):
        assert row["MAE age"] == "0.200 [0.100, 0.300]"
        assert not any("Dice" in name for name in row)
    facts = cell_facts(family, family.cells[0], read_dice_target(family.cells))
    assert (facts["mae_age_low"], facts["mae_mass"]) == (0.1, 2.0)
    assert trial_facts(family.cells[0].trials[0])["mae_age"] == 0.1
    report = write_report(tmp_path)
    assert "MAE mass" in report.markdown.read_text()
    assert "MAE mass" in report.html.read_text()
