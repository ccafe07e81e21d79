"""docs/fit.md: its script learns the same on one device and on several, as the page shows."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys

import keras
import pytest
from pages import blocks
from paths import ROOT

PAGE = (ROOT / "docs/fit.md").read_text()
SCRIPT = ROOT / "docs/examples/corners.py"
ALONE, TOGETHER = "".join(blocks(PAGE, "sh")).splitlines()
BOUND = 1e-5  # Rounding, after 39 steps of SGD.


def printed_by(command, folder):
    """Run a command of the page in a folder with its files; return what it prints."""
    program, *words = shlex.split(command, comments=True)
    how = {"python": [], "tfunet": ["-m", "tfunet"]}[program]
    shutil.copytree(SCRIPT.parent, folder / "docs/examples")
    ended = subprocess.run(
        [sys.executable, *how, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def results_in(text):
    """The numbers of `fit`, by name, and of the script; times are none."""
    return [
        float(number)
        for line in text.splitlines()
        for number in re.findall(r"(?:\w+: |finds )(\d+\.\d+(?:e-\d+)?)", line)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder in which plain Python has run the script, and what was printed."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, printed_by(ALONE, folder)


def test_two_lines_of_the_script_are_new():
    marked = [line for line in SCRIPT.read_text().splitlines() if line.endswith("  # new")]
    shown, cut = blocks(PAGE, "python")
    assert "distribute(split=[2, 1])" in cut  # The contract of fit trains so.
    assert marked == list(filter(None, shown.splitlines()))


@pytest.mark.multiprocess
def test_plain_python_prints_the_results_on_the_page(alone):
    _, printed = alone
    (shown,) = blocks(PAGE, "text")
    assert results_in(printed) == pytest.approx(results_in(shown), abs=0.02)
    assert len(results_in(shown)) == 3 * 4 + 1
    assert "replicas" not in printed


@pytest.mark.multiprocess
def test_two_replicas_learn_what_one_device_does(alone, tmp_path):
    folder, _ = alone
    printed = printed_by(TOGETHER, tmp_path)
    (shown,) = blocks(PAGE, "text")
    assert printed.splitlines()[0] == shown.splitlines()[0]
    # Once, and not by each process.
    assert len(results_in(printed)) == len(results_in(shown))
    one, two = (rows_of(place / "corners.csv") for place in (folder, tmp_path))
    assert two == pytest.approx(one, abs=BOUND)
    one, two = (keras.saving.load_model(place / "corners.keras") for place in (folder, tmp_path))
    for weight, other in zip(one.get_weights(), two.get_weights(), strict=True):
        assert other == pytest.approx(weight, abs=BOUND)


def rows_of(file):
    return [
        float(cell) for row in list(csv.reader(file.read_text().splitlines()))[1:] for cell in row
    ]
