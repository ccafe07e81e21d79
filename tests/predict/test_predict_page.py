"""docs/predict.md: its example runs, and its options are those of the command."""

import csv
import re
import shlex
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
import tifffile
from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main

PAGE = (ROOT / "docs" / "predict.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.multiprocess
def test_the_example_does_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for block in [*blocks("python"), *blocks("toml")]:
        (tmp_path / re.match(r"# (\S+)\n", block)[1]).write_text(block)
    subprocess.run([sys.executable, "scenes.py"], check=True)
    for line in "".join(blocks("sh")).splitlines():
        words = shlex.split(line)[1:]
        if "--devices" in words:  # This process has its device already.
            subprocess.run([sys.executable, "-m", "tfunet", *words], check=True)
        else:
            assert main(words) == exit_codes.OK, line
    image = tifffile.imread("new.tif")
    for folder in ("predicted", "exact"):
        labels = tifffile.imread(f"{folder}/new.tif")
        truth = image.mean(-1) > 2750
        # It has learnt something, and it lies where the fields are.
        assert 2 * (labels & truth).sum() / (labels.sum() + truth.sum()) > 0.8
    as_masks = tifffile.imread("masks/new.tif")
    np.testing.assert_array_equal(as_masks, 255 * tifffile.imread("predicted/new.tif"))
    assert tifffile.imread("exact/new_probabilities.tif").shape == (2, 300, 400)
    assert (tmp_path / "predicted/new.json").is_file()
    with PIL.Image.open("predicted/new_overlay.png") as picture:
        assert len(set(np.asarray(picture.convert("RGB")).reshape(-1, 3).tobytes())) > 100
    assert {path.name for path in (tmp_path / "all").glob("*.tif")} == {
        f"{name}_image.tif" for name in ("north", "south", "west")
    }
    # The two that the network was trained on are left out.
    with (tmp_path / "scored/scores.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["case"] in ("north", "south", "west")
    assert 0.5 < float(row["dice"]) <= 1
    assert float(row["hd95"]) >= 0
    assert 0 <= float(row["nsd@2px"]) <= 1


def test_the_options_are_those_of_the_command(capsys):
    known = set()
    for command in ("predict", "evaluate"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        known |= set(re.findall(r"--([\w-]+)", capsys.readouterr().out))
    in_words = set(re.findall(r"`(?:tfunet predict )?--([\w-]+)", PAGE))
    assert known - {"help", "overlay", "trust", "out"} == in_words - {"trust"}
