"""What a data set in code says of itself is checked when it is opened, not when it is used."""

import numpy as np
import pytest

from tfunet.data.source import DataSource, open_source
from tfunet.prediction.prepare import preparation
from tfunet.record import as_recorded


def own(**given):
    facts = {
        "name": "own",
        "case_ids": ("a", "b"),
        "groups": ("a", "b"),
        "num_classes": 2,
        "channels": 2,
        "regions": {"cell": (1,)},
        "patch": (32, 32),
        "fingerprint": "",
        "read": lambda index: (np.zeros((32, 32, 2), np.float32), np.zeros((32, 32), np.uint8)),
    }
    return DataSource(**{**facts, **given})


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        ({}, "missing required field intensity"),
        ("zscore", "expected object, got str"),
        ({"intensity": "z-score"}, "Unknown intensity 'z-score'. Known: 'zscore'"),
        ({"intensity": 3}, "intensity: expected"),
        ({"intensity": [0, "255"]}, r"intensity\[1\]: expected float, got str"),
        ({"intensity": {"mean": [1], "deviation": [2]}}, "mean for 1 channels, .* have 2"),
        ({"intensity": "none", "target_spacing": 2}, "option 'target_spacing'"),
        ({"intensity": "none", "num_file": 2}, "Did you mean 'num_files'"),
        ({"intensity": "none", "num_files": 0}, "num_files: expected int >= 1"),
        ({"intensity": "none", "num_files": 3}, "num_files=3 for images with channels=2"),
        ({"intensity": "none", "grey": "no"}, "grey: expected bool, got str"),
        ({"intensity": "none", "axes": "xy1"}, "axes='xy1'; allowed"),
        ({"intensity": "none", "axes": "zyxc"}, "axes='zyxc' for images with 2 spatial axes"),
        ({"intensity": "none", "alpha": "drp"}, "alpha='drp'; allowed"),
        ({"intensity": "none", "fill": float("nan")}, "fill=nan; allowed"),
        ({"intensity": "none", "unit": "um"}, "Unknown unit 'um'"),
        ({"intensity": "none", "target_pixel_size": [1, 1, 1]}, "2 of them, one an axis"),
        ({"intensity": "none", "target_pixel_size": 0}, "pixel size 0; allowed"),
        ({"intensity": "none", "pixel_size": 1}, "pixel_size needs target_pixel_size"),
        ({"intensity": "none", "fill": object()}, "A record holds numbers and text"),
    ],
)
def test_a_preparation_that_prediction_could_not_use(prepared, message):
    with pytest.raises(ValueError, match=f"preparation of the data set 'own' .*used: .*{message}"):
        own(preparation=prepared)


@pytest.mark.parametrize(
    "prepared",
    [
        {"intensity": "zscore", "num_files": 2, "axes": "yxc", "alpha": "drop", "fill": 0},
        {"intensity": (0, 255), "target_pixel_size": 0.5, "pixel_size": (1, 1), "unit": "µm"},
        {"intensity": {"mean": np.array([1, 2]), "deviation": (np.float32(3), 4)}, "grey": False},
        {"intensity": {"clip": [1, 99]}, "num_files": np.int64(1), "axes": None, "unit": ""},
    ],
)
def test_a_preparation_that_prediction_can_use(prepared):
    recorded = as_recorded(own(preparation=prepared).preparation)
    assert preparation(recorded).num_files == prepared.get("num_files", 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"files": ("a.tif",)}, "2 cases and 1 files: give one for each case, or none"),
        ({"spacings": ((1, 1),)}, "2 cases and 1 spacings"),
        ({"shapes": ((32, 32),) * 3}, "2 cases and 3 shapes"),
        ({"spacings": (None, (1, 1, 1))}, r"spacings such as \(1, 1, 1\), and patch=\(32, 32\)"),
        ({"shapes": ((32,), (32, 32))}, r"shapes such as \(32,\), and patch"),
        ({"unit": "um"}, "unit='um'. Known: nm, µm"),
        ({"mask_values": (0, 255)}, r"mask_values=\(0, 255\). Give the values of each of the 2"),
        ({"mask_values": ((0,), (1,), (2,))}, r".*values of each of the 2 labels"),
        ({"mask_values": ((0,), (1.5,))}, r".*values of each of the 2 labels"),
    ],
)
def test_what_would_be_noticed_long_after(given, message):
    with pytest.raises(ValueError, match=f"data set 'own' has {message}"):
        own(**given)


def test_what_may_be_left_out_or_given():
    own()
    own(spacings=(None, (1, 1)), unit="µm", mask_values=((0,), (np.int64(255), "#ffffff")))


def test_the_user_reads_of_it_when_training_opens_the_data(tmp_path):
    (tmp_path / "own.py").write_text(
        "from tfunet.data.source import open_source\n"
        "from dataclasses import replace\n"
        "def open():\n"
        "    return replace(open_source('cells', {}), preparation={'intensity': 'zscor'})\n"
    )
    with pytest.raises(ValueError, match="'cells' cannot be used: Unknown intensity 'zscor'"):
        open_source(f"{tmp_path}/own.py:open", {})
