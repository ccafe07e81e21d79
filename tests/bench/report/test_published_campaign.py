"""The published campaign: logs as its script writes them, and its efficiencies out of them."""

import csv
import json

import pytest
from campaign_logs import GPUS, ONE_GPU, PUBLISHED, write_log

from tfunet.bench.records.published_campaign import is_campaign, read_campaign
from tfunet.bench.report.campaign_report import (
    WARNINGS,
    campaign_json,
    campaign_rows,
    campaign_text,
    write_campaign_report,
)


@pytest.fixture
def logs(tmp_path):
    for kind, efficiencies in PUBLISHED.items():
        write_log(tmp_path / f"log_{kind}1.csv", ONE_GPU[kind])
        for count, value in zip(GPUS, efficiencies, strict=True):
            write_log(tmp_path / f"log_{kind}{count}.csv", ONE_GPU[kind] / (count * value))
    return tmp_path


def test_the_published_efficiencies_come_out_to_three_digits(logs):
    rows = campaign_rows(read_campaign(logs))
    by_name = {(row["backend"] == "horovod", row["GPUs"]): row["efficiency"] for row in rows}
    for kind, efficiencies in PUBLISHED.items():
        assert by_name[kind == "hvd_", "1"] == "1.000"
        for count, value in zip(GPUS, efficiencies, strict=True):
            assert by_name[kind == "hvd_", str(count)] == f"{value:.3f}"


def test_the_two_native_strategies_are_told_apart(logs):
    ways = {run.num_gpus: run.way for run in read_campaign(logs) if run.way != "horovod"}
    assert ways == {1: "single", 2: "mirrored"} | dict.fromkeys(GPUS[1:], "multiworker")


def test_the_first_epoch_does_not_count_and_a_stalled_one_shows(logs):
    run = next(
        trial for trial in read_campaign(logs) if (trial.way, trial.num_gpus) == ("horovod", 14)
    )
    assert len(run.epoch_seconds) == 199
    assert run.iou == 0.96
    lines = (logs / "log_hvd_14.csv").read_text().splitlines()
    lines[50] = lines[50].replace(lines[50].split(",")[1], "30.0")
    (logs / "log_hvd_14.csv").write_text("\n".join(lines))
    stalled = next(
        trial for trial in read_campaign(logs) if (trial.way, trial.num_gpus) == ("horovod", 14)
    )
    assert stalled.efficiency < 0.96 * run.efficiency
    assert stalled.median_efficiency == pytest.approx(run.median_efficiency, rel=1e-3)


def test_without_its_own_baseline_horovod_has_the_native_one(logs):
    (logs / "log_hvd_1.csv").unlink()
    run = next(
        trial for trial in read_campaign(logs) if (trial.way, trial.num_gpus) == ("horovod", 14)
    )
    assert run.efficiency == pytest.approx(0.962 * ONE_GPU[""] / ONE_GPU["hvd_"], abs=1e-4)
    (logs / "log_1.csv").unlink()
    with pytest.raises(ValueError, match="no log of one GPU as the baseline: add log_1"):
        read_campaign(logs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs two or more epochs"),
        ("a,b\n1,2\n", r"is not a log of the campaign \(KeyError\('time_per_epoch'\)\)"),
        (",time_per_epoch\n0,1.0\n1,soon\n", "is not a log of the campaign"),
        (",time_per_epoch\n0,1.0\n", "needs two or more epochs"),
        (",time_per_epoch\n0,1.0\n1,-2\n", "has an epoch whose time_per_epoch is not positive"),
    ],
)
def test_a_log_that_cannot_be_read_is_named(logs, text, words):
    (logs / "log_4.csv").write_text(text)
    with pytest.raises(ValueError, match=r"log_4\.csv " + words):
        read_campaign(logs)


def test_what_is_a_campaign(logs, tmp_path):
    assert is_campaign(logs)
    assert not is_campaign(tmp_path / "none")
    (logs / "plan.json").write_text("{}")
    assert not is_campaign(logs)


def test_the_report_has_all_warnings(logs):
    written = write_campaign_report(logs)
    assert written == logs / "report" / "report.md"
    page, shown = written.read_text(), campaign_text(read_campaign(logs))
    assert all(sentence in page and sentence in shown for sentence in WARNINGS)
    assert page.index(WARNINGS[0]) < page.index("0.962")
    cells = list(csv.DictReader((logs / "report" / "cells.csv").open()))
    assert len(cells) == 16
    assert float(cells[-1]["efficiency"]) == pytest.approx(0.962, abs=1e-5)


def test_gpus_that_are_slower_than_one_have_no_serial_share(logs):
    (logs / "log_2.csv").write_text(",time_per_epoch\n0,900.0\n1,900.0\n")
    rows = campaign_rows(read_campaign(logs))
    shares = {(row["backend"], row["GPUs"]): row["serial share"] for row in rows}
    assert shares["mirrored", "2"] == "-" != shares["horovod", "2"]


def test_programs_get_every_number(logs):
    table = json.loads(json.dumps(campaign_json(read_campaign(logs)), allow_nan=False))
    assert len(table["runs"]) == 16
    assert table["runs"][0]["serial_share"] is None
    assert table["doubts"] == list(WARNINGS)
