"""Pictures have the colours of the files, whatever became of the pixels; none ends a run."""

from dataclasses import replace

import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.data.layouts import file_reader
from tfunet.data.preprocess import resize_linear
from tfunet.data.source import DataSource, open_source
from tfunet.data.true_colours import true_colours

# Contrast is high, so that smoothing changes the deviation.
SCENE = np.random.default_rng(0).choice([20, 90, 230], (40, 48, 3)).astype(np.float32)
STATISTICS = ["zscore", "zscore_nonzero", {"clip": [0, 100]}]
GIVEN = ["none", [0, 255], {"mean": [90, 80, 70], "deviation": [9, 8, 7]}]


def opened(folder, **options):
    Image.fromarray((SCENE[..., 0] > 100).astype(np.uint8)).save(folder / "a_mask.png")
    files = {"images": "{case}.tif", "masks": "{case}_mask.png"}
    source = open_source("folder", {"root": str(folder), **files, **options})
    assert source.in_colour
    return source


def write(folder, pixels):
    tifffile.imwrite(folder / "a.tif", pixels, photometric="rgb")


@pytest.mark.parametrize("intensity", [*STATISTICS, *GIVEN])
def test_colours_are_true_where_pixels_without_data_are_filled(intensity, tmp_path):
    pixels = SCENE.copy()
    pixels[:, :24] = np.nan
    write(tmp_path, pixels)
    source = opened(tmp_path, fill=0, intensity=intensity)
    shown = true_colours(source, 0)(source.read(0)[0])
    # A clip that is computed takes the value of filled pixels to the lowest that has data.
    filled = SCENE.min() if intensity == {"clip": [0, 100]} else 0
    np.testing.assert_allclose(shown, np.nan_to_num(pixels, nan=filled), atol=1e-3)


@pytest.mark.parametrize("fill", [None, 255])
@pytest.mark.parametrize("intensity", STATISTICS)
def test_colours_are_true_where_images_are_resampled(intensity, fill, tmp_path):
    write(tmp_path, SCENE)
    sizes = {"pixel_size": 1, "target_pixel_size": 4}
    source = opened(tmp_path, intensity=intensity, fill=fill, **sizes)
    image, _ = source.read(0)
    expected = resize_linear(SCENE, (10, 12))
    assert np.ptp(expected) < 150
    np.testing.assert_allclose(true_colours(source, 0)(image), expected, atol=1e-3)


@pytest.mark.parametrize("intensity", GIVEN)
def test_an_image_is_not_read_again_if_its_statistics_are_given(intensity, tmp_path, monkeypatch):
    write(tmp_path, SCENE)
    source = opened(tmp_path, intensity=intensity)
    image, _ = source.read(0)
    reads = []
    monkeypatch.setattr(file_reader, "read_image", lambda path, **_: reads.append(path))
    # However large it is.
    monkeypatch.setattr(file_reader, "LARGE_BYTES", 1)
    np.testing.assert_allclose(true_colours(source, 0)(image), SCENE, atol=1e-3)
    assert reads == []


def test_a_large_image_and_one_that_is_gone_stay_as_they_are(tmp_path, monkeypatch):
    write(tmp_path, SCENE)
    source = opened(tmp_path)
    image, _ = source.read(0)
    with monkeypatch.context() as limited:
        limited.setattr(file_reader, "LARGE_BYTES", 1)
        np.testing.assert_array_equal(true_colours(source, 0)(image), image)
    (tmp_path / "a.tif").unlink()
    np.testing.assert_array_equal(true_colours(source, 0)(image), image)


def refuse(*_):
    raise KeyError("x")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"preparation": {"intensity": "zscore"}, "raw": refuse},
        {"restore": refuse},
        {"restore": lambda index: refuse},
    ],
)
def test_code_of_a_user_that_fails_leaves_pixels_as_they_are(changed):
    image = SCENE / 100
    source = DataSource(
        name="own",
        case_ids=("a",),
        groups=("a",),
        num_classes=2,
        channels=3,
        regions={"cell": (1,)},
        patch=(40, 48),
        fingerprint="",
        read=lambda index: (image, np.zeros(image.shape[:2], np.uint8)),
        in_colour=True,
    )
    np.testing.assert_array_equal(true_colours(replace(source, **changed), 0)(image), image)
    restored = replace(source, restore=lambda index: lambda pixels: pixels * 100)
    np.testing.assert_allclose(true_colours(restored, 0)(image), SCENE)
