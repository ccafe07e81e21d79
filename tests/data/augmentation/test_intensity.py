"""Grey values against numpy's arithmetic of the same formulas."""

import numpy as np
import pytest
import tensorflow as tf

from tfunet.data.augmentation import intensity

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(0.3, 2.0, (14, 9, 2)).astype(np.float32) * [1.0, 5.0]
VOLUME = RNG.normal(size=(6, 7, 8, 3)).astype(np.float32)


def applied(function, image, *amounts):
    given = [tf.constant(amount, tf.float32) for amount in amounts]
    return function(tf.constant(image, tf.float32), *given).numpy()


def channels(image):
    return [image[..., channel].astype(np.float64) for channel in range(image.shape[-1])]


def test_brightness_adds_to_each_channel():
    found = applied(intensity.brightness, IMAGE, [0.5, -2.0])
    np.testing.assert_allclose(found, np.add(IMAGE, [0.5, -2.0]), rtol=1e-5)


@pytest.mark.parametrize("factors", [(0.6, 0.75), (1.3, 2.0), (1.0, 0.5)])
def test_contrast_changes_the_distance_from_the_mean_and_keeps_the_range(factors):
    found = applied(intensity.contrast, IMAGE, factors)
    for channel, before, factor in zip(channels(found), channels(IMAGE), factors, strict=True):
        expected = ((before - before.mean()) * factor + before.mean()).clip(
            before.min(), before.max()
        )
        np.testing.assert_allclose(channel, expected, rtol=1e-4, atol=1e-4)


def test_contrast_of_one_changes_no_bit():
    image = IMAGE.astype(np.float32)
    np.testing.assert_array_equal(applied(intensity.contrast, image, (1.0, 1.0)), image)


@pytest.mark.parametrize("image", [IMAGE, VOLUME], ids=["2D", "3D"])
def test_gamma_is_a_power_of_the_unit_range_and_keeps_mean_and_deviation(image):
    exponents = (0.7, 1.5, 1.0)[: image.shape[-1]]
    found = applied(intensity.gamma, image, exponents)
    for channel, before, exponent in zip(channels(found), channels(image), exponents, strict=True):
        span = before.max() - before.min()
        powered = ((before - before.min()) / span) ** exponent * span + before.min()
        expected = (powered - powered.mean()) / powered.std() * before.std() + before.mean()
        np.testing.assert_allclose(channel, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("function", [intensity.contrast, intensity.gamma])
def test_a_channel_of_one_value_stays_as_it_is(function):
    image = np.full((4, 5, 2), (3.0, -7.0), np.float32)
    np.testing.assert_array_equal(applied(function, image, (0.5, 2.0)), image)


def test_noise_has_each_channels_deviation():
    normal = RNG.normal(size=IMAGE.shape)
    found = applied(intensity.noise, IMAGE, (0.0, 3.0), normal)
    np.testing.assert_allclose(found, IMAGE + normal * [0.0, 3.0], rtol=1e-4, atol=1e-5)


def blurred(image, sigma, greatest):
    given = tf.constant(image, tf.float32), tf.constant(sigma, tf.float32)
    return intensity.blur(*given, greatest).numpy()


@pytest.mark.parametrize("rank", [2, 3])
def test_blur_spreads_a_point_as_a_gaussian(rank):
    size = 17
    image = np.zeros((size,) * rank + (2,), np.float32)
    image[(size // 2,) * rank] = 1
    found = blurred(image, (0.8, 1.5), 1.5)
    squares = (np.indices((size,) * rank) - size // 2) ** 2
    for channel, sigma in enumerate((0.8, 1.5)):
        expected = np.exp(-squares.sum(axis=0) / (2 * sigma**2))
        # The filter ends at three times 1.5: all but the tails.
        np.testing.assert_allclose(found[..., channel], expected / expected.sum(), atol=1e-3)
        assert found[..., channel].sum() == pytest.approx(1, abs=1e-5)


def test_blur_sees_the_mirror_image_beyond_the_border():
    image = IMAGE.astype(np.float32)
    wide = np.pad(image, ((8, 8), (8, 8), (0, 0)), mode="reflect")
    inside = blurred(wide, (1.0, 1.7), 1.7)[8:-8, 8:-8]
    np.testing.assert_allclose(blurred(image, (1.0, 1.7), 1.7), inside, rtol=1e-4, atol=1e-4)


def test_blur_of_nothing_changes_no_bit_and_of_a_constant_hardly_any():
    image = VOLUME.astype(np.float32)
    np.testing.assert_array_equal(blurred(image, (0.0,) * 3, 1.0), image)
    np.testing.assert_allclose(blurred(np.full((1, 3, 20, 1), 7.0), (2.0,), 2.0), 7.0, rtol=1e-5)
