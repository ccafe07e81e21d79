"""Predictions by several networks, and of mirrored images, are the means that they claim to be."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tifffile

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.prediction.ensemble import with_mirrors
from tfunet.prediction.evaluate import evaluate
from tfunet.prediction.options import Options, checked_options
from tfunet.prediction.run import predict
from tfunet.record import RunFolder

PROBABILITIES = Options(probabilities=True, overlay=False)


@pytest.fixture(scope="module")
def other_run(local_run, tmp_path_factory):
    """The same network with other weights, for images with other intensities."""
    import keras

    from tfunet.models.make import make_model

    folder = RunFolder(tmp_path_factory.mktemp("other") / "run")
    folder.create()
    first = RunFolder(local_run)
    config = first.read_config()
    folder.write_config(replace(config, seed=1))
    data = first.read_data()
    folder.write_data({**data, "preparation": {**data["preparation"], "intensity": "none"}})
    split = first.read_split()
    folder.write_split({**split, "train": split["validation"], "validation": split["train"]})
    folder.write_result({})
    keras.utils.set_random_seed(5)
    model = make_model("unet", image_shape=(32, 32, 3), num_classes=2, options=config.model_options)
    model.layers[1].kernel.assign(model.layers[1].kernel * 1e-4)
    model.save(folder.path / "model.keras")
    return folder.path


def probabilities(run, image, out, options):
    (path,) = predict(run, [str(image)], out, options)
    return tifffile.imread(path), tifffile.imread(out / f"{path.stem}_probabilities.tif")


@pytest.mark.parametrize("tiles", ["gaussian", "halo"])
def test_an_ensemble_is_the_mean_of_the_probabilities(
    tiles, local_run, other_run, folder, tmp_path
):
    options = replace(PROBABILITIES, tiles=tiles)
    image = folder / "scene.tif"
    singles = [
        probabilities(run, image, tmp_path / str(number), options)[1]
        for number, run in enumerate((local_run, other_run))
    ]
    assert np.abs(singles[0] - singles[1]).max() > 0.1
    together = replace(options, ensemble=(other_run,))
    labels, mean = probabilities(local_run, image, tmp_path / "mean", together)
    np.testing.assert_allclose(mean, (singles[0] + singles[1]) / 2, atol=1e-6)
    np.testing.assert_array_equal(labels, mean.argmax(0))
    assert len(np.unique(labels)) == 2
    facts = json.loads((tmp_path / "mean/scene.json").read_text())
    assert [each["run"] for each in facts["ensemble"]] == [str(other_run)]
    # With other runs it is another prediction.
    with pytest.raises(ValueError, match="not the prediction"):
        predict(local_run, [str(image)], tmp_path / "mean", options)


def test_mirrors_are_the_mean_of_the_mirrored_images(local_run, folder, tmp_path):
    """With one window an image; blended windows are mirrored each for itself."""
    image = folder / "case0_image.tif"
    options = replace(PROBABILITIES, window=(64, 64))
    singles = []
    for number, axes in enumerate([(), (0,), (1,), (0, 1)]):
        tifffile.imwrite(
            tmp_path / f"{number}.tif",
            np.flip(tifffile.imread(image), axes),
            photometric="minisblack",
            planarconfig="contig",
        )
        one = probabilities(local_run, tmp_path / f"{number}.tif", tmp_path / "single", options)[1]
        back = np.flip(one, [axis + 1 for axis in axes])
        singles.append(np.log(back[1]) - np.log(back[0]))
    mirrored = probabilities(local_run, image, tmp_path, replace(options, mirror=True))[1]
    logit = np.log(mirrored[1]) - np.log(mirrored[0])
    assert np.abs(singles[0] - logit).max() > 1e-3
    # Smaller probabilities are 0.
    sure = (np.abs(singles) < 60).all(0)
    assert sure.mean() > 0.5
    np.testing.assert_allclose(logit[sure], np.mean(singles, 0)[sure], atol=1e-3)


def test_axes_are_mirrored_in_all_combinations():
    rng = np.random.default_rng(0)
    weights, images = rng.normal(size=(4, 5, 6)), rng.normal(size=(2, 4, 5, 6))
    seen = []

    def forward(windows):
        seen.append(windows)
        return (windows * weights)[..., np.newaxis]

    mean = with_mirrors(forward, (0, 2))(images)
    assert len(seen) == 4
    expected = (weights + weights[::-1] + weights[..., ::-1] + weights[::-1, :, ::-1]) / 4 * images
    np.testing.assert_allclose(mean[..., 0], expected)


def test_all_training_cases_of_an_ensemble_are_left_out(local_run, other_run, folder, tmp_path):
    """The two runs were trained on different parts, so that nothing is left to score."""
    options = replace(PROBABILITIES, ensemble=(other_run,))
    with pytest.raises(ValueError, match="trained on all of these cases"):
        evaluate(local_run, str(folder), tmp_path, options)
    scored = evaluate(local_run, str(folder), tmp_path, options, with_training_cases=True)
    assert len(scored.rows) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 2}, "their channels are 3 and 2"),
        ({"num_classes": 3}, "their classes, with background are 2 and 3"),
        ({"label_names": ["1 wheel"]}, r"their classes are \(.*\) and \(1 wheel\)"),
        ({"patch": [16, 16, 16]}, "their dimensions are 2 and 3"),
        ({"patch": [64, 32]}, r"different patches: 32x32 \(.*\), 64x32 \(.*Give --window"),
        (
            {"preparation": {"intensity": "zscore", "target_pixel_size": [1.0, 1.0]}},
            r"their pixel size \(target_pixel_size\) are none and \(1.0, 1.0\)",
        ),
    ],
)
def test_runs_that_do_not_fit_together_are_refused(
    change, message, local_run, other_run, folder, tmp_path
):
    other = RunFolder(tmp_path / "run")
    other.create()
    for name in ("config.json", "split.json", "result.json", "model.keras"):
        (other.path / name).write_bytes((other_run / name).read_bytes())
    other.write_data({**RunFolder(other_run).read_data(), **change})
    with pytest.raises(ValueError, match=message):
        predict(
            local_run,
            [str(folder / "scene.tif")],
            tmp_path / "out",
            Options(ensemble=(other.path,), overlay=False),
        )


def test_mirrors_of_a_run_without_flips_are_refused(local_run, other_run, folder, tmp_path, capsys):
    run = RunFolder(tmp_path / "run")
    run.create()
    for name in ("data.json", "split.json", "result.json", "model.keras"):
        (run.path / name).write_bytes((other_run / name).read_bytes())
    config = RunFolder(other_run).read_config()
    run.write_config(replace(config, augmentation={"flips": False}))
    words = ["predict", str(run.path), str(folder / "scene.tif"), "--mirror", "--no-overlay"]
    assert main([*words, "--out", str(tmp_path / "a")]) == exit_codes.BAD_INPUT
    assert "trained without flips" in capsys.readouterr().err
    # Beside one that was, it is not mirrored.
    more = ["--ensemble", str(local_run), "--out", str(tmp_path / "b")]
    assert main([*words, *more]) == exit_codes.OK
    assert f"not mirrored, since trained without flips: {run.path}" in capsys.readouterr().err


def test_a_run_that_is_named_twice_is_refused(local_run, folder, tmp_path):
    options = Options(ensemble=(local_run,))
    with pytest.raises(ValueError, match="named twice"):
        predict(local_run, [str(folder / "scene.tif")], tmp_path, options)


def test_one_further_run_may_be_given_as_a_text_or_a_path(local_run, other_run):
    # As tfunet.predict and tfunet.evaluate read what they are given.
    for further in ([other_run], str(other_run), other_run):
        options = checked_options(local_run, {"ensemble": further, "overlay": False})
        assert options == Options(ensemble=(other_run,), overlay=False)
