"""Predictions of whole images: the tiles are those of the whole, and nothing is lost."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import lru_cache
from itertools import product

import keras
import numpy as np
import pytest
import tifffile
from paths import ROOT
from PIL import Image

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.data.image_files import read_image
from tfunet.data.preprocess import normalise
from tfunet.models.make import make_model
from tfunet.prediction.options import Options
from tfunet.prediction.raster import RawFile
from tfunet.prediction.run import predict

SHAPE = (75, 92)
BANDS = {"photometric": "minisblack", "planarconfig": "contig"}


@lru_cache
def network(run, shape):
    """The network of a run for images of one size."""
    options = json.loads((run / "config.json").read_text())["model_options"]
    model = make_model("unet", image_shape=shape, num_classes=2, options=options)
    model.load_weights(run / "model.keras")
    return model


def whole_logits(run, image):
    """The prediction computed from memory: the network on all of the image at once."""
    padded = np.pad(image, [(0, -size % 4) for size in image.shape[:-1]] + [(0, 0)])
    logits = network(run, padded.shape)(padded[np.newaxis], training=False)
    return logits.numpy()[0, : image.shape[0], : image.shape[1]]


@pytest.fixture(scope="session")
def logits(local_run, folder):
    return whole_logits(local_run, normalise(read_image(folder / "scene.tif"), "zscore"))


@pytest.mark.parametrize("window", [None, (56, 64), (200, 200)])
def test_tiles_with_an_aligned_halo_are_the_whole_image(
    window, local_run, folder, logits, tmp_path
):
    options = Options(tiles="halo", window=window, probabilities=True, batch=2)
    (path,) = predict(local_run, [str(folder / "scene.tif")], tmp_path, options)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    probabilities = tifffile.imread(tmp_path / "scene_probabilities.tif")
    np.testing.assert_allclose(np.moveaxis(probabilities, 0, -1), expected, atol=1e-6)
    labels = tifffile.imread(path)
    assert labels.dtype == np.uint8
    assert labels.shape == SHAPE
    np.testing.assert_array_equal(labels, logits.argmax(-1))
    # Both classes, or all of this would say nothing.
    assert 0.01 < labels.mean() < 0.99


def test_the_weights_are_those_that_the_run_saved(local_run):
    saved = keras.models.load_model(local_run / "model.keras", compile=False).get_weights()
    loaded = network(local_run, (32, 32, 3)).get_weights()
    assert len(saved) == len(loaded)
    for one, other in zip(saved, loaded, strict=True):
        np.testing.assert_array_equal(one, other)


def blended_by_hand(run, image, window):
    """Gaussian-weighted mean of the logits of windows that overlap by half, all in memory."""
    distance = [(np.arange(size) - (size - 1) / 2) / (size / 8) for size in window]
    weights = np.exp(-(distance[0][:, None] ** 2 + distance[1] ** 2) / 2)[..., None]
    starts = [
        np.linspace(0, size - length, int(np.ceil((size - length) / (length / 2))) + 1).round()
        for size, length in zip(image.shape, window, strict=False)
    ]
    total = np.zeros((*image.shape[:2], 2))
    weight = np.zeros((*image.shape[:2], 1))
    for row, column in product(*starts):
        place = np.s_[int(row) : int(row) + window[0], int(column) : int(column) + window[1]]
        total[place] += whole_logits(run, image[place]) * weights
        weight[place] += weights
    return total / weight


def test_tiles_blended_by_a_gaussian_are_their_weighted_mean(local_run, folder, tmp_path):
    options = Options(probabilities=True)
    predict(local_run, [str(folder / "scene.tif")], tmp_path, options)
    image = normalise(read_image(folder / "scene.tif"), "zscore")
    expected = blended_by_hand(local_run, image, (32, 32))
    probabilities = np.moveaxis(tifffile.imread(tmp_path / "scene_probabilities.tif"), 0, -1)
    ratio = np.exp(expected - expected.max(-1, keepdims=True))
    np.testing.assert_allclose(probabilities, ratio / ratio.sum(-1, keepdims=True), atol=1e-5)
    labels = tifffile.imread(tmp_path / "scene.tif")
    np.testing.assert_array_equal(labels, expected.argmax(-1))


class Killed(BaseException):
    """Stands for a process that ends at once."""


@pytest.mark.parametrize("tiles", ["gaussian", "halo"])
@pytest.mark.parametrize("kind", ["tiff", "nifti"])
def test_what_was_ended_goes_on_where_it_stopped(
    tiles, kind, local_run, folder, tmp_path, monkeypatch, capsys
):
    image = [str(folder / "scene.tif")]
    options = Options(tiles=tiles, window=(48, 48), halo=8 if tiles == "halo" else None)
    options = replace(options, probabilities=True, format=kind)
    predict(local_run, image, tmp_path / "whole", options)
    append = RawFile.append

    def ended(self, rows):
        if self.num_rows():
            # It dies in the middle of writing the second band.
            with self.path.open("ab") as file:
                file.write(b"half of")
            raise Killed
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RawFile, "append", ended)
        with pytest.raises(Killed):
            predict(local_run, image, tmp_path / "ended", options)
    names = {path.name for path in (tmp_path / "ended").iterdir()}
    assert names == {".unfinished-scene"}
    predict(local_run, image, tmp_path / "ended", options)
    assert "going on at row" in capsys.readouterr().out
    for name in ("scene", "scene_probabilities"):
        suffix = {"tiff": ".tif", "nifti": ".nii.gz"}[kind]
        one, other = (
            read_image(tmp_path / place / f"{name}{suffix}") for place in ("whole", "ended")
        )
        np.testing.assert_array_equal(one, other)
    names = {path.name for path in (tmp_path / "ended").iterdir()}
    pictures = {"scene_overlay.png"}
    assert names == {f"scene{suffix}", f"scene_probabilities{suffix}", "scene.json", *pictures}


def test_what_was_begun_with_other_options_is_begun_anew(local_run, folder, tmp_path, capsys):
    work = tmp_path / ".unfinished-scene"
    work.mkdir()
    (work / "begun.json").write_text(json.dumps({"identity": {"window": [8, 8]}}))
    (work / "labels.raw").write_bytes(bytes(SHAPE[0] * SHAPE[1]))
    predict(local_run, [str(folder / "scene.tif")], tmp_path, Options())
    assert "going on" not in capsys.readouterr().out
    assert tifffile.imread(tmp_path / "scene.tif").any()


def test_a_prediction_that_is_there_is_not_made_again_and_no_other_file_is_lost(
    local_run, folder, tmp_path, capsys
):
    image = str(folder / "scene.tif")
    predict(local_run, [image], tmp_path, Options())
    predict(local_run, [image], tmp_path, Options())
    assert "done already" in capsys.readouterr().out
    before = (tmp_path / "scene.tif").read_bytes()
    for options in (Options(window=(48, 48)), Options(batch=2)):
        with pytest.raises(ValueError, match=r"scene.tif is there already.*Remove it, or choose"):
            predict(local_run, [image], tmp_path, options)
    assert (tmp_path / "scene.tif").read_bytes() == before
    with pytest.raises(ValueError, match="is the image itself"):
        predict(local_run, [image], folder, Options())


def test_statistics_of_the_whole_image_are_warned_of(train, folder, tmp_path, capsys):
    run = train("instance")
    image = [str(folder / "scene.tif")]
    predict(run, image, tmp_path / "halo", Options(tiles="halo"))
    assert "NO HALO MAKES ITS TILES EQUAL" in capsys.readouterr().err
    predict(run, image, tmp_path / "gaussian", Options())
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("has_own_code", [False, True])
def test_who_prepared_the_images_is_what_the_run_recorded(
    has_own_code, local_run, folder, tmp_path, capsys
):
    run = shutil.copytree(local_run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": "csv"}))
    data = json.loads((run / "data.json").read_text())
    if has_own_code:
        (run / "data.json").write_text(json.dumps({**data, "preparation": None}))
    predict(run, [str(folder / "scene.tif")], tmp_path / "out", Options(window=(64, 64)))
    assert ("in code of its own" in capsys.readouterr().err) == has_own_code
    # A process that was killed between its last two acts left this behind.
    (tmp_path / "out/.unfinished-scene").mkdir()
    predict(run, [str(folder / "scene.tif")], tmp_path / "out", Options(window=(64, 64)))
    assert not (tmp_path / "out/.unfinished-scene").exists()


def test_a_halo_that_is_too_small_is_warned_of(local_run, folder, tmp_path, capsys):
    options = Options(tiles="halo", halo=4)
    predict(local_run, [str(folder / "scene.tif")], tmp_path, options)
    assert "a halo of 4 is less than the" in capsys.readouterr().err


def test_pages_that_the_run_took_for_channels_are_predicted_as_channels(
    local_run, folder, tmp_path
):
    (expected,) = predict(local_run, [str(folder / "scene.tif")], tmp_path / "a", Options())
    run = tmp_path / "run"
    shutil.copytree(local_run, run)
    data = json.loads((run / "data.json").read_text())
    data["preparation"]["axes"] = "cyx"
    (run / "data.json").write_text(json.dumps(data))
    pages = np.moveaxis(tifffile.imread(folder / "scene.tif"), -1, 0)
    tifffile.imwrite(tmp_path / "pages.tif", pages, photometric="minisblack")
    np.save(tmp_path / "array.npy", pages)
    for image in ("pages.tif", "array.npy"):
        (path,) = predict(run, [str(tmp_path / image)], tmp_path / "b", Options())
        np.testing.assert_array_equal(tifffile.imread(path), tifffile.imread(expected))


def test_images_that_were_resampled_come_back_at_their_own_size(train, folder, tmp_path):
    run = train(pixel_size=1.0, target_pixel_size=[1.25, 0.8])
    image = [str(folder / "scene.tif")]
    options = Options(probabilities=True, pixel_size=(2.0, 1.0))
    (path,) = predict(run, image, tmp_path, options)
    labels = tifffile.imread(path)
    assert labels.shape == SHAPE
    probabilities = tifffile.imread(tmp_path / "scene_probabilities.tif")
    assert probabilities.shape == (2, *SHAPE)
    np.testing.assert_allclose(probabilities.sum(0), 1, atol=1e-5)
    assert (probabilities.argmax(0) == labels).mean() > 0.97
    # The picture is that of the image, not of what the network saw.
    with Image.open(tmp_path / "scene_overlay.png") as picture:
        is_image = np.asarray(picture.convert("RGB")).min(-1) < 250
    height, width = ((is_image.mean(1 - axis) > 0.5).sum() for axis in (0, 1))
    assert height / width == pytest.approx(SHAPE[0] / SHAPE[1], rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "IMAGE"], "There is no folder 'nowhere'"),
        (["FOLDER", "IMAGE"], "holds no run"),
        (["RUN", "none.tif"], "none.tif: cannot be read .there is no such file"),
        (["RUN", "IMAGE,IMAGE"], "made of 1 file, got 2. Give one file with all"),
        (
            ["RUN", "MASK"],
            r"a 2D image with 1 channel; .* with 3\. Save it in colour, such as with Pillow: Im",
        ),
        (["RUN", "newer/images"], "newer/images: does not exist"),
        (["RUN", "IMAGE", "IMAGE"], "Several predictions would be called scene.json"),
        (["RUN", "IMAGE", "--tiles", "round"], "Known: gaussian, halo"),
        (["RUN", "IMAGE", "--halo", "3"], "--halo is for --tiles halo"),
        (["RUN", "IMAGE", "--format", "bmp"], "Known: tiff, nifti, zarr, png"),
        (["RUN", "IMAGE", "--window", "32"], "has 1 sizes; this network takes 2"),
        (["RUN", "IMAGE", "--window", "0,32"], "must have positive sizes, got 0,32"),
        (["RUN", "IMAGE", "--window", "30,32"], "must be a multiple of 4"),
        (["RUN", "IMAGE", "--tiles", "halo", "--window", "30,32"], "Choose a window of at least"),
        (["RUN", "IMAGE", "--pixel_size", "1"], "--pixel_size is for runs with target_pixel"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    arguments, message, local_run, folder, tmp_path, capsys
):
    places = {
        "RUN": local_run,
        "FOLDER": folder,
        "IMAGE": folder / "scene.tif",
        "MASK": folder / "case0_mask.tif",
    }
    given = [
        ",".join(str(places.get(part, part)) for part in argument.split(","))
        for argument in arguments
    ]
    out = tmp_path / "out"
    assert main(["predict", *given, "--out", str(out)]) == exit_codes.BAD_INPUT
    assert re.search(message, capsys.readouterr().err)
    assert not list(out.glob("*.*"))


def test_all_unfit_images_are_named_at_once_or_left_out(local_run, folder, tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    shutil.copy(folder / "scene.tif", images / "fit.tif")
    for name in ("grey1", "grey2"):
        tifffile.imwrite(images / f"{name}.tif", np.zeros((40, 40), np.uint8))
    (images / "broken.tif").write_bytes(b"none")
    command = ["predict", str(local_run), str(images), "--no-overlay"]
    assert main([*command, "--out", str(tmp_path / "none")]) == exit_codes.BAD_INPUT
    said = capsys.readouterr().err
    assert "3 of 4 images cannot be predicted" in said
    assert f"  {images}/broken.tif: " in said
    assert re.search(rf"{images}/grey1\.tif: a 2D .*\(1 more like it: {images}/grey2\.tif\)", said)
    assert said.rstrip().endswith("--on_bad_sample skip.")
    assert not (tmp_path / "none").exists()
    skip = [*command, "--on_bad_sample", "skip", "--out", str(tmp_path / "out")]
    assert main(skip) == exit_codes.OK
    assert capsys.readouterr().err.count("warning: left out: ") == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"fit.tif", "fit.json"}
    (images / "fit.tif").unlink()
    assert main(skip) == exit_codes.BAD_INPUT  # Nothing is left.
    assert "3 of 3 images cannot be predicted" in capsys.readouterr().err


@pytest.mark.multiprocess
def test_ctrl_c_leaves_no_half_written_file_and_the_same_command_goes_on(
    local_run, folder, tmp_path, capsys
):
    image = np.concatenate([np.concatenate([read_image(folder / "scene.tif")] * 5)] * 4, 1)
    tifffile.imwrite(tmp_path / "wide.tif", image.astype(np.uint16), tile=(32, 32), **BANDS)
    given = [str(local_run), str(tmp_path / "wide.tif"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "tfunet", "predict", *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    raw = tmp_path / "out/.unfinished-wide/labels.raw"
    deadline = time.monotonic() + 200
    while not (raw.exists() and raw.stat().st_size) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=200)
    assert process.returncode == exit_codes.INTERRUPTED, said
    assert "The same command goes on from here" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".unfinished-wide"]
    assert main(["predict", *given]) == exit_codes.OK
    assert "going on at row" in capsys.readouterr().out
    assert tifffile.imread(tmp_path / "out/wide.tif").shape == image.shape[:2]
