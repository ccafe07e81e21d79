"""`tfunet best` finds the best by held-out cases, and `tfunet predict` follows what it writes."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest
import tifffile

from tfunet import exit_codes
from tfunet.bench.analysis.cleaned_cases import compare, mean_dice
from tfunet.bench.best_configuration import PredictionWay, WaysCompared, find_best
from tfunet.cli import main
from tfunet.files.typed import RecordError
from tfunet.models.make import make_model
from tfunet.prediction.best_file import BEST, Best, read_best, write_best
from tfunet.prediction.cleaning import Cleaning
from tfunet.prediction.options import Options
from tfunet.prediction.run import predict
from tfunet.record import RunFolder

CASES = ("case0", "case1", "case2")
PROBABILITIES = Options(probabilities=True, overlay=False, format="tiff")


@pytest.fixture(scope="module")
def study(local_run, tmp_path_factory):
    """Two configurations with a run for each of three folds, of untrained networks."""
    root = tmp_path_factory.mktemp("study")
    trained = RunFolder(local_run)
    for rate in (0.01, 0.02):
        for fold, case in enumerate(CASES):
            folder = RunFolder(root / f"rate{rate}-fold{fold}")
            folder.create()
            config = replace(trained.read_config(), learning_rate=rate, folds=3, fold=fold)
            folder.write_config(config)
            folder.write_data(trained.read_data())
            rest = [other for other in CASES if other != case]
            folder.write_split({"train": rest, "validation": [case], "left_out": []})
            (folder.path / "result.json").write_bytes((local_run / "result.json").read_bytes())
            model = make_model(
                "unet", image_shape=(32, 32, 3), num_classes=2, options=config.model_options
            )
            model.load_weights(local_run / "model.keras")
            rng = np.random.default_rng(int(rate * 1000) + fold)
            for variable in model.trainable_variables:  # The second configuration is worse.
                variable.assign(variable * (1 + rate * 30 * rng.normal(size=variable.shape)))
            model.save(folder.path / "model.keras")
    return root


def dice(labels, mask):
    return 2 * (labels & mask).sum() / (labels.sum() + mask.sum())


def test_the_best_is_that_of_the_held_out_cases(study, folder, tmp_path, capsys):
    assert main(["best", str(study), "--mirror"]) == exit_codes.OK
    said = capsys.readouterr().out
    table = json.loads((study / BEST).read_text())
    assert len(table["ways"]) == 6
    # The same by single predictions of whole images, each by the run that held it out.
    probabilities = {}
    mirrored = (0.01, True)  # One is enough.
    for rate, mirror in ((0.01, False), (0.02, False), mirrored):
        for fold, case in enumerate(CASES):
            out = tmp_path / f"{rate}-{mirror}"
            run = study / f"rate{rate}-fold{fold}"
            options = replace(PROBABILITIES, mirror=mirror)
            predict(run, [str(folder / f"{case}_image.tif")], out, options)
            path = out / f"{case}_image_probabilities.tif"
            probabilities[rate, mirror, case] = tifffile.imread(path)
    expected = {}
    for mirror in (False, True):
        for rates in [(0.01,)] if mirror else [(0.01,), (0.02,), (0.01, 0.02)]:
            scores = []
            for case in CASES:
                mean = np.mean([probabilities[rate, mirror, case] for rate in rates], 0)
                mask = tifffile.imread(folder / f"{case}_mask.tif")
                scores.append(dice(mean.argmax(0).astype(np.uint8), mask))
            name = " + ".join(f"learning_rate={rate}" for rate in rates)
            expected[f"{name}, mirrored" if mirror else name] = np.mean(scores)
    found = {way["way"]: next(iter(way["dice"].values())) for way in table["ways"]}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)
    assert table["way"] == max(found, key=found.get)
    assert table["cases"] == 3
    assert f"{max(found.values()):.3f}" in said


@pytest.mark.parametrize("has_background", [True, False])
def test_components_are_removed_only_where_there_is_a_background(has_background, tmp_path):
    """A square that is found in six cases, and a speck of 4 voxels beside it that is not there."""
    mask = np.zeros((40, 40), np.uint8)
    mask[4:20, 4:20] = 1
    cases = []
    for width in range(1, 7):
        labels = mask.copy()
        labels[4, 4 : 4 + width] = 0
        labels[30:32, 30:32] = 1
        cases.append(compare(labels, mask, ((1,),), 2))
    comparison = WaysCompared(
        names=("unet",),
        regions=("sky",),
        cases={PredictionWay(configurations=(0,), mirror=False): cases},
        alone={},
        label_names={1: "1 sky"},
        has_background=has_background,
    )
    assert bool(comparison.cleaning) == bool(comparison.trials) == has_background
    said = comparison.text()
    if not has_background:
        assert "No components are removed: without a background each pixel has a class." in said
        return
    assert "Of class 1 sky only the largest component is kept: mean Dice +" in said
    assert "6 cases better, 0 worse." in said
    best = Best(
        runs=(tmp_path / "a",),
        mirror=False,
        cleaning=comparison.cleaning,
        label_names=comparison.label_names,
    )
    write_best(tmp_path, best, comparison.evidence())
    assert str(read_best(tmp_path)).endswith("of class 1 sky only the largest component")


def test_predict_follows_the_file(study, folder, tmp_path):
    find_best(study)
    table = json.loads((study / BEST).read_text())
    runs = sorted(path.name for path in study.glob("rate*"))[:4]
    table |= {"runs": runs, "mirror": True, "largest": [1]}
    (study / BEST).write_text(json.dumps(table))
    image = [str(folder / "scene.tif")]
    (path,) = predict(study, image, tmp_path / "best", PROBABILITIES)
    others = tuple(study / run for run in runs[1:])
    by_hand = replace(PROBABILITIES, mirror=True, ensemble=others)
    (same,) = predict(study / runs[0], image, tmp_path / "hand", by_hand)
    mean = tifffile.imread(path.with_name("scene_probabilities.tif"))
    np.testing.assert_array_equal(mean, tifffile.imread(same.with_name("scene_probabilities.tif")))
    from scipy import ndimage

    numbered, count = ndimage.label(tifffile.imread(same), np.ones((3, 3)))
    assert count > 1
    largest = np.bincount(numbered.ravel())[1:].argmax() + 1
    np.testing.assert_array_equal(tifffile.imread(path), numbered == largest)
    # Without the removal, it is another prediction.
    (study / BEST).write_text(json.dumps({**table, "largest": []}))
    with pytest.raises(ValueError, match="not the prediction"):
        predict(study, image, tmp_path / "best", PROBABILITIES)
    with pytest.raises(ValueError, match="Leave out --ensemble"):
        predict(study, image, tmp_path, replace(PROBABILITIES, ensemble=others))


def test_a_configuration_without_all_cases_is_left_out(study, tmp_path):
    part = tmp_path / "study"
    shutil.copytree(study, part)
    (part / "rate0.02-fold1" / "result.json").unlink()
    comparison, _ = find_best(part)
    assert comparison.names == ("learning_rate=0.01",)
    (note,) = comparison.notes
    assert note == (
        "Left out: learning_rate=0.02. 1 of 3 cases were held out by none of its finished runs."
    )
    for run in part.glob("rate*"):
        (run / "result.json").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="no finished run"):
        find_best(part)


def test_runs_of_one_configuration_are_compared_with_each_of_them_alone(study, tmp_path):
    apart, _ = find_best(study)
    assert not apart.alone
    shutil.copytree(study, tmp_path / "study")
    for path in (tmp_path / "study").glob("rate0.02*/config.json"):
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "learning_rate": 0.01, "seed": 2})
        )
    together, path = find_best(tmp_path / "study")
    (alone,) = together.alone.values()
    one, other = (
        mean_dice(apart.cases[PredictionWay(configurations=(at,), mirror=False)], Cleaning())
        for at in (0, 1)
    )
    np.testing.assert_allclose(alone, (one + other) / 2)
    # What both predict together is the mean of their probabilities, as of two configurations.
    both = mean_dice(apart.cases[PredictionWay(configurations=(0, 1), mirror=False)], Cleaning())
    np.testing.assert_array_equal(mean_dice(together.cases[together.best], Cleaning()), both)
    assert json.loads(path.read_text())["ways"][-1]["way"] == "unet, each run alone"


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_what_is_followed_is_said_before_tensorflow_is_loaded(command, tmp_path):
    table = {"runs": ["a", "b"], "mirror": True, "largest": [2], "min_voxels": {"1": 1000}}
    (tmp_path / BEST).write_text(json.dumps(table))
    # The runs do not exist, so nothing more is done.
    words = [command, str(tmp_path), str(tmp_path), "--out", str(tmp_path / "out")]
    code = (
        "import sys; from tfunet.commands import predict\n"
        "from tfunet.prediction.best_file import say_best; from pathlib import Path\n"
        f"say_best(Path({str(tmp_path)!r}))\n"
        "print('tensorflow' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    line = (
        f"{tmp_path / BEST}: the mean of 2 networks (a, b); with mirrored images; of label 2 only "
        "the largest component; of label 1 no components below 1000 voxels\n"
    )
    assert said == f"{line}False\n"
    ended = subprocess.run(
        [sys.executable, "-m", "tfunet", *words], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == exit_codes.BAD_INPUT
    assert ended.stdout.startswith(line)
    (tmp_path / "config.json").write_text("{}")  # A run is predicted with as it is.
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert said == "False\n"


def test_an_unknown_metric_is_refused_before_tensorflow_is_loaded(tmp_path):
    (tmp_path / BEST).write_text("{}")
    code = (
        "import sys; from tfunet.cli import main\n"
        "print(main(sys.argv[1:]), 'tensorflow' in sys.modules)"
    )
    words = ["evaluate", str(tmp_path), "data", "--out", "out", "--metrics", "hd59"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "2 False\n"
    assert "'hd59' is no metric of whole cases. Did you mean 'hd95'?" in ended.stderr


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"runs": []}, "names no runs"),
        ({"largest": "1"}, "expected array"),
        ({"min_voxels": {"a": 1}}, "a"),
    ],
)
def test_a_wrong_file_is_refused(change, fault, tmp_path):
    table = {"runs": ["a"], "mirror": False, "largest": [], "min_voxels": {}}
    (tmp_path / BEST).write_text(json.dumps({**table, **change}))
    with pytest.raises(RecordError, match=fault):
        read_best(tmp_path)
    keras.config.set_dtype_policy("float32")
