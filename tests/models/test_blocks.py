"""The blocks compute what their names say, checked against NumPy."""

import keras
import numpy as np
import pytest

from tfunet.models import unet
from tfunet.models.blocks import normalize, upsample
from tfunet.models.style import Style

PLAIN = {
    "activation": "relu",
    "bias": None,
    "dropout": 0.0,
    "affine": True,
    "groups": None,
    "negative_slope": None,
}


def _layer_output(shape, function):
    inputs = keras.Input(shape)
    return keras.Model(inputs, function(inputs))


def _random(*shape):
    return np.random.default_rng(7).normal(2.0, 3.0, shape).astype("float32")


def _standardized(images, axes):
    mean = images.mean(axes, keepdims=True)
    deviation = np.sqrt(images.var(axes, keepdims=True) + 1e-5)
    return (images - mean) / deviation


@pytest.mark.parametrize("shape", [(6, 8, 4), (4, 6, 2, 4)])
def test_instance_normalization_standardizes_each_channel_of_each_image(shape):
    style = Style(dimensions=len(shape) - 1, normalization="instance", **PLAIN)
    model = _layer_output(shape, lambda tensor: normalize(tensor, style, "norm"))
    scale, centre = model.get_layer("norm").gamma, model.get_layer("norm").beta
    scale.assign([1.0, 2.0, 3.0, 4.0])
    centre.assign([0.0, -1.0, 0.5, 2.0])
    images = _random(3, *shape)
    spatial = tuple(range(1, len(shape)))
    expected = _standardized(images, spatial) * [1, 2, 3, 4] + [0, -1, 0.5, 2]
    np.testing.assert_allclose(model(images), expected, atol=2e-5)


def test_group_normalization_standardizes_groups_of_neighbouring_channels():
    style = Style(dimensions=2, normalization="group", **{**PLAIN, "groups": 2})
    model = _layer_output((6, 8, 4), lambda tensor: normalize(tensor, style, "norm"))
    images = _random(3, 6, 8, 4)
    grouped = images.reshape(3, 6, 8, 2, 2)
    expected = _standardized(grouped, (1, 2, 4)).reshape(images.shape)
    np.testing.assert_allclose(model(images), expected, atol=2e-5)


def test_synchronized_batch_normalization_is_synchronized_and_plain_is_not():
    for kind, synchronized in (("batch", False), ("synchronized_batch", True)):
        style = Style(dimensions=2, normalization=kind, **PLAIN)
        model = _layer_output((4, 4, 2), lambda tensor, style=style: normalize(tensor, style, "n"))
        assert isinstance(model.get_layer("n"), keras.layers.BatchNormalization)
        assert model.get_layer("n").synchronized is synchronized


def _interpolated(values, axis):
    """Doubled by linear interpolation with half-pixel centres and repeated borders."""
    values = np.moveaxis(values, axis, 0)
    last = len(values) - 1
    centres = np.clip((np.arange(2 * len(values)) + 0.5) / 2 - 0.5, 0, last)
    below = np.floor(centres).astype(int)
    share = (centres - below).reshape(-1, *[1] * (values.ndim - 1))
    doubled = values[below] * (1 - share) + values[np.minimum(below + 1, last)] * share
    return np.moveaxis(doubled, 0, axis)


@pytest.mark.parametrize("shape", [(5, 4, 2), (3, 5, 4, 2), (1, 1, 3)])
def test_linear_upsampling_interpolates_in_every_dimension(shape):
    images = expected = _random(2, *shape)
    for axis in range(1, len(shape)):
        expected = _interpolated(expected, axis)
    model = _layer_output(shape, lambda tensor: upsample(tensor, "linear", len(shape) - 1, "up"))
    np.testing.assert_allclose(model(images), expected, atol=1e-5)


def test_linear_upsampling_in_two_dimensions_is_that_of_keras():
    images = _random(2, 5, 4, 3)
    model = _layer_output((5, 4, 3), lambda tensor: upsample(tensor, "linear", 2, "up"))
    bilinear = keras.layers.UpSampling2D(interpolation="bilinear")
    np.testing.assert_allclose(model(images), bilinear(images), atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4, 2), (2, 3, 4, 2)])
def test_nearest_upsampling_repeats_every_value(shape):
    images = expected = _random(2, *shape)
    for axis in range(1, len(shape)):
        expected = expected.repeat(2, axis)
    model = _layer_output(shape, lambda tensor: upsample(tensor, "nearest", len(shape) - 1, "up"))
    np.testing.assert_array_equal(model(images), expected)


BIASES = [
    # normalization, the option, whether a 3x3 convolution has a bias.
    ("none", None, True),
    ("instance", None, False),  # the normalization would take its mean away
    ("instance", True, True),
    ("none", False, False),
]


@pytest.mark.parametrize(("normalization", "bias", "expected"), BIASES)
def test_convolutions_have_a_bias_only_where_nothing_takes_it_away(normalization, bias, expected):
    model = unet.build(
        image_shape=(16, 16, 1),
        num_classes=2,
        levels=1,
        filters=2,
        normalization=normalization,
        bias=bias,
        upsampling_bias=False,
    )
    assert model.get_layer("down0_0_convolution").use_bias is expected
    assert model.get_layer("up0_upsampling").use_bias is False
    assert model.get_layer("logits").use_bias is True
