"""New files for a run on data in code that says how it prepares them: the example of data.md."""

import contextlib
import json
import re
import shutil

import numpy as np
import pytest
import tifffile
from paths import ROOT
from PIL import Image

from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.data.image_files import read_image
from tfunet.loop import run
from tfunet.single_device import SingleDevice


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run on the example."""
    tmp_path = tmp_path_factory.mktemp("pairs")
    page = (ROOT / "docs/data.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "pairs.py").write_text(code)
    rng = np.random.default_rng(0)
    for case in "abcd":
        (tmp_path / "data" / case).mkdir(parents=True)
        for name in ("t1", "t2"):
            pixels = rng.integers(0, 256, (32, 40)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"data/{case}/{name}.png")
    config = RunConfig(
        model_options={"filters": 2, "levels": 1},
        data="pairs.py:open",
        data_options={"root": "data"},
        patches_per_case=4,
        epochs=2,
        learning_rate=0.05,
        cache_dir="cache",
    )
    with contextlib.chdir(tmp_path):
        run(config, SingleDevice(Launch()), tmp_path / "run")
    return tmp_path


@pytest.fixture
def pairs(trained, tmp_path, monkeypatch):
    """A copy of it, to work in."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_new_files_are_prepared_as_the_code_does(pairs, capsys):
    images = "data/{case}/t1.png,data/{case}/t2.png"
    assert main(["predict", "run", images, "--no-overlay", "--out", "predicted"]) == exit_codes.OK
    assert "warning" not in capsys.readouterr().err
    (pairs / "same.toml").write_text('data = "pairs.py:open"\n[data_options]\nroot = "data"\n')
    command = ["evaluate", "run", "same.toml", "--training_cases", "--out", "scored"]
    assert main([*command, "--no-overlay"]) == exit_codes.OK
    for case in "abcd":
        labels = read_image(pairs / f"predicted/{case}.png")
        assert 0 < labels.mean() < 1
        # The code itself prepared the images for the second ones.
        np.testing.assert_array_equal(labels, read_image(pairs / f"scored/predictions/{case}.tif"))


def test_without_a_preparation_an_image_is_one_file(pairs, capsys):
    data = json.loads((pairs / "run/data.json").read_text())
    (pairs / "run/data.json").write_text(json.dumps({**data, "preparation": None}))
    command = ["predict", "run", "--no-overlay", "--out", "predicted"]
    assert main([*command, "data/a/t1.png,data/a/t2.png"]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert "are made in code ('pairs.py:open'), so an image is one file with all its" in said
    assert "got 2 files" in said
    bands = {"photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite("x.tif", np.zeros((32, 40, 2), np.float32), **bands)
    assert main([*command, "x.tif"]) == exit_codes.OK
    assert "Give its DataSource a preparation" in capsys.readouterr().err


def test_arrays_that_were_prepared_before(pairs, capsys):
    data = json.loads((pairs / "run/data.json").read_text())
    prepared = {"intensity": "none", "axes": "yxc"}
    (pairs / "run/data.json").write_text(json.dumps({**data, "preparation": prepared}))
    assert str(prepared).replace("'", '"') in (ROOT / "docs/data.md").read_text()
    np.save("x.npy", np.zeros((32, 40, 2), np.float32))
    assert main(["predict", "run", "x.npy", "--no-overlay", "--out", "predicted"]) == exit_codes.OK
    assert "warning" not in capsys.readouterr().err
    assert read_image(pairs / "predicted/x.tif").shape == (32, 40, 1)
