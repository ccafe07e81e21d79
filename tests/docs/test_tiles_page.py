"""docs/tiles.md: its run trains whole samples, on tiles as in one piece; so does its benchmark."""

import csv
import json
import re
import tomllib

import numpy as np
import pytest
from paths import ROOT

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.exit_codes import StoppedError
from tfunet.loop import run
from tfunet.prediction.network import load_network
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

PAGE = (ROOT / "docs/tiles.md").read_text()


def table_of_page():
    # Not Adam, which magnifies the rounding of small gradients.
    return {**blocks_of_page()[0], "optimizer": "sgd", "learning_rate": 0.05}


def blocks_of_page():
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [tomllib.loads(block) for block in blocks]


def trained(folder, table, cache, **options):
    config = from_dict({**table, "cache_dir": str(cache)})
    run(config, SingleDevice(Launch()), folder, **options)


def weights(folder):
    with np.load(folder / "checkpoint.npz") as file:
        names = sorted(name for name in file.files if name.startswith("variable_"))
        return [file[name] for name in names]


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_the_run_of_the_page_is_that_of_whole_samples(tmp_path, capfd):
    table, cache = table_of_page(), tmp_path / "cache"
    tiled, whole = tmp_path / "tiled", tmp_path / "whole"
    # Stopped in the middle of the second epoch, and gone on.
    with pytest.raises(StoppedError):
        trained(tiled, table, cache, stops_after=lambda step: step == 5)
    trained(tiled, table, cache)
    said = " ".join(capfd.readouterr().out.split())
    (line,) = re.findall(r"^Tiles: .*$", PAGE, re.MULTILINE)
    assert line in said
    assert "Compiling the training step: 8 tiles of 72 x 72 x 1." in said
    assert "Going on from step 5 of 6" in said
    trained(whole, {key: value for key, value in table.items() if key != "tiling"}, cache)
    for ours, theirs in zip(weights(tiled), weights(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    for name in ("steps.csv", "epochs.csv", "cases.csv"):
        for ours, theirs in zip(rows(tiled / name), rows(whole / name), strict=True):
            assert ours.keys() == theirs.keys()
            for column in ours:
                if "loss" in column or "accuracy" in column:
                    assert float(ours[column]) == pytest.approx(float(theirs[column]), abs=2e-6)
                elif column in ("samples_hash", "true_positive", "false_positive", "case", "dice"):
                    assert ours[column] == theirs[column]
    assert result(tiled)["tiling"] == {
        "tiles": [2, 2],
        "window": [72, 72],
        "halo": [23, 23],
        "redundancy": 2.25,
        "inexact_layers": [],
    }
    assert result(tiled)["samples_hash"] == result(whole)["samples_hash"]
    # Prediction, too, works on windows of the size of a tile.
    assert load_network(RunFolder(tiled)).patch == (72, 72)


def test_the_keys_of_all_together_fit_those_of_the_page():
    tiled, together = blocks_of_page()
    config = from_dict({**tiled, **together})
    assert config.num_devices == 8
    assert config.replica_tiles == config.micro_batches == 4


@pytest.mark.multiprocess
def test_two_replicas_share_the_tiles_of_an_image(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tiled_image

    config = tiled_image.settings(130, 3, 2, tmp_path / "cache")
    trained(tmp_path / "alone", config, tmp_path / "cache")
    shared = tiled_image.train(
        tmp_path / "shared", {**config, "tiling": [2, 3]}, backend="mirrored", num_replicas=2
    )
    assert tiled_image.difference(tmp_path / "alone", tmp_path / "shared") <= 1e-6
    alone = result(tmp_path / "alone")
    assert shared["samples_hash"] == alone["samples_hash"]
    for name in ("loss", "val_loss"):
        assert shared[name] == pytest.approx(alone[name], abs=1e-6)
    assert shared["dice"] == alone["dice"]
    assert shared["checks"] == {"weights": True, "scores": True, "samples": True}
    assert (shared["num_replicas"], shared["global_batch"]) == (2, 1)
    assert len(shared["peak_resident_bytes"]) == 1
