"""`tfunet auto`: what it writes can be trained, each line with its reason, within the memory."""

import itertools
import re
import sys
import tomllib

import numpy as np
import pytest
from PIL import Image

from tfunet import exit_codes
from tfunet.arguments import from_dict
from tfunet.cli import main
from tfunet.config.amount import MIB
from tfunet.data.task import open_task


def write_folder(folder, number=6):
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for case in range(number):
        mask = (rng.random((40, 48)) < 0.3).astype(np.uint8)
        Image.fromarray((80 * mask + rng.integers(0, 60, mask.shape)).astype(np.uint8)).save(
            folder / f"images/{case}.png"
        )
        Image.fromarray(mask).save(folder / f"masks/{case}.png")
    return folder


def test_a_folder_becomes_a_run_that_fills_the_memory(tmp_path, monkeypatch, capsys):
    from tfunet.performance.traced_step import traced_step

    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data")
    words = ["auto", "data", "--memory", "120MiB", "--steps", "40"]
    assert main(words) == exit_codes.OK
    said = capsys.readouterr().out
    text = (tmp_path / "run.toml").read_text()
    table = tomllib.loads(text)
    config = from_dict(table)
    assert (config.patch, config.model, config.steps) == ((40, 48), "nnunet2d", 40)
    assert table["data_options"]["intensity"] == "zscore"
    assert table["model_options"]["levels"] == 3
    # The prediction is that of the very step, and 85 % of the memory are not exceeded.
    (said_mib,) = re.findall(r"predicted to take ([\d.]+) MiB of 120.0 MiB", said)
    predicted = MIB * float(said_mib)
    traced = traced_step(config, open_task(config)).total_bytes
    assert predicted == pytest.approx(traced, rel=0.05)
    assert predicted <= 0.85 * 120 * MIB
    assert config.replica_batch >= 2
    lines = [line for line in text.splitlines() if line]
    for before, line in itertools.pairwise(lines):
        is_described = line.split(" = ")[0] in ("masks", "classes")
        assert line[0] in "#[" or before[0] == "#" or is_described, line
    # It is not overwritten.
    assert main(words) == exit_codes.BAD_INPUT
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        (["data", "--memory", "0.5"], "--memory must be an amount"),
        (["data", "--memory", "1GiB", "--device", "h100"], "not both"),
        (["data", "--device", "h1000"], "Unknown device 'h1000'"),
        (["data", "--steps", "0"], "--steps must be at least 1"),
        (["cells.toml", "--labels", "objects"], "Leave out --images"),
        (["numbers.toml"], "settings are chosen for masks only"),
        (["bad"], "1.png"),
    ],
)
def test_what_is_wrong_is_said_before_tensorflow_is_imported(
    words, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "data", 2)
    bad = write_folder(tmp_path / "bad", 4)
    (bad / "images/1.png").write_bytes((bad / "images/1.png").read_bytes()[:-40])
    (tmp_path / "cells.toml").write_text('data = "cells"\n')
    (tmp_path / "numbers.toml").write_text('data = "universes"\nevaluate_every = 2\n')
    # An import of what is None fails.
    monkeypatch.setitem(sys.modules, "tfunet.performance.traced_step", None)
    assert main(["auto", *words]) == exit_codes.BAD_INPUT
    said = capsys.readouterr()
    assert message in said.err
    is_left_out = "Not taken from numbers.toml: evaluate_every. They belong" in said.out
    assert is_left_out == (words == ["numbers.toml"])
    assert not (tmp_path / "run.toml").exists()
