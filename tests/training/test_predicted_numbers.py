"""A network that predicts numbers of a whole case instead of a mask."""

import csv
import json
from dataclasses import replace

import keras
import numpy as np
import pytest

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.data.task import open_task
from tfunet.learning import losses
from tfunet.learning.outputs import ClassOutputs
from tfunet.loop import run
from tfunet.models import cosmoflow, unet
from tfunet.prediction.network import load_network
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice
from tfunet.training import preflight

NAMES = ("omega_m", "sigma_8", "n_s")
CONFIG = RunConfig(
    data="universes",
    data_options={"num_cases": 8, "size": 24},
    # Four windows a case: a case's prediction is their mean.
    patch=(24, 16, 16),
    model="cosmoflow",
    model_options={"filters": 2, "levels": 3, "dense": [4], "dropout": 0.0},
    loss="MeanSquaredError",
    metrics=("MeanAbsoluteError",),
    replica_batch=2,
    epochs=2,
    augmentation={"flips": True},
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    config = replace(CONFIG, cache_dir=str(folder / "cache"))
    return folder / "run", run(config, SingleDevice(Launch()), folder / "run")


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_record_has_the_errors_of_every_number(trained):
    folder, result = trained
    assert (result["dice"], result["iou"]) == ({}, {})
    assert list(result["mae"]) == list(NAMES)
    assert not (folder / "cases.csv").exists()
    errors = rows(folder / "errors.csv")
    source = open_task(CONFIG).source
    validation = json.loads((folder / "split.json").read_text())["validation"]
    assert [row["case"] for row in errors] == [case for case in validation for _ in NAMES]
    model = keras.models.load_model(folder / "model.keras")
    for row in errors:
        case = source.case_ids.index(row["case"])
        assert float(row["value"]) == source.targets[row["target"]][case]
        image, _ = source.read(case)
        windows = [image[:, y : y + 16, x : x + 16] for y in (0, 8) for x in (0, 8)]
        shares = [16 * 16, 16 * 8, 8 * 16, 8 * 8]
        numbers = np.average(model.predict(np.stack(windows), verbose=0), axis=0, weights=shares)
        expected = numbers[NAMES.index(row["target"])]
        assert float(row["predicted"]) == pytest.approx(expected, abs=1e-5)
    last = rows(folder / "epochs.csv")[-1]
    for name in NAMES:
        mean = np.mean([float(row["absolute_error"]) for row in errors if row["target"] == name])
        assert result["mae"][name] == pytest.approx(mean)
        assert float(last[f"mae_{name}"]) == pytest.approx(mean)


def test_prediction_of_masks_is_refused(trained):
    with pytest.raises(ValueError, match=r"predict numbers \(omega_m, sigma_8, n_s\).*errors.csv"):
        load_network(RunFolder(trained[0]))


def test_centring_on_foreground_is_refused():
    with pytest.raises(ValueError, match=r"foreground_share=0\.5 needs masks"):
        open_task(replace(CONFIG, foreground_share=0.5))


IMAGE = np.zeros((1, 16, 16, 16, 1), "float32")


@pytest.mark.parametrize(
    ("build", "loss", "message"),
    [
        (cosmoflow.build, "dice_crossentropy", "'dice_crossentropy' compares with masks"),
        (cosmoflow.build, "BinaryCrossentropy", "compares with masks.*MeanSquaredError"),
        (unet.build, "MeanSquaredError", r"shape \(1, 16, 16, 16, 3\).*it must be \(1, 3\)"),
    ],
)
def test_what_is_for_masks_is_refused(build, loss, message):
    levels = {"levels": 2, "filters": 2}
    model = build(image_shape=IMAGE.shape[1:], num_classes=3, **levels)
    with pytest.raises(ValueError, match=message):
        preflight.inspect(
            model,
            losses.make(loss, {}),
            image=IMAGE,
            truth=np.zeros((1, 3), "float32"),
            outputs=ClassOutputs(num_classes=1),
            targets=NAMES,
        )
