"""Resampling and normalisation against independent implementations and known values."""

import json

import numpy as np
import pytest
from PIL import Image

from tfunet.data.preprocess import (
    channel_statistics,
    check_channels,
    check_intensity,
    needs_whole_image,
    normalise,
    pooled_statistics,
    recorded_statistics,
    resampled_shape,
    resize_linear,
    resize_nearest,
    statistics_for,
    unnormalised,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(31, 20), (97, 20), (13, 55), (61, 47), (1, 1), (40, 60)])
def test_linear_resizing_equals_pillows_antialiased_bilinear(shape):
    image = RNG.uniform(0, 255, (61, 47)).astype(np.float32)
    expected = Image.fromarray(image).resize(shape[::-1], Image.Resampling.BILINEAR)
    resized = resize_linear(image[..., None], shape)
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized[..., 0], np.asarray(expected), atol=1e-3)


@pytest.mark.parametrize("shape", [(31, 20), (97, 20), (13, 55), (61, 47)])
def test_nearest_resizing_equals_pillows_and_invents_no_label(shape):
    mask = RNG.integers(0, 3, (61, 47)).astype(np.uint8) * 7
    expected = Image.fromarray(mask).resize(shape[::-1], Image.Resampling.NEAREST)
    resized = resize_nearest(mask, shape)
    assert resized.dtype == np.uint8
    np.testing.assert_array_equal(resized, np.asarray(expected))


def test_volumes_are_resized_along_every_axis():
    grid = np.stack(np.meshgrid(*(np.arange(16.0),) * 3, indexing="ij"), -1).astype(np.float32)
    resized = resize_linear(grid, (8, 16, 32))
    assert resized.shape == (8, 16, 32, 3)
    # Away from the edges, a ramp stays a ramp between the same pixel borders.
    np.testing.assert_allclose(resized[2:-2, 3, 5, 0], np.arange(2, 6) * 2 + 0.5, atol=1e-5)
    np.testing.assert_allclose(resized[3, 3, 4:-4, 2], np.arange(4, 28) / 2 - 0.25, atol=1e-5)
    assert resize_nearest(np.zeros((5, 6, 7), np.uint8), (10, 3, 7)).shape == (10, 3, 7)


def test_image_and_mask_stay_aligned():
    mask = np.zeros((60, 60), np.uint8)
    mask[17:43, 9:31] = 1
    image = mask[..., None].astype(np.float32)
    for shape in ((33, 47), (90, 101)):
        resized = resize_linear(image, shape)[..., 0]
        disagree = (resized > 0.5) != (resize_nearest(mask, shape) > 0)
        # Only pixels through which the outline runs may differ.
        assert np.abs(resized[disagree] - 0.5).max(initial=0) < 0.5
        assert disagree.sum() < 2 * sum(shape)


@pytest.mark.parametrize(
    ("shape", "spacing", "target", "expected"),
    [
        ((924, 1278), (0.18, 0.18), (0.1, 0.1), (1663, 2300)),
        ((2001, 2001), (0.07, 0.07), (0.1, 0.1), (1401, 1401)),
        ((40, 50, 30), (1, 1, 3), (1, 2, 1), (40, 25, 90)),
        ((3, 3), (0.1, 0.1), (9, 9), (1, 1)),  # never empty
    ],
)
def test_resampled_shape(shape, spacing, target, expected):
    assert resampled_shape(shape, spacing, target) == expected


def test_zscore_is_for_each_channel_of_each_image():
    image = RNG.normal([5, -1e5], [2, 1e4], (50, 60, 2)).astype(np.float32)
    scaled = normalise(image, "zscore")
    np.testing.assert_allclose(scaled.mean((0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std((0, 1)), 1, atol=1e-5)
    assert scaled.dtype == np.float32


def test_a_constant_image_becomes_zero_and_not_nan():
    assert not normalise(np.full((4, 4, 1), 7, np.float32), "zscore").any()


def test_a_range_becomes_zero_to_one_and_clips():
    image = np.array([-50, 0, 51, 255, 300], np.float32).reshape(1, 5, 1)
    np.testing.assert_allclose(normalise(image, (0, 255)).ravel(), [0, 0, 0.2, 1, 1])
    np.testing.assert_array_equal(normalise(image, "none"), image)


@pytest.mark.parametrize("intensity", ["z-score", [0], [5, 5], [255, 0], [0, 1, 2]])
def test_unknown_intensities_say_what_is_known(intensity):
    with pytest.raises(ValueError, match=r"Unknown intensity.*zscore"):
        check_intensity(intensity)


def test_percentiles_are_clipped_before_the_zscore():
    image = RNG.normal(5, 2, (40, 50, 2)).astype(np.float32)
    image[3, 4, 0] = 1e6
    clip = check_intensity({"clip": [1, 99]})
    normalised = normalise(image, clip)
    for channel in range(2):
        low, high = np.percentile(image[..., channel], [1, 99])
        expected = np.clip(image[..., channel], low, high)
        expected = (expected - expected.mean()) / expected.std()
        np.testing.assert_allclose(normalised[..., channel], expected, atol=1e-4)
    assert normalised.max() < 4
    for wrong in (
        [0, np.inf],
        [-np.inf, 0],
        {"clip": [99, 1]},
        {"clip": [1]},
        {"clip": [0, 101]},
        {"cut": [1, 99]},
    ):
        with pytest.raises(ValueError, match=r"clip = \[0.5, 99.5\]"):
            check_intensity(wrong)


def test_given_statistics_are_the_same_for_all_images():
    given = {"mean": [5, 10], "deviation": [2, 4], "low": [1, 2], "high": [9, 90]}
    image = RNG.normal(5, 20, (30, 20, 2)).astype(np.float32)
    expected = (np.clip(image, [1, 2], [9, 90]) - [5, 10]) / [2, 4]
    scale = check_intensity(given)
    np.testing.assert_allclose(normalise(image, scale), expected, rtol=1e-6, atol=1e-6)
    # A part has the values of the whole, and a record gives the same scale.
    np.testing.assert_array_equal(normalise(image[:7], scale), normalise(image, scale)[:7])
    assert check_intensity(json.loads(json.dumps(scale))) == scale
    del given["low"], given["high"]
    plain = check_intensity(given)
    np.testing.assert_allclose(normalise(image, plain), (image - [5, 10]) / [2, 4], rtol=1e-5)
    assert (needs_whole_image(plain), needs_whole_image({"clip": (1, 99)})) == (False, True)
    with pytest.raises(ValueError, match="gives mean for 2 channels, and the images have 1"):
        check_channels(plain, 1)
    for wrong in (
        {"mean": [5]},
        {"mean": [5], "deviation": [0]},
        {"mean": [5], "deviation": [1, 2]},
        {"mean": [], "deviation": []},
        {"mean": [5], "deviation": [1], "low": [0]},
        {"mean": [5], "deviation": [1], "low": [2], "high": [1]},
        {"mean": [np.nan], "deviation": [1]},
        {"mean": [5], "deviation": [1], "clip": [1, 99]},
    ):
        with pytest.raises(ValueError, match=r"\{ mean = \[90.5\], deviation = \[31.2\] \}"):
            check_intensity(wrong)


def test_statistics_of_images_together_are_those_of_all_their_pixels():
    images = [RNG.normal(case, 1 + case, (4 + case, 3, 2)) for case in range(3)]
    each = [channel_statistics([image]) for image in images]
    pixels = np.concatenate([image.reshape(-1, 2) for image in images])
    pooled = pooled_statistics([len(image) * 3 for image in images], *zip(*each, strict=True))
    np.testing.assert_allclose(pooled, (pixels.mean(0), pixels.std(0)), rtol=1e-12)


@pytest.mark.parametrize("intensity", ["zscore", {"clip": (1, 99)}, "none", (0.0, 4.0)])
def test_pixels_without_data_do_not_count_in_statistics(intensity):
    image = np.random.default_rng(0).gamma(2, size=(9, 8, 2)).astype(np.float32)
    image[0] = image[2:4, 3:6, 0] = np.nan
    gaps = np.isnan(image)
    statistics = statistics_for(intensity, [image[:4], image[4:]])
    filled = normalise(image, intensity, statistics, fill=-5)
    np.testing.assert_array_equal(filled, normalise(image, intensity, fill=-5))
    for channel in range(2):
        there = ~gaps[..., channel]
        pixels = image[there, channel]
        alone = normalise(pixels[:, np.newaxis], intensity)[:, 0]
        np.testing.assert_allclose(filled[there, channel], alone, rtol=1e-5, atol=1e-6)
        assert (filled[~there, channel] == filled[0, 0, channel]).all()
    assert (filled[0] < (0.1 if intensity == (0.0, 4.0) else -1)).all()


@pytest.mark.parametrize("intensity", ["zscore", {"clip": (1, 99)}])
def test_statistics_of_a_record_give_the_same_bits(intensity):
    image = np.random.default_rng(0).gamma(2, size=(9, 8, 2)).astype(np.float32)
    statistics = statistics_for(intensity, [image[:4], image[4:]])
    recorded = json.loads(json.dumps([array.tolist() for array in statistics]))
    np.testing.assert_array_equal(
        normalise(image, intensity, recorded_statistics(recorded)),
        normalise(image, intensity, statistics),
    )


def test_zscore_of_what_is_not_zero_leaves_the_rest_at_zero():
    rng = np.random.default_rng(0)
    image = rng.normal(300, 40, (40, 30, 2)).astype(np.float32)
    image[:10] = 0
    image[20, 5, 0] = 0  # In one channel only: a value like any other.
    made = normalise(image, "zscore_nonzero")
    assert not made[:10].any()
    inside = image[10:].astype(np.float64).reshape(-1, 2)
    expected = (inside - inside.mean(0)) / inside.std(0)
    np.testing.assert_allclose(made[10:].reshape(-1, 2), expected, atol=1e-5)
    # In parts the same bits.
    statistics = statistics_for("zscore_nonzero", [image[:7], image[7:33], image[33:]])
    parts = [normalise(part, "zscore_nonzero", statistics) for part in (image[:25], image[25:])]
    np.testing.assert_array_equal(np.concatenate(parts), made)
    assert not normalise(np.zeros((4, 4, 1), np.float32), "zscore_nonzero").any()
    assert check_intensity("zscore_nonzero") == "zscore_nonzero"


@pytest.mark.parametrize("outside", [(0, 0), (-3.55, -3.62)])
def test_zscore_inside_leaves_out_what_is_as_the_first_pixel(outside):
    rng = np.random.default_rng(0)
    image = rng.normal(300, 40, (40, 30, 2)).astype(np.float32)
    image[:, :3] = image[:, 25:] = image[:10] = np.float32(outside)
    image[20, 5, 0] = outside[0]  # In one channel only: a value like any other.
    made = normalise(image, "zscore_inside")
    is_inside = (image != np.float32(outside)).any(-1)
    inside = image[is_inside].astype(np.float64)
    expected = (inside - inside.mean(0)) / inside.std(0)
    np.testing.assert_allclose(made[is_inside], expected, atol=1e-5)
    assert not made[~is_inside].any()
    parts = [image[:7], image[7:33], image[33:]]
    statistics = statistics_for("zscore_inside", parts)
    again = [normalise(part, "zscore_inside", statistics) for part in parts]
    np.testing.assert_array_equal(np.concatenate(again), made)
    restored = unnormalised(made, "zscore_inside", statistics)
    np.testing.assert_allclose(restored, image, atol=1e-3)
    # Linear resampling leaves the outside what it is.
    larger = normalise(resize_linear(image, (57, 71)), "zscore_inside")
    assert not larger[:13].any()
    assert not larger[:, :6].any()
    if not any(outside):
        np.testing.assert_array_equal(made, normalise(image, "zscore_nonzero"))


@pytest.mark.parametrize(("intensity", "outside"), [("zscore_nonzero", 0), ("zscore_inside", -3.5)])
def test_a_corner_without_data_does_not_hide_the_outside(intensity, outside):
    rng = np.random.default_rng(0)
    image = np.full((12, 10, 2), outside, np.float32)
    image[5:9, 3:7] = rng.normal(100, 5, (4, 4, 2))
    whole = normalise(image, intensity)
    image[:2] = np.nan
    parts = [image[:1], image[1:2], image[2:]]
    statistics = statistics_for(intensity, parts)
    made = normalise(image, intensity, statistics, fill=outside)
    np.testing.assert_allclose(made, whole, atol=1e-5)
    np.testing.assert_array_equal(normalise(image, intensity, fill=outside), made)
