"""The networks that docs/models.md trains are trained."""

import tomllib

import keras
import numpy as np
import pytest
from pages import blocks
from paths import ROOT

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.loop import run
from tfunet.prediction.network import load_network
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

PAGE = (ROOT / "docs/models.md").read_text()


@pytest.mark.parametrize("name", ["deep.toml", "pretrained.toml"])
def test_the_example_trains_and_its_network_predicts(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    (text,) = [block for block in blocks(PAGE, "toml") if block.startswith(f"# {name}\n")]
    table = {**tomllib.loads(text), "data_options": {"num_cases": 5, "size": 64}}
    if "encoder" in table["model_options"]:
        table["model_options"]["levels"] = 3  # The whole encoder takes many seconds to trace.
    encoder = keras.applications.MobileNetV2(
        include_top=False, weights=None, alpha=0.35, input_shape=(64, 64, 3)
    )
    encoder.save_weights("mobilenet.weights.h5")  # In place of a download.
    config = from_dict(table)
    result = run(config, SingleDevice(Launch()), tmp_path / "run")
    assert result["dice"]
    said = capsys.readouterr().out
    assert ("The encoder is frozen to epoch 1." in said) == (name == "pretrained.toml")
    assert ("The encoder learns from epoch 2 on." in said) == (name == "pretrained.toml")
    network = load_network(RunFolder(tmp_path / "run"))
    (tmp_path / "mobilenet.weights.h5").unlink()  # A trained network needs it no more.
    number, forward = network.forward((64, 64))
    assert number == 2
    image = np.zeros((1, 64, 64, network.channels), np.float32)
    assert forward(image).shape == (1, 64, 64, 2)
