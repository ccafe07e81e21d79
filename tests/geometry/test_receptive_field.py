"""The receptive field read from the graph is the one that gradients show."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.geometry.receptive_field import (
    UnknownReachError,
    alignment,
    reach,
    receptive_field,
    statistics_layers,
)
from tfunet.models import isensee, unet

# Smooth activations and no normalization: no gradient is exactly zero inside the field.
SMOOTH = {"normalization": "none", "activation": "silu", "filters": 2}


def _odd_one():
    """Layers that the networks here do not have, different in the two dimensions."""
    inputs = tensor = keras.Input((48, 60, 1))
    tensor = keras.layers.Conv2D(2, (3, 5), dilation_rate=(2, 1), padding="same")(tensor)
    tensor = keras.layers.AveragePooling2D((2, 3), strides=(2, 3))(tensor)
    tensor = keras.layers.Conv2D(2, 4, strides=2, padding="same")(tensor)
    tensor = keras.layers.Conv2DTranspose(2, 3, strides=2, padding="same")(tensor)
    tensor = keras.layers.UpSampling2D((2, 3), interpolation="bilinear")(tensor)
    tensor = keras.layers.DepthwiseConv2D((1, 2), padding="same")(tensor)
    return keras.Model(inputs, keras.layers.Add()([tensor, inputs]))


def _valid_one():
    """Valid padding shifts the indices and leaves a smaller output."""
    inputs = tensor = keras.Input((40, 40, 1))
    tensor = keras.layers.Conv2D(2, 3)(tensor)
    tensor = keras.layers.Conv2D(2, 5, strides=2)(tensor)
    return keras.Model(inputs, keras.layers.Conv2DTranspose(1, 4, strides=2)(tensor))


def _small_unet(shape, **options):
    return lambda: unet.build(image_shape=shape, num_classes=1, **{**SMOOTH, **options})


MODELS = {
    "transposed": _small_unet((64, 64, 1), levels=2, convolutions=1, downsampling="average"),
    "nearest": _small_unet((64, 64, 1), levels=2, upsampling="nearest", downsampling="strided"),
    "linear": _small_unet(
        (64, 64, 1), levels=2, convolutions=1, upsampling="linear", downsampling="average"
    ),
    "maximum": _small_unet((40, 40, 1), levels=1, convolutions=1),
    "residual": _small_unet((64, 64, 1), levels=2, residual=True, downsampling="average"),
    "three dimensions": _small_unet(
        (24, 24, 24, 1), levels=1, convolutions=1, downsampling="average"
    ),
    "isensee": lambda: isensee.build(
        image_shape=(64, 64, 1), num_classes=1, depth=3, segmentation_levels=2, **SMOOTH
    ),
    "odd": _odd_one,
    "valid": _valid_one,
}


def _field_of_gradients(model: keras.Model, *, repeats: int) -> tuple[int, ...]:
    """The largest extent of non-zero gradients over output positions in the middle."""
    middle = np.array([size // 2 for size in model.output.shape[1:-1]])
    # Neighbours on the diagonal: up-sampling by at most 6 repeats its pattern within them.
    positions = [middle + offset for offset in range(-3, 3)]
    generator = np.random.default_rng(0)
    shape = (len(positions) * repeats, *model.input.shape[1:])
    images = tf.constant(generator.normal(size=shape).astype("float32"))
    indices = [[row, *positions[row // repeats]] for row in range(len(images))]
    with tf.GradientTape() as tape:
        tape.watch(images)
        value = tf.reduce_sum(tf.gather_nd(model(images), indices))
    touched = np.any(tape.gradient(value, images).numpy() != 0, axis=-1)
    # Over several images: a maximum passes the gradient to one of its inputs only.
    touched = touched.reshape(len(positions), repeats, *touched.shape[1:]).any(axis=1)
    return tuple(
        max(_extent(field, dimension) for field in touched) for dimension in range(len(middle))
    )


def _extent(touched: np.ndarray, dimension: int) -> int:
    others = tuple(axis for axis in range(touched.ndim) if axis != dimension)
    indices = np.flatnonzero(touched.any(axis=others))
    return int(indices[-1] - indices[0] + 1)


@pytest.mark.parametrize("name", MODELS)
def test_receptive_field_is_the_extent_of_the_gradients(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    repeats = 16 if name == "maximum" else 2
    assert receptive_field(model) == _field_of_gradients(model, repeats=repeats)


def _convolutions(*sizes):
    def stack(tensor):
        for size in sizes:
            tensor = keras.layers.Conv2D(1, size, padding="same")(tensor)
        return tensor

    return stack


def _even_positions_of_bilinear(tensor):
    tensor = keras.layers.UpSampling2D(2, interpolation="bilinear")(tensor)
    return keras.layers.Conv2D(1, 1, strides=2)(tensor)


def _before_and_around(size):
    """One branch reads the two positions before its own, the other `size` around it."""

    def branches(tensor):
        before = keras.ops.pad(tensor, [[0, 0], [2, 0], [2, 0], [0, 0]])
        before = keras.layers.Conv2D(1, 3)(before)
        around = keras.layers.Conv2D(1, size, padding="same")(tensor)
        return keras.layers.Add()([before, around])

    return branches


# Layers, their field, and the positions to either side.
BY_HAND = [
    # Convolutions in a row: 1 + sum(size - 1).
    (_convolutions(3), 3, 1),
    (_convolutions(3, 3, 3), 7, 3),
    (_convolutions(5, 1, 3), 7, 3),
    (_convolutions(1), 1, 0),
    (_convolutions(2), 2, 1),
    (_even_positions_of_bilinear, 2, 1),
    (_before_and_around(3), 4, 2),
    (_before_and_around(2), 4, 2),  # TensorFlow pads an even size after, not before
]


@pytest.mark.parametrize(("layers", "field", "side"), BY_HAND)
def test_receptive_field_is_the_one_counted_by_hand(layers, field, side):
    inputs = keras.Input((32, 32, 1))
    model = keras.Model(inputs, layers(inputs))
    assert receptive_field(model) == (field, field)
    assert reach(model) == (side, side)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: unet.build(image_shape=(32, 32, 1), num_classes=1, levels=3, **SMOOTH), (8, 8)),
        (_odd_one, (4, 6)),
    ],
)
def test_alignment_is_what_the_network_pools_by(build, expected):
    assert alignment(build()) == expected


@pytest.mark.parametrize(
    ("layer", "is_named"),
    [
        (keras.layers.GroupNormalization(groups=-1, name="one"), True),
        (keras.layers.GroupNormalization(groups=2, name="one"), True),
        (keras.layers.LayerNormalization(axis=(1, 2, 3), name="one"), True),
        (keras.layers.LayerNormalization(name="one"), False),
        (keras.layers.BatchNormalization(name="one"), False),
    ],
)
def test_layers_with_statistics_of_the_image_are_named(layer, is_named):
    inputs = keras.Input((8, 8, 4))
    assert statistics_layers(keras.Model(inputs, layer(inputs))) == ["one"] * is_named


@pytest.mark.parametrize("skips", [False, True])
def test_the_reach_of_a_layer_that_is_used_twice_is_unknown(skips):
    inputs = keras.Input((8, 8, 1))
    layer = keras.layers.Conv2D(1, 3, padding="same")
    first = layer(inputs)
    outputs = layer(first)
    if skips:  # The first call is on a way to the output that the second is not on.
        outputs = keras.layers.Add()([first, outputs])
    with pytest.raises(UnknownReachError, match="uses a layer more than once"):
        receptive_field(keras.Model(inputs, outputs))


def _centred(tensor):
    return tensor - keras.ops.mean(tensor, axis=(1, 2), keepdims=True)


class _Standardized(keras.layers.Conv2D):
    def call(self, inputs):
        return _centred(super().call(inputs))


class _Sums(keras.layers.Add):
    def call(self, inputs):
        return _centred(super().call(inputs))


class _Same(keras.layers.Conv2D):
    """Overrides nothing."""


class Pad(keras.layers.Layer):
    """Somebody else's layer, with the name of an operation of Keras."""

    pad_width = ((0, 0),) * 4

    def call(self, inputs):
        return _centred(inputs)


def _replaced(layer):
    layer.call = _centred
    return layer


FIRST = {"data_format": "channels_first"}
TILED = [
    (keras.layers.Activation("softmax"), ""),
    (keras.layers.Activation(_centred), "whose activation does not treat each pixel alone"),
    (keras.layers.Conv2D(4, 3, padding="same", activation="elu"), ""),
    (keras.layers.Conv2D(4, 3, padding="same", activation=_centred), "whose activation"),
    (keras.layers.Conv2DTranspose(4, 3, padding="same", activation=_centred), "whose activation"),
    (keras.layers.DepthwiseConv2D(3, padding="same", activation=_centred), "whose activation"),
    (keras.layers.SeparableConv2D(4, 3, padding="same", activation=_centred), "whose activation"),
    (keras.layers.Dense(4), ""),
    (keras.layers.Dense(4, activation=_centred), "whose activation"),
    (keras.layers.Activation(keras.layers.Softmax(axis=1)), "whose activation"),
    (keras.layers.Softmax(), ""),
    (keras.layers.Softmax(axis=[1, 2]), "type Softmax"),
    (keras.layers.UnitNormalization(), ""),
    (keras.layers.UnitNormalization(axis=1), "type UnitNormalization"),
    (keras.layers.LayerNormalization(), ""),
    (keras.layers.LayerNormalization(axis=[1, 2, 3]), ""),  # has a warning
    (keras.layers.BatchNormalization(), ""),
    (keras.layers.BatchNormalization(axis=1), "has numbers for each row"),
    (keras.layers.PReLU(shared_axes=[1, 2]), ""),
    (keras.layers.PReLU(), "type PReLU"),
    (keras.layers.Rescaling(2.0, [1.0, 2.0, 3.0, 4.0]), ""),
    (keras.layers.Rescaling(np.ones((8, 8, 1))), "type Rescaling"),
    (_Same(4, 3, padding="same"), ""),
    (_Standardized(4, 3, padding="same"), "type _Standardized"),
    (_replaced(keras.layers.ReLU()), "type ReLU"),
    (Pad(), "type Pad"),
    (keras.layers.AveragePooling2D(3, 1, padding="same", **FIRST), "whose channels come first"),
    (lambda tensor: _Sums()([tensor, tensor]), "type _Sums"),
    (lambda tensor: keras.layers.Concatenate()([tensor, tensor]), ""),
    (lambda tensor: keras.layers.Concatenate(1)([tensor, tensor]), "joins other pixels"),
    (
        lambda tensor: keras.layers.Add()([tensor, keras.layers.AveragePooling2D(8)(tensor)]),
        "joins other pixels",
    ),
]


@pytest.mark.parametrize(("layer", "reason"), TILED)
def test_a_layer_that_sees_more_than_its_window_has_no_reach(layer, reason):
    inputs = keras.Input((8, 8, 4))
    model = keras.Model(inputs, layer(inputs))
    if not reason:
        assert max(receptive_field(model)) <= 3
        return
    with pytest.raises(UnknownReachError, match=reason):
        receptive_field(model)


def test_a_layer_of_unknown_reach_is_named():
    inputs = keras.Input((8, 8, 1))
    outputs = keras.layers.Permute((2, 1, 3), name="turned")(inputs)
    with pytest.raises(UnknownReachError, match="'turned' of type Permute"):
        receptive_field(keras.Model(inputs, outputs))
