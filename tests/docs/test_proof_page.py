"""docs/proof.md: its own train_step sees parts of images, and the run says so before its first."""

import subprocess
import sys

import pytest
from pages import blocks, put_example
from paths import ROOT

from tfunet.exit_codes import CHECK_FAILED

PAGE = (ROOT / "docs/proof.md").read_text()


@pytest.mark.multiprocess
def test_the_run_of_the_page_ends_as_the_page_says(tmp_path, monkeypatch):
    put_example(PAGE, tmp_path, monkeypatch)
    (command,) = blocks(PAGE, "sh")
    (said,) = blocks(PAGE, "text")
    small = "--data_options.num_cases 10 --data_options.size 32 --patch 32,32 --out out"
    started = f"{sys.executable} -m {command.strip()} {small}"
    done = subprocess.run(
        started, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == CHECK_FAILED, done.stdout + done.stderr
    printed = done.stdout + done.stderr
    assert said.strip().removesuffix("...") in printed
    assert "the output of the layer 'conv2d' (Conv2D) in Mirrored.train_step differs" in printed
    assert not (tmp_path / "out/steps.csv").exists()
