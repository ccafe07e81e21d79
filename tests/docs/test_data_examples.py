"""Examples of docs/ that no command of theirs trains: each is trained, on files as it describes."""

import tomllib

import numpy as np
import pytest
from pages import blocks
from paths import ROOT
from scan_files import SHAPE, write_scans

from tfunet import exit_codes
from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.data.source import open_source
from tfunet.loop import run
from tfunet.single_device import SingleDevice

GENERATED = {"num_cases": 8, "size": 48}


def example(page, name):
    text = (ROOT / "docs" / page).read_text()
    (block,) = (block for block in blocks(text, "toml") if block.startswith(f"# {name}\n"))
    return block


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("name", ["scans.toml", "sequences.toml"])
def test_volumes_are_checked_and_trained_on(name, place, capsys):
    write_scans(place)
    (place / name).write_text(example("data.md", name))
    assert main(["data", "check", name]) == exit_codes.OK
    assert "no defects" in capsys.readouterr().out
    config = from_dict(tomllib.loads((place / name).read_text()))
    source = open_source(config.data, config.data_options)
    pixels, _ = source.read_case(0)
    if name == "scans.toml":
        assert pixels.shape == (12, 20, 24, 1)
        # The whole data set has mean 0: no image has by itself.
        assert abs(float(pixels.mean())) > 0.1
    else:
        assert pixels.shape == (*SHAPE, 2)
        assert (pixels[0, 0, 0] == 0).all()
        within = pixels[(pixels != 0).any(-1)]
        np.testing.assert_allclose(within.mean(0), 0, atol=1e-4)
        np.testing.assert_allclose(within.std(0), 1, atol=1e-4)
    result = run(config, SingleDevice(Launch()), place / "run")
    assert set(result["dice"]) == set(source.regions)


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("training.md", "rare.toml"),
        ("metrics.md", "measured.toml"),
        ("data.md", "augmented.toml"),
    ],
)
def test_an_example_on_generated_cells_trains(page, name, place):
    table = {"steps": 2, **tomllib.loads(example(page, name)), "data_options": GENERATED}
    table["model_options"] = {"filters": 4, "levels": 2}
    table["global_batch"] = 2
    if name == "augmented.toml":
        table["patch"] = [32, 32]
    config = from_dict(table)
    result = run(config, SingleDevice(Launch()), place / "run")
    assert result["dice"]
    header = (place / "run/cases.csv").read_text().splitlines()[0].split(",")
    assert set(config.metrics) <= set(header)
