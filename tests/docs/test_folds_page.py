"""docs/folds.md: its study runs, and the prediction is that of all folds together."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import tifffile
from pages import put_example, run_commands
from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main

PAGE = (ROOT / "docs/folds.md").read_text()


@pytest.mark.multiprocess
def test_the_example_does_what_the_page_says(tmp_path, monkeypatch, capsys):
    put_example(PAGE, tmp_path, monkeypatch)
    runpy.run_path("new.py")
    run_commands(PAGE)
    assert "best is ahead by" in capsys.readouterr().out
    best = json.loads(Path("logs/folds/best.json").read_text())
    assert best["cases"] == 6
    first, second = (str(Path("logs/folds", run)) for run in best["runs"])
    splits = [json.loads(Path(run, "split.json").read_text()) for run in (first, second)]
    assert sorted(splits[0]["validation"]) == sorted(splits[1]["train"])
    words = ["predict", first, "new.npy", "--out", "hand", "--ensemble", second]
    assert main([*words, *["--mirror"] * best["mirror"]]) == exit_codes.OK
    by_hand, labels = (tifffile.imread(f"{folder}/new.tif") for folder in ("hand", "best"))
    if not best["largest"] and not best["min_voxels"]:
        np.testing.assert_array_equal(labels, by_hand)
    assert 0 < labels.mean() < 1
