"""The table that compares configurations: on a terminal, in the report, as CSV and as JSON."""

import csv
import re

import pytest
from planted_cases import plant
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.report.configuration_table import OTHER_MASKS
from tfunet.bench.report.sweep_report import summary_json, summary_table, write_report

MODELS = ["nets.py:plain", "nets.py:dilated"]
# Dice of four cases; of the second model 0.02 or so less.
LEADS = {"alike": (0.02, 0.021, 0.019, 0.02), "unlike": (0.14, 0.02, 0.0, -0.08)}


def write(folder, leads="alike", repeats=3, regions=("cell",), **changes):
    metrics = changes.pop("metrics", {})
    base = {"cores_per_replica": 1, "metrics": list(metrics)}
    study = make_study(grid={"model": MODELS}, repeats=repeats, skip=[], base=base)
    for trial in write_sweep(folder, study):
        rank = MODELS.index(trial.config.model)
        cases = {}
        for number, lead in enumerate(LEADS[leads]):
            dice = 0.8 + 0.01 * trial.repeat - rank * (lead + 0.001 * trial.repeat)
            cases[f"case{number}"] = dict.fromkeys(regions, dice)
        step = {"median_step_seconds": 0.04 * (1 + rank), "parameters": 1000 * (1 + rank)}
        measured = {name: values[rank] + 0.1 * trial.repeat for name, values in metrics.items()}
        plant(folder, trial, cases, metrics=measured, **step, **changes)


def test_two_models_are_a_row_each_wherever_a_report_is_read(tmp_path):
    write(tmp_path, peak_device_bytes=[2**30])
    report = write_report(tmp_path)
    said = summary_table(tmp_path)
    assert "Configurations compared: single x1, 4 validation cases\n" in said
    names, plain, dilated, *_ = said.partition("Configurations compared")[2].splitlines()[1:]
    assert re.split(r"  +", names) == [
        "model",
        "repeats",
        "Dice (95 % interval)",
        "difference from the best",
        "adjusted p",
        "interval over cases",
        "parameters",
        "ms a step",
        "memory (GiB)",
        "device memory (GiB)",
    ]
    assert re.match(r"nets.py:plain +3 +0.820 \(0.795 to 0.845\) +- +- +- +1,000 +40 ", plain)
    assert re.match(
        r"nets.py:dilated +3 +0.798 \(0.776 to 0.820\) +-0.022 \(-0.024 to -0.020\) +below 0.001 "
        r"+-0.023 to -0.021 +2,000 +80 +0.\d\d +1.00",
        dilated,
    )
    for page in (report.html, report.markdown):
        assert "-0.022 (-0.024 to -0.020)" in page.read_text()
    page = report.html.read_text()
    assert '<a href="#configurations">' in page
    # What is found is in this table.
    assert "too few trials with numbers" not in page
    rows = list(csv.DictReader(report.configurations.open()))
    assert [row["model"] for row in rows] == MODELS
    assert float(rows[1]["step_seconds"]) == 0.08
    facts = summary_json(tmp_path)["configurations"]
    assert facts[1]["difference_over_cases_low"] == float(rows[1]["difference_over_cases_low"])
    assert facts[1]["difference"] == pytest.approx(-0.022)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, r"has the highest mean Dice, 0.820, 0.022 \(95 % interval \+0.020 to \+0.024\) above"),
        ({}, r"the next, and is ahead of all others beyond chance\.$"),
        (
            {"leads": "unlike"},
            r"beyond chance\. But other images may not agree: over the 4 validation cases, the "
            r"95 % interval of its lead over model=nets.py:dilated is -0.\d+ to \+0.\d+\.$",
        ),
        ({"repeats": 2}, r"0.815; whether by chance is known with 3 or more repeats\.\n"),
    ],
)
def test_the_answer_says_which_one_and_whether_the_difference_is_real(changes, words, tmp_path):
    write(tmp_path, **changes)
    said = summary_table(tmp_path)
    assert re.search(rf"\nAnswer: Of 2 configurations, model=nets.py:plain .*{words}", said)
    assert said.count("has the highest mean Dice") == 1


def test_each_region_and_metric_has_a_row(tmp_path):
    write(tmp_path, regions=("axon", "myelin"), metrics={"hd95": (2.0, 3.5)})
    facts = summary_json(tmp_path)["configurations"]
    assert [(row["metric"], row["region"]) for row in facts[:5]] == [
        ("Dice", "mean"),
        ("Dice", "axon"),
        ("Dice", "myelin"),
        ("hd95", "axon"),
        ("hd95", "myelin"),
    ]
    assert len(facts) == 10
    said = summary_table(tmp_path)
    assert re.search(r"\nmodel +region +metric +repeats +mean \(95 % interval\) ", said)
    # A distance may be above 1.
    assert re.search(
        r"\nnets.py:dilated +myelin +hd95 +3 +3.700 \(.*\) +\+1.500 \(1.500 to 1.500\) ", said
    )


def test_many_models_that_cannot_be_told_apart_are_counted(tmp_path):
    models = [f"nets.py:net{number}" for number in range(6)]
    study = make_study(grid={"model": models}, repeats=3, skip=[], base={"cores_per_replica": 1})
    write_sweep(tmp_path, study)
    assert re.search(
        r"Of 6 configurations, .* cannot be told from \d others\.", summary_table(tmp_path)
    )


def test_other_masks_are_said_and_not_compared(tmp_path):
    grid = {"data": ["cells", "spheres.py:open"]}
    study = make_study(grid=grid, repeats=3, skip=[], base={"cores_per_replica": 1})
    for trial in write_sweep(tmp_path, study):
        voxels = 1000 if trial.config.data == "cells" else 500
        plant(tmp_path, trial, {"a": {"cell": 0.5}}, voxels=voxels)
    assert f"\nAnswer: {OTHER_MASKS}" in summary_table(tmp_path)
    report = write_report(tmp_path)
    assert report.configurations is None
    assert OTHER_MASKS in report.html.read_text()
    assert summary_json(tmp_path)["configurations"] == []


def test_backends_alone_are_compared_by_their_family(tmp_path):
    grid = {"backend": ["single", "mirrored"], "num_replicas": [1]}
    write_sweep(tmp_path, make_study(grid=grid, repeats=3, skip=[]))
    assert "Configurations compared" not in summary_table(tmp_path)
    report = write_report(tmp_path)
    assert report.configurations is None
    assert "onfigurations" not in report.markdown.read_text()
