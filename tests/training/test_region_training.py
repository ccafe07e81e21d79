"""Networks of regions: trained, scored, predicted with, evaluated and exported."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import tifffile
from pages import blocks
from paths import ROOT

from tfunet import exit_codes
from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.files.typed import RecordError
from tfunet.learning.outputs import RegionOutputs
from tfunet.loop import run
from tfunet.prediction.evaluate import evaluate
from tfunet.prediction.network import load_network
from tfunet.prediction.options import Options
from tfunet.prediction.run import predict
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

REGIONS = {"whole": ["rim", "ring", "core"], "inner": ["ring", "core"], "core": ["core"]}
PROBABILITIES = Options(probabilities=True, overlay=False)


def target(seed):
    """An image with a disc of three rings, and its mask."""
    rng = np.random.default_rng(seed)
    centre = rng.integers(12, 20, 2)
    distance = np.hypot(*(np.indices((32, 32)) - centre[:, None, None]))
    mask = np.select([distance < 3, distance < 6, distance < 9], [3, 2, 1], 0).astype(np.uint8)
    image = rng.normal(100, 10, mask.shape) + 60 * mask
    return image.astype(np.uint16), mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")
    for number in range(4):
        image, mask = target(number)
        tifffile.imwrite(root / f"case{number}_image.tif", image)
        mask[:3] = 9  # Pixels that count for nothing.
        tifffile.imwrite(root / f"case{number}_mask.tif", mask)
    return root


@pytest.fixture(scope="module")
def regions_run(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    config = RunConfig(
        outputs="regions",
        model_options={"filters": 8, "levels": 1, "normalization": "none"},
        data="folder",
        data_options={
            "root": str(folder),
            "images": "{case}_image.tif",
            "masks": "{case}_mask.tif",
            "classes": {"rim": 1, "ring": 2, "core": 3},
            "regions": REGIONS,
            "ignore_label": 9,
        },
        patch=(32, 32),
        replica_batch=3,
        patches_per_case=60,
        epochs=4,
        evaluate_every=4,
        learning_rate=0.01,
        cache_dir=str(place / "cache"),
    )
    run(config, SingleDevice(Launch()), place / "run")
    return place / "run"


def copied(run_folder, place, files=("config.json", "data.json", "split.json", "model.keras")):
    """Return a finished run with files of another one."""
    other = RunFolder(place)
    other.create()
    for name in files:
        (other.path / name).write_bytes((run_folder / name).read_bytes())
    other.write_result({})
    return other


@pytest.fixture(scope="module")
def other_run(regions_run, tmp_path_factory):
    """The same network with other weights."""
    other = copied(regions_run, tmp_path_factory.mktemp("other") / "run")
    model = load_network(other).model((32, 32), "float32")
    model.layers[1].kernel.assign(model.layers[1].kernel * 0.8)
    model.save(other.path / "model.keras")
    return other.path


def predicted(runs, folder, out, **options):
    chosen = Options(probabilities=True, overlay=False, ensemble=tuple(runs[1:]), **options)
    (path,) = predict(runs[0], [str(folder / "case0_image.tif")], out, chosen)
    planes = tifffile.imread(out / f"{path.stem}_probabilities.tif")
    return tifffile.imread(path), planes, json.loads(path.with_suffix(".json").read_text())


def written(planes):
    labels = np.zeros(planes.shape[1:], np.uint8)
    for label, inside in zip((1, 2, 3), planes > 0.5, strict=True):
        labels[inside] = label
    return labels


def test_it_learns_its_regions(regions_run):
    result = json.loads((regions_run / "result.json").read_text())
    assert min(result["dice"].values()) > 0.5
    assert list(result["dice"]) == ["whole", "inner", "core"]
    assert json.loads((regions_run / "config.json").read_text())["outputs"] == "regions"


def test_its_prediction_is_a_probability_for_each_region(regions_run, folder, tmp_path):
    labels, planes, facts = predicted([regions_run], folder, tmp_path)
    assert planes.shape == (3, 32, 32)
    np.testing.assert_array_equal(labels, written(planes))
    assert set(np.unique(labels)) == {0, 1, 2, 3}
    # They do not share one probability: a pixel of the core is in all regions.
    assert planes.sum(0).max() > 2
    assert facts["regions"]["inner"] == {"channel": 1, "labels": [2, 3], "written_label": 2}
    assert [entry["name"] for entry in facts["classes"].values()][1:] == ["rim", "ring", "core"]


def test_an_ensemble_is_the_mean_of_the_sigmoids(regions_run, other_run, folder, tmp_path):
    alone = [
        predicted([each], folder, tmp_path / each.parent.name)[1]
        for each in (regions_run, other_run)
    ]
    labels, planes, _ = predicted([regions_run, other_run], folder, tmp_path / "both")
    np.testing.assert_allclose(planes, np.mean(alone, 0), atol=1e-6)
    np.testing.assert_array_equal(labels, written(planes))


def test_mirrored_windows_count_too(regions_run, folder, tmp_path):
    plain = predicted([regions_run], folder, tmp_path / "plain")[1]
    labels, planes, _ = predicted([regions_run], folder, tmp_path / "mirrored", mirror=True)
    assert 0 < np.abs(plain - planes).max() < 0.9
    np.testing.assert_array_equal(labels, written(planes))


def test_networks_of_regions_and_of_classes_do_not_predict_together(regions_run, folder, tmp_path):
    other = copied(regions_run, tmp_path / "run")
    config = replace(other.read_config(), outputs="classes")
    (other.path / "config.json").write_text(config.to_json())
    with pytest.raises(ValueError, match=r"their outputs are 3 regions .* and 4 classes"):
        predicted([regions_run, other.path], folder, tmp_path)


def test_a_record_without_its_regions_is_refused(regions_run, tmp_path):
    other = copied(regions_run, tmp_path / "run")
    about = json.loads((regions_run / "data.json").read_text())
    for regions in ({}, {"a": [1, 2], "b": [2, 3]}):
        other.write_data({**about, "regions": regions})
        with pytest.raises(RecordError, match=r"data\.json"):
            load_network(other)


def test_its_predictions_are_scored_by_region(regions_run, folder, tmp_path):
    scored = evaluate(regions_run, str(folder), tmp_path, PROBABILITIES, with_training_cases=True)
    assert [row["region"] for row in scored.rows[:3]] == ["whole", "inner", "core"]
    assert min(row["dice"] for row in scored.rows) > 0.5


def test_its_exported_network_says_what_its_channels_are(regions_run, tmp_path):
    command = ["export", str(regions_run), "--to", "savedmodel", "--out", str(tmp_path)]
    assert main(command) == exit_codes.OK
    facts = json.loads((tmp_path / "network.json").read_text())
    assert facts["output"]["shape"] == [None, 32, 32, 3]
    assert facts["output"]["probabilities"] == "sigmoid"
    assert list(facts["regions"]) == ["whole", "inner", "core"]
    assert facts["compared"]["voxels_with_another_label"] == 0


def test_the_example_of_the_page_trains_a_network_of_regions(tmp_path):
    page = (ROOT / "docs/training.md").read_text()
    (text,) = (text for text in blocks(page, "toml") if text.startswith("# regions.toml"))
    table = {**tomllib.loads(text), "epochs": 1, "cache_dir": str(tmp_path / "cache")}
    table["data_options"] = {"num_cases": 5, "size": 16}
    table["model_options"] = {**table["model_options"], "filters": 2, "levels": 2}
    run(from_dict(table), SingleDevice(Launch()), tmp_path / "run")
    outputs = load_network(RunFolder(tmp_path / "run")).outputs
    assert isinstance(outputs, RegionOutputs)
    assert list(outputs.written.items()) == [("whole", 1), ("core", 2), ("enhancing", 3)]
