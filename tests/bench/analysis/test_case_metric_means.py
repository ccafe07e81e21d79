"""Metrics of whole cases in a report: means over cases, and how many define them."""

import math
import re

from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.case_metric_means import CaseMean, case_means
from tfunet.bench.report.sweep_report import summary_table, write_report
from tfunet.record import RunFolder

GRID = {"backend": ["single"], "num_replicas": [1]}


def write(folder, values):
    counts = {"true_positive": 1, "false_positive": 0, "false_negative": 0}
    rows = [
        {"epoch": 3, "case": f"c{case}", "region": "cell", **counts, "hd95": value, "nsd@1mm": 0.5}
        for case, value in enumerate(values)
    ]
    RunFolder(folder).write_cases(rows, metrics=("hd95", "nsd@1mm"))


def test_means_leave_out_cases_in_which_a_metric_is_not_defined(tmp_path):
    write(tmp_path, [1.0, "", 4.0])
    means = case_means(tmp_path, ("hd95", "nsd@1mm"))
    assert means["hd95", "cell"] == CaseMean(value=2.5, num_defined=2, num_cases=3)
    assert means["nsd@1mm", "cell"].value == 0.5
    write(tmp_path, ["", ""])
    nowhere = case_means(tmp_path, ("hd95",))["hd95", "cell"]
    assert math.isnan(nowhere.value)
    assert nowhere.num_defined == 0


def test_a_report_has_a_table_of_them(tmp_path):
    base = {"metrics": ["hd95", "nsd@1mm", "sparse_categorical_accuracy"]}
    trials = write_sweep(tmp_path / "s", make_study(repeats=3, grid=GRID, base=base))
    for repeat, trial in enumerate(trials):
        write(tmp_path / "s" / trial.id, [1.0 + repeat, "", 3.0])
    text = summary_table(tmp_path / "s")
    (header,) = (line for line in text.splitlines() if "  metric  " in line)
    assert re.split(r"  +", header) == [
        *("backend", "replicas", "region", "metric", "median", "mean (95 % interval)"),
        # A single cell has no difference.
    ]
    assert "2.500 [2.000, 3.000] in 6 of 9 cases" in text
    report = write_report(tmp_path / "s")
    for page in (report.html, report.markdown):
        assert "2.500 [2.000, 3.000] in 6 of 9 cases" in page.read_text()
    assert {path.stem for path in report.figures} >= {"cases", "metric-hd95", "metric-nsd-1mm"}


def test_intervals_are_those_of_means_and_differences_over_repeats(tmp_path):
    grid = {"backend": ["single", "mirrored"], "num_replicas": [1]}
    study = make_study(repeats=3, grid=grid, skip=[], base={"metrics": ["hd95"]})
    trials = write_sweep(tmp_path, study)
    means = {"single": (1.0, 2.0, 3.0), "mirrored": (1.5, 2.5, 3.8)}
    for trial in trials:
        write(tmp_path / trial.id, [means[trial.config.backend][trial.repeat - 1]])
    text = summary_table(tmp_path)
    # Student's t with two degrees of freedom: 4.303 times the standard error.
    assert re.search(
        r"single +1 +cell +hd95 +2.000 \[1.000, 3.000\] +2.000 \(-0.484 to 4.484\) +-", text
    )
    assert re.search(
        r"mirrored +1 +cell +hd95 +2.500 \[.*\] +2.600 \(.*\) +\+0.600 \(0.170 to 1.030\)",
        text,
    )


def test_a_report_without_such_metrics_has_no_table(tmp_path):
    write_sweep(tmp_path / "s", make_study(repeats=2, grid=GRID))
    assert "region" not in summary_table(tmp_path / "s")
