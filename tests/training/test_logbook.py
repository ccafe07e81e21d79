"""What a run says of itself while it trains."""

import csv
import io
import json
import math
import re
import sys
import time
from dataclasses import replace

import keras
import psutil
import pytest

from tfunet.backend import Launch
from tfunet.bench.records.run_tables import table_faults
from tfunet.config.run import RunConfig
from tfunet.learning.divergence import has_diverged, warning
from tfunet.loop import run
from tfunet.process import terminal
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training.logbook import _duration, shown_numbers


def _small(tmp_path):
    return RunConfig(
        data="cells",
        data_options={"num_cases": 10, "size": 32},
        model_options={"filters": 2, "levels": 1},
        cache_dir=str(tmp_path / "cache"),
        global_batch=2,
        steps=3,
    )


def test_lines_of_a_run_without_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    run(_small(tmp_path), SingleDevice(Launch()), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    (first,) = (at for at, line in enumerate(lines) if line.startswith("Compiling the training"))
    assert "2 samples of 32 x 32 x 1. The first step" in lines[first]
    steps = [line for line in lines[first:] if line.startswith("step ")]
    assert re.fullmatch(r"step 1 of 3: loss \d\.\d+", steps[0])
    assert re.fullmatch(r"step 3 of 3: loss \S+, \S+ s a step, 0 s of steps left", steps[2])
    (epoch,) = (line for line in lines if line.startswith("epoch 1"))
    assert re.search(r"val_dice .*, \d+\.\d s of training, \d+\.\d s of evaluation$", epoch)
    dice = re.search(r"val_dice (\S+),", epoch)[1]
    assert lines[-2] == f"Mean Dice over 2 validation cases: cell {float(dice):.3f}."
    result = json.loads((tmp_path / "run/result.json").read_text())
    with (tmp_path / "run/cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("true_positive", "false_positive", "false_negative")
    true, *wrong = (sum(int(row[name]) for row in rows) for name in names)
    iou = true / (true + sum(wrong))
    assert lines[-1] == f"Dataset IoU: cell {iou:.3f}."
    assert result["dataset_iou"] == {"cell": iou}
    assert result["miou"] == iou != result["iou"]["cell"]
    with (tmp_path / "run/epochs.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    for name in ("dataset_iou", "dataset_iou_cell"):
        assert float(row[name]) == iou
    assert float(row["dataset_dice"]) == result["dataset_dice"]["cell"]
    # The same pixels.
    table = (tmp_path / "run/confusion.csv").read_text()
    right, false_positive, false_negative = true, *wrong
    rest = 2 * 32 * 32 - true - sum(wrong)
    assert table == (
        "true,0 background,1 cell\n"
        f"0 background,{rest},{false_positive}\n1 cell,{false_negative},{right}\n"
    )
    assert result["dataset_dice"] == {"cell": 2 * true / (2 * true + sum(wrong))}


LOGS = {"loss": 0.5, "val_dice": 0.25, "val_iou": 0.125, "val_dice_sky": 0.5, "val_dice_road": 0}
OF_DATASET = {"val_dataset_iou": 0.75, "val_dataset_iou_sky": 0.75}


@pytest.mark.parametrize(
    ("score", "logs", "regions", "end"),
    [
        ("dice", LOGS, ("sky", "road"), ["Dice of sky 0.5000, road 0.0000"]),
        ("dice", LOGS, ("sky",), []),
        (
            "dataset_iou",
            {**LOGS, **OF_DATASET},  # No mask and no prediction has a road.
            ("sky", "road"),
            ["val_dataset_iou 0.7500", "dataset IoU of sky 0.7500, road -"],
        ),
        ("dataset_iou", {**LOGS, **OF_DATASET}, ("sky",), ["val_dataset_iou 0.7500"]),
    ],
)
def test_the_line_of_an_epoch_has_the_score_that_was_asked_for(score, logs, regions, end):
    always = ["loss 0.5000", "val_dice 0.2500", "val_iou 0.1250"]
    assert shown_numbers(logs, regions, score) == [*always, *end]
    # Without an evaluation there is none.
    assert shown_numbers({"loss": 0.5}, regions, score) == ["loss 0.5000"]


class _SetBack(keras.callbacks.Callback):
    """Sets the clock back by an hour, as an administrator may, once training has begun."""

    def on_train_begin(self, logs=None):
        shown = time.time
        time.time = lambda: shown() - 3600


def test_a_clock_that_is_set_back_changes_no_duration(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", time.time)  # Puts the clock right again.
    config = replace(_small(tmp_path), trace=True, steps=2)
    result = run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=[_SetBack()])
    seconds = time.clock_gettime(time.CLOCK_REALTIME) - psutil.Process().create_time()
    assert 0 < result["elapsed_seconds"] < seconds + 1
    assert 0 < result["start_seconds"] < seconds + 1
    assert table_faults(tmp_path / "run") == []
    (spans,) = RunFolder(tmp_path / "run").read_spans().values()
    assert {"start", "step", "evaluation"} <= {span["name"] for span in spans}


class _Screen(io.StringIO):
    """Standard output and error in one, as on a terminal."""

    def isatty(self):
        return True


def test_lines_and_the_progress_bar_do_not_share_a_line(tmp_path, monkeypatch):
    screen = _Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    run(_small(tmp_path), SingleDevice(Launch()), tmp_path / "run")
    said = screen.getvalue()
    for begin in ("Compiling the training step", "epoch 1: step 3", "Mean Dice over"):
        before = said[: said.index(begin)].rpartition("\n")[2].rpartition("\r")[2]
        assert not before.strip(), begin
    # The bar ends with the last epoch, before steps that only measure.
    assert "step/s" not in said[said.index("Mean Dice over") :]


def test_a_loss_that_diverges_is_said_with_what_to_do(tmp_path, capsys):
    config = replace(_small(tmp_path), learning_rate=1e10)
    run(config, SingleDevice(Launch()), tmp_path / "run")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("warning: The loss diverged: it was ")
    assert "with a tenth of the learning rate; tfunet rate finds one" in last
    # The record can be read.
    assert table_faults(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("first", "last", "diverged"),
    [
        *[(1.7, 0.7, False), (1.7, 3.4, False), (1.7, 30.0, True), (1.7, math.nan, True)],
        *[(1.7, math.inf, True), (-1.0, -0.9, False), (math.nan, 1.0, False)],
        # An easy first batch, and one whose pixels are all ignored.
        *[(0.007, 0.1, False), (0.0, 0.7, False)],
    ],
)
def test_what_counts_as_diverged(first, last, diverged):
    assert has_diverged(first, last) == diverged
    assert bool(warning(first, last)) == diverged


def test_durations():
    assert [_duration(seconds) for seconds in (45, 720, 12600)] == ["45 s", "12 min", "3.5 h"]
