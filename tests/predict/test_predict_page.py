"""docs/predict.md: its example runs, and its options are those of the command."""

import re
import shlex
import subprocess
import sys

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
        assert main(shlex.split(line)[1:]) == exit_codes.OK, line
    image = tifffile.imread("new.tif")
    for folder in ("predicted", "exact"):
        labels = tifffile.imread(f"{folder}/new.tif")
        truth = image.mean(-1) > 2750
        # It has learnt something, and it lies where the fields are.
        assert 2 * (labels & truth).sum() / (labels.sum() + truth.sum()) > 0.8
    assert tifffile.imread("exact/new_probabilities.tif").shape == (2, 300, 400)
    assert (tmp_path / "predicted/new.json").is_file()


def test_the_options_are_those_of_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    known = set(re.findall(r"--(\w+)", capsys.readouterr().out)) - {"help"}
    assert known == set(re.findall(r"`(?:tfunet predict )?--(\w+)", PAGE)) | {"out"}
