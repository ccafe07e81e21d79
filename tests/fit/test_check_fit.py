"""benchmarks/check_fit.py finds what differs from one device; its scripts run on one."""

import json
import re

import keras
import numpy as np
import pytest
from paths import ROOT

FOLDER = ROOT / "benchmarks/fit"
NEW_LINES = ["import tfunet", "tfunet.distribute()"]


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import check_fit

    return check_fit


def arrays(*, weight=2.0, loss=1.0):
    return {
        "history/loss": np.array([1.5, loss]),
        "history/mae": np.array([0.3, 0.2]),
        "predict/output": np.ones((2, 3), "float32"),
        "weights/000 kernel": np.array([weight, -4.0], "float32"),
        "weights/001 steps": np.array(7),
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.001], [0.002], 0.01),  # Relative to 0.1: its own terms are that large.
        ([1.0], [1.0, 2.0], np.inf),
        ([1], [1.0], np.inf),
        ([np.nan], [np.nan], np.inf),
        ([], [], 0.0),
        ("loss", "loss", 0.0),
        ("loss", "mae", np.inf),
    ],
)
def test_difference_is_relative_to_the_largest_number(check, ours, theirs, share):
    assert check.apart(np.array(ours), np.array(theirs)) == pytest.approx(share)


def test_each_kind_of_number_has_its_own_difference(check):
    found = check.differences(arrays(weight=3.0, loss=2.5), arrays())
    assert found == {
        "losses": pytest.approx(1.0),
        "metrics": 0.0,
        "evaluate": None,
        "predict": 0.0,
        "weights": pytest.approx(0.25),
    }


def test_an_array_that_one_run_lacks_is_infinitely_far(check):
    fewer = arrays()
    del fewer["history/mae"]
    assert check.differences(fewer, arrays())["metrics"] == np.inf
    assert check.differences(arrays(), fewer)["metrics"] == np.inf


@pytest.mark.parametrize("number", [np.nextafter(np.float32(2), np.float32(3)), 5.0])
def test_processes_with_one_other_bit_are_unequal(check, number):
    assert check.first_unequal([arrays(), arrays()]) is None
    assert check.first_unequal([arrays(), arrays(weight=number)]) == "weights/000 kernel"
    assert check.first_unequal([arrays(), {**arrays(), "history/auc": np.ones(2)}]) == "history/auc"


def folder_of(tmp_path, files):
    tmp_path.mkdir()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


EVENTS = "board/events.out.tfevents.1.here.7.0.v2"
FILES = {
    "log.csv": "epoch,loss\n0,1.5\n1,1.0\n",
    EVENTS: "",
    "result-0.npz": "",
}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        # TensorBoard's names have the time and the process.
        (
            {"board/events.out.tfevents.1.here.7.0.v2": None, "board/events.out.tfevents.2": ""},
            None,
        ),
        ({"result-1.npz": ""}, None),
        ({"log.csv": "epoch,loss\n0,1.5\n1,1.0000001\n"}, None),
        ({"log.csv": "epoch,loss\n0,1.5\n1,1.1\n"}, "log.csv differs by 1e-01"),
        ({"log.csv": "epoch,mae\n0,1.5\n1,1.0\n"}, "log.csv differs by inf"),
        ({"log.csv": FILES["log.csv"] + "1,1.0\n"}, "4 rows in log.csv, not 3"),
        ({"log.csv": None}, "0 of log.csv, not 1"),
        ({"best.keras.tmp": ""}, "1 of best.keras.tmp, not 0"),
        ({"board/events.out.tfevents.2": ""}, "2 of board/events.out.tfevents, not 1"),
    ],
)
def test_files_that_one_device_does_not_write_are_named(check, tmp_path, changes, fault):
    theirs = check.written(folder_of(tmp_path / "theirs", FILES))
    files = {name: text for name, text in {**FILES, **changes}.items() if text is not None}
    ours = check.written(folder_of(tmp_path / "ours", files))
    assert check.file_fault(ours, theirs, 1e-6) == fault


def test_other_weights_in_a_model_file_are_named(check, tmp_path):
    found = []
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.set_weights([np.full((2, 1), 2.0 if name == "three" else 1.0), np.zeros(1)])
        model.save(tmp_path / name / "best.keras")
        found.append(check.written(tmp_path / name))
    one, two, three = found
    assert check.file_fault(one, two, 1e-6) is None
    assert check.file_fault(three, two, 1e-6) == "best.keras differs by 1e+00"


def test_an_epoch_that_is_printed_twice_is_a_fault(check):
    once = "Epoch 1/2\nloss: 1.0\nEpoch 2/2\n"
    assert check.progress_fault(once.replace("1.0", "1.1"), once) is None
    assert check.progress_fault(once.replace("Epoch", "[0] Epoch"), once) is None
    assert check.progress_fault(once + "[1] Epoch 2/2\n", once) == "3 epochs printed, not 2"
    assert check.progress_fault("", once) == "0 epochs printed, not 2"


def finished(tmp_path, recorded):
    folder = folder_of(tmp_path, {"output.txt": "Epoch 1/1\n"})
    (folder / "out").mkdir()
    for index, found in enumerate(recorded):
        np.savez(folder / f"out/result-{index}.npz", **found)
    return folder


@pytest.mark.parametrize(
    ("recorded", "cells", "faults"),
    [
        ([arrays(), arrays()], ["0e+00", "equal", "once"], []),
        (
            [arrays(weight=2.1), arrays(weight=2.1)],
            ["2e-02", "equal", "once"],
            ["weights differ"],
        ),
        (
            [arrays(), arrays(weight=2.1)],
            ["0e+00", "**differ**: weights/000 kernel", "once"],
            ["processes differ in weights/000 kernel"],
        ),
        (
            [arrays()],
            ["-", "1 processes recorded a result, not 2", "-"],
            ["1 processes recorded a result, not 2"],
        ),
    ],
)
def test_row_says_what_is_wrong_with_a_run(check, tmp_path, recorded, cells, faults):
    alone = finished(tmp_path / "alone", [arrays()])
    ours = finished(tmp_path / "ours", recorded)
    row, found = check.row_of(check.Script(file="vae.py"), ours, alone, 2)
    assert row[-3:] == cells
    assert found == faults


def test_page_has_a_cell_for_each_column_and_the_bounds(check):
    page = check.page([check.table_row(["vae", "mirrored", *["0"] * 7])])
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {10}
    assert "1e-06; 0.0001 with adam, 0.001 with float16, 0.01 with bfloat16." in page


def test_a_script_that_ends_with_an_error_or_was_of_other_code_is_run_again(
    check, tmp_path, monkeypatch
):
    (tmp_path / "ends.py").write_text("import sys\nprint('once')\nsys.exit('It is full.')\n")
    script = check.Script(file=str(tmp_path / "ends.py"))
    assert check.run_script(script, check.ALONE, tmp_path / "run") == 1
    assert check.last_words(tmp_path / "run") == "It is full."
    (tmp_path / "ends.py").write_text("print('twice')\n")
    for _ in range(2):
        assert check.run_script(script, check.ALONE, tmp_path / "run") == 0
        # The second time it is kept.
        (tmp_path / "ends.py").write_text("print('a third time')\n")
    assert (tmp_path / "run/output.txt").read_text() == "twice\n"
    monkeypatch.setattr(check, "version", lambda: "of other code")
    assert check.run_script(script, check.ALONE, tmp_path / "run") == 0
    assert (tmp_path / "run/output.txt").read_text() == "a third time\n"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("[0]   File\n[0] RuntimeError: It is full.\n[0] \ntfunet: See the log.\n", "It is full."),
        ("tf.errors.InvalidArgumentError: It is odd.\n", "It is odd."),
        ("Killed\n\n", "Killed"),
        ("", "it says nothing"),
    ],
)
def test_error_of_a_run_is_told_not_what_comes_after_it(check, tmp_path, written, words):
    (tmp_path / "errors.txt").write_text(written)
    assert check.last_words(tmp_path).endswith(words)


def test_a_script_that_does_not_end_is_ended(check, tmp_path):
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
    script = check.Script(file=str(tmp_path / "waits.py"))
    assert check.run_script(script, check.ALONE, tmp_path / "run", seconds=1) != 0
    assert json.loads((tmp_path / "run/ended.json").read_text())["seconds"] < 60


def test_scripts_have_two_new_lines(check):
    for file in {script.file for script in check.SCRIPTS.values()}:
        lines = (FOLDER / file).read_text().splitlines()
        assert [line for line in lines if "tfunet" in line] == NEW_LINES
        # Nothing of Keras is made before.
        before = lines[: lines.index("tfunet.distribute()")]
        assert [line for line in before if re.match(r"\w+ = |keras\.|tf\.", line)] == []


def test_every_script_and_variation_is_checked(check):
    files = {file.name for file in FOLDER.glob("*.py")} - {"recorded.py"}
    assert {script.file for script in check.SCRIPTS.values()} == files
    text = (FOLDER / "variations.py").read_text()
    listed = re.search(r"VARIATIONS = \((.*?)\)", text, re.DOTALL)[1]
    named = {script.options[1] for script in check.SCRIPTS.values() if script.options}
    assert set(re.findall(r'"(\w+)"', listed)) == named


@pytest.mark.slow
def test_a_script_runs_on_one_device_as_the_loss_falls(check, tmp_path):
    script = check.SCRIPTS["weighted_regression"]
    assert check.run_script(script, check.ALONE, tmp_path / "run") == 0, check.last_words(
        tmp_path / "run"
    )
    (found,) = check.results(tmp_path / "run/out")
    losses = found["history/loss"]
    assert losses.shape == (3,)
    assert losses[-1] < losses[0]
    assert found["predict/output"].shape == (35, 1)
    assert found["evaluate/loss"] == pytest.approx(found["history/val_loss"][-1])
