"""Each layer on parts of a sample against the same layer on one device, in float64.

The tables are those of the peers' own tests: LBANN/DistConv, LBANN's unit tests, PhysicsNeMo and
DistDL; and what none of them tests: uneven parts, parts thinner than a halo, sizes that do not
divide, every kernel with every stride.
"""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from split_check import assert_exact, every, layered
from split_training import differences
from threads import Threads

from tfunet.parallel.mesh import Mesh
from tfunet.parallel.rules import rule_of

CONVOLUTIONS = {1: layers.Conv1D, 2: layers.Conv2D, 3: layers.Conv3D}
TRANSPOSED = {1: layers.Conv1DTranspose, 2: layers.Conv2DTranspose, 3: layers.Conv3DTranspose}
MAX_POOLINGS = {1: layers.MaxPooling1D, 2: layers.MaxPooling2D, 3: layers.MaxPooling3D}
AVERAGES = {1: layers.AveragePooling1D, 2: layers.AveragePooling2D, 3: layers.AveragePooling3D}
ZEROS = {1: layers.ZeroPadding1D, 2: layers.ZeroPadding2D, 3: layers.ZeroPadding3D}
UPSAMPLINGS = {1: layers.UpSampling1D, 2: layers.UpSampling2D, 3: layers.UpSampling3D}


def one_axis(rank, axis, parts):
    """Return a split of one axis."""
    return tuple(parts if each == axis else 1 for each in range(rank))


def assert_pools(shape, split, kind, size, zeros=None, width=0, **options):
    """Assert that a pooling is exact; TensorFlow has those in 3D in float32 only."""
    tolerance = 1e-12
    if len(split) == 3:
        tolerance = 1e-6
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    padding = [zeros(width)] if zeros else []
    layer = kind(size, **options)
    model = layered(shape, *padding, layer)
    skips_rows = len(split) == 3 and layer.padding == "same" and layer.strides[0] - size > 1
    gathers = {kind.__name__} if skips_rows else ()
    assert_exact(model, split, batch=1, tolerance=tolerance, gathers=gathers)


# LBANN/DistConv: 64^n there, smaller here in three dimensions; padding k // 2 is "same".
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(
    ("rank", "axis"), [(rank, axis) for rank in (1, 2, 3) for axis in range(rank)]
)
def test_distconv_basic(rank, axis, kernel):
    size = {1: 64, 2: 64, 3: 16}[rank]
    model = layered((*(size,) * rank, 4), CONVOLUTIONS[rank](8, kernel, padding="same"))
    assert_exact(model, one_axis(rank, axis, 4), batch=1)


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_distconv_strides(rank, kernel, stride):
    size = {1: 64, 2: 64, 3: 16}[rank]
    padding = [ZEROS[rank](1)] if kernel == 3 else []
    model = layered((*(size,) * rank, 4), *padding, CONVOLUTIONS[rank](8, kernel, strides=stride))
    assert_exact(model, one_axis(rank, 0, 4), batch=1)


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("split", [(2, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)])
def test_distconv_several_axes(split, kernel, stride):
    rank = len(split)
    size = {2: 32, 3: 12}[rank]
    layer = CONVOLUTIONS[rank](8, kernel, strides=stride)
    padding = [ZEROS[rank](kernel // 2)] if kernel > 1 else []
    assert_exact(layered((*(size,) * rank, 4), *padding, layer), split, batch=1)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    "kernel", [(3, 5), (5, 3), (1, 3), (3, 1), (3, 5, 7), (1, 3, 5), (7, 3, 1)]
)
def test_distconv_kernels_of_unequal_sides(kernel, stride):
    rank = len(kernel)
    size = {2: 32, 3: 12}[rank]
    layer = CONVOLUTIONS[rank](4, kernel, strides=stride, padding="same")
    assert_exact(layered((*(size,) * rank, 2), layer), (2,) * rank, batch=1)


@pytest.mark.parametrize("split", [(4, 1), (1, 4), (2, 2)])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_distconv_periodic(split, kernel):
    """A circular convolution: its padding is read from the other side, on gathered tensors."""
    half = kernel // 2

    def wrapped(tensor):
        for axis in (1, 2):
            rows = tensor.shape[axis]
            first = keras.ops.take(tensor, range(rows - half, rows), axis=axis)
            last = keras.ops.take(tensor, range(half), axis=axis)
            tensor = keras.ops.concatenate([first, tensor, last], axis=axis)
        return tensor

    image = keras.Input((16, 16, 2))
    padded = wrapped(image) if half else image
    model = keras.Model(image, layers.Conv2D(4, kernel, use_bias=False)(padded))
    assert_exact(model, split, batch=1, gathers={"Take", "Concatenate"} if half else ())


# PhysicsNeMo: 128 or 256 rows there, 32 here; those that it expects to fail are here too.
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize(
    ("rank", "split"), [(1, (3,)), (2, (3, 1)), (2, (2, 2)), (3, (2, 1, 1)), (3, (2, 2, 1))]
)
def test_physicsnemo_convolutions(rank, split, kernel, stride, padding):
    size = {1: 33, 2: 32, 3: 10}[rank]
    layer = CONVOLUTIONS[rank](3, kernel, strides=stride, padding=padding)
    assert_exact(layered((*(size,) * rank, 4), layer), split)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize(("rank", "split"), [(1, (3,)), (2, (3, 2)), (3, (2, 1, 2))])
def test_physicsnemo_transposed(rank, split, kernel, stride, padding):
    size = {1: 17, 2: 12, 3: 6}[rank]
    layer = TRANSPOSED[rank](3, kernel, strides=stride, padding=padding)
    assert_exact(layered((*(size,) * rank, 2), layer), split)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (4, 4), (2, 4), (3, 2), (3, 1), (2, 1)])
@pytest.mark.parametrize("kind", [MAX_POOLINGS, AVERAGES])
@pytest.mark.parametrize(("rank", "split"), [(1, (3,)), (2, (2, 1)), (2, (3, 2)), (3, (2, 1, 2))])
def test_physicsnemo_poolings(rank, split, kind, size, stride, padding):
    extent = {1: 33, 2: 26, 3: 12}[rank]
    assert_pools((*(extent,) * rank, 2), split, kind[rank], size, strides=stride, padding=padding)


@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric"])
@pytest.mark.parametrize("width", [[(2, 2), (2, 2)], [(1, 2), (3, 4)]])
@pytest.mark.parametrize("split", [(3, 1), (2, 2)])
def test_physicsnemo_padding(split, width, mode):
    image = keras.Input((25, 14, 2))
    padded = keras.ops.pad(image, [(0, 0), *width, (0, 0)], mode=mode)
    assert_exact(keras.Model(image, layers.Conv2D(3, 3)(padded)), split)


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize(("rank", "split"), [(1, (3,)), (2, (3, 1)), (2, (2, 2)), (3, (2, 2, 1))])
def test_physicsnemo_nearest(rank, split, factor):
    size = {1: 17, 2: 11, 3: 5}[rank]
    layer = UPSAMPLINGS[rank](factor)
    assert_exact(layered((*(size,) * rank, 2), layer), split, batch=1)


@pytest.mark.parametrize("axis", [-1, [1, 2, 3]])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_normalization(axis, affine):
    layer = layers.LayerNormalization(axis=axis, center=affine, scale=affine)
    gathers = () if axis == -1 else {"LayerNormalization"}
    assert_exact(layered((17, 9, 4), layer), (3, 2), gathers=gathers)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 4, -1])
@pytest.mark.parametrize("split", [(3, 1), (2, 2)])
def test_group_normalization(split, groups, affine):
    layer = layers.GroupNormalization(groups, center=affine, scale=affine)
    assert_exact(layered((17, 9, 8), layer), split)


# DistDL: sample (without its batch of one), split, kernel, padding, stride, dilation.
DISTDL = [
    ((10, 10, 5), (2, 2), 3, 1, 1, 1),
    ((10, 10, 5), (2, 2), 5, 2, 2, 1),
    ((5, 5, 5), (2, 2), 3, 1, 2, 1),
    ((6, 10, 5), (2, 2), 5, 2, 4, 1),
    ((10, 8, 5), (2, 2), 5, 1, 1, 1),
    ((8, 8, 5), (2, 2), 4, 1, 1, 1),
    ((5, 5, 6, 3), (2, 1, 2), 5, 2, (2, 2, 1), 1),
    ((15, 3), (4,), 3, 1, 1, 1),
    ((10, 10, 3), (2, 2), 5, 1, 1, 2),
]


@pytest.mark.parametrize(("shape", "split", "kernel", "padding", "stride", "dilation"), DISTDL)
def test_distdl_convolutions(shape, split, kernel, padding, stride, dilation):
    rank = len(split)
    layer = CONVOLUTIONS[rank](4, kernel, strides=stride, dilation_rate=dilation)
    model = layered(shape, ZEROS[rank](padding), layer)
    assert_exact(model, split, batch=1)


@pytest.mark.parametrize("kind", [MAX_POOLINGS, AVERAGES])
@pytest.mark.parametrize(
    ("shape", "split", "kernel", "padding", "stride"), [case[:5] for case in DISTDL[:8]]
)
def test_distdl_poolings(shape, split, kernel, padding, stride, kind):
    rank = len(split)
    assert_pools(shape, split, kind[rank], kernel, ZEROS[rank], padding, strides=stride)


# TensorFlow computes the weights of an interpolation in float32, from the number of the row.
@pytest.mark.parametrize(("shape", "split"), [((13, 17, 4), (3, 4)), ((17, 8, 4), (5, 1))])
@pytest.mark.parametrize("factor", [1, 2, (3, 2)])
def test_distdl_linear_upsampling(shape, split, factor):
    layer = layers.UpSampling2D(factor, interpolation="bilinear")
    assert_exact(layered(shape, layer), split, batch=3, tolerance=5e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("synchronized", [True, False])
@pytest.mark.parametrize("split", [(3, 1), (2, 2)])
def test_batch_normalization(split, synchronized, affine, training):
    layer = layers.BatchNormalization(synchronized=synchronized, center=affine, scale=affine)
    assert_exact(layered((17, 9, 4), layer), split, batch=3, training=training)


# What none of them tests.
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 7])
def test_every_kernel_and_stride_on_uneven_parts(kernel, stride, padding):
    layer = layers.Conv2D(3, kernel, strides=stride, padding=padding)
    assert_exact(layered((37, 13, 2), layer), (3, 1), bounds=((0, 7, 18, 37), None), batch=1)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dilation", [2, 3])
def test_dilation_and_groups(dilation, groups, padding):
    # TensorFlow's CPU has no gradient for both at once.
    dilation = 1 if groups > 1 else dilation
    layer = layers.Conv2D(4, 3, dilation_rate=dilation, groups=groups, padding=padding)
    assert_exact(layered((20, 11, 4), layer), (3, 1), batch=1)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (1, 3), (2, 3), (2, 4)])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_stride_larger_than_the_kernel(rank, kernel, stride):
    layer = CONVOLUTIONS[rank](3, kernel, strides=stride, padding="same")
    gathers = {"Conv3D"} if rank == 3 and stride - kernel > 1 else ()
    assert_exact(layered((*(12,) * rank, 2), layer), (2,) * rank, batch=1, gathers=gathers)


@pytest.mark.parametrize("kernel", [3, 7])
def test_parts_thinner_than_the_halo(kernel):
    layer = layers.Conv2D(3, kernel, padding="same")
    assert_exact(layered((8, 9, 2), layer), (4, 1), bounds=((0, 1, 3, 4, 8), None))


@pytest.mark.parametrize(
    "layer",
    [
        partial(layers.DepthwiseConv2D, 3, padding="same", depth_multiplier=2),
        partial(layers.DepthwiseConv2D, 5, strides=2),
        partial(layers.SeparableConv2D, 4, 3, padding="same"),
        partial(layers.SeparableConv2D, 4, 3, strides=2, padding="same"),
        partial(layers.Cropping2D, ((1, 2), (3, 0))),
        partial(layers.ZeroPadding2D, ((1, 2), (3, 0))),
        partial(layers.GlobalAveragePooling2D),
        partial(layers.GlobalAveragePooling2D, keepdims=True),
        partial(layers.GlobalMaxPooling2D),
        partial(layers.PReLU, shared_axes=[1, 2]),
        partial(layers.Dense, 3, activation="gelu"),
        partial(layers.Softmax),
        partial(layers.Rescaling, 2.0, 1.0),
        partial(layers.UnitNormalization),
    ],
    ids=lambda layer: layer.func.__name__,
)
def test_other_layers(layer):
    assert_exact(layered((17, 8, 4), layer()), (3, 2))


@pytest.mark.parametrize(
    "layer",
    [
        partial(layers.Flatten),
        partial(layers.Softmax, axis=1),
        partial(layers.PReLU),
        partial(layers.Permute, (2, 1, 3)),
        partial(layers.UpSampling2D, 2, interpolation="bicubic"),
        partial(layers.Conv2DTranspose, 2, 3, strides=2, padding="same", output_padding=1),
    ],
    ids=lambda layer: layer.func.__name__,
)
def test_layers_that_need_the_whole_tensor(layer):
    made = layer()
    assert_exact(layered((9, 8, 4), made), (3, 2), gathers={type(made).__name__})


def test_a_layer_of_the_users_own_runs_on_the_whole_tensor():
    class Centred(layers.Layer):
        def call(self, inputs):
            return inputs - keras.ops.mean(inputs, axis=(1, 2), keepdims=True)

    model = layered((9, 8, 4), layers.Conv2D(3, 3), Centred(), layers.Conv2D(3, 3))
    assert_exact(model, (3, 2), gathers={"Centred"})


def centred(tensor):
    return tensor - keras.ops.mean(tensor, axis=(1, 2), keepdims=True)


def quietly(tensor):
    return tensor / (1 + keras.ops.abs(tensor))


ACTIVATED = {
    "Conv2D": partial(layers.Conv2D, 4, 3, padding="same"),
    "Conv2DTranspose": partial(layers.Conv2DTranspose, 4, 3, padding="same"),
    "DepthwiseConv2D": partial(layers.DepthwiseConv2D, 3, padding="same"),
    "SeparableConv2D": partial(layers.SeparableConv2D, 4, 3, padding="same"),
    "Dense": partial(layers.Dense, 4),
    "Activation": layers.Activation,
}


@pytest.mark.parametrize(
    ("kind", "activation", "is_pointwise"),
    [
        *((kind, lambda: centred, False) for kind in ACTIVATED),
        *((kind, lambda: layers.LeakyReLU(0.1), True) for kind in ACTIVATED),
        ("Conv2D", lambda: partial(keras.activations.softmax, axis=1), False),
        ("Activation", lambda: layers.Softmax(axis=[1, 2]), False),
        ("Conv2D", lambda: quietly, True),
    ],
)
def test_an_activation_of_more_than_a_voxel_has_the_whole_tensor(kind, activation, is_pointwise):
    assert_trains_exactly(lambda: ACTIVATED[kind](activation=activation()), is_pointwise)


def assert_trains_exactly(make, has_rule):
    """Assert that a network with a layer takes the steps of one device."""
    shape = (9, 8, 4)

    def build():
        return layered(shape, make(), layers.Conv2D(3, 3, padding="same"))

    assert (rule_of(build().layers[1], 4) is not None) == has_rule
    optimizer = partial(keras.optimizers.SGD, 0.05)
    assert differences(build, shape, [(3, 2)], optimizer, 2) == [pytest.approx(0, abs=1e-12)]


class Down(layers.Conv2D):
    """Overrides nothing."""

    def __init__(self, **options):
        super().__init__(4, 3, padding="same", **options)


class Normed(layers.BatchNormalization):
    """Overrides nothing."""


class Standardized(layers.Conv2D):
    def call(self, inputs):
        return centred(super().call(inputs))


class Sums(layers.Add):
    def call(self, inputs):
        return centred(super().call(inputs))


def add_of_its_own(tensor):
    return Sums()([tensor, layers.ReLU()(tensor)])


def clipped(tensor):
    return keras.ops.clip(tensor, np.linspace(-1, 0, 72).reshape(9, 8, 1), 1.0)


@pytest.mark.parametrize(
    ("make", "has_rule"),
    [
        (Down, True),
        (Normed, True),
        (partial(Standardized, 4, 3, padding="same"), False),
        (partial(layers.Rescaling, np.linspace(0, 1, 72).reshape(9, 8, 1)), False),
        (partial(layers.PReLU, alpha_initializer="ones"), False),
    ],
)
def test_a_subclass_has_the_rule_of_its_base_if_it_overrides_nothing(make, has_rule):
    assert_trains_exactly(make, has_rule)


@pytest.mark.parametrize("make", [add_of_its_own, clipped])
def test_what_joins_tensors_in_a_way_of_its_own_has_them_whole(make):
    shape = (9, 8, 4)
    optimizer = partial(keras.optimizers.SGD, 0.05)

    def build():
        return layered(shape, layers.Conv2D(4, 3, padding="same"), make)

    (difference,) = differences(build, shape, [(3, 2)], optimizer, 2)
    assert difference <= 1e-12


@pytest.mark.parametrize(
    "layer",
    [
        partial(layers.Dropout, 0.4),
        partial(layers.Dropout, 0.4, noise_shape=(None, 1, None, 4)),
        partial(layers.SpatialDropout2D, 0.4),
        partial(layers.GaussianDropout, 0.3),
        partial(layers.GaussianNoise, 0.2),
    ],
    ids=lambda layer: layer.func.__name__,
)
def test_random_layers_draw_the_bits_of_one_device(layer):
    model = layered((9, 8, 4), layer(seed=7), layers.Conv2D(3, 3, padding="same"))
    assert_exact(model, (3, 2), calls=2)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    every(
        [(0, 3, 7, 12)],
        [
            [(0, 4), (2, 8), (6, 12)],
            [(0, 12), (0, 12), (0, 12)],
            [(5, 9), (0, 12), (3, 4)],
        ],
    ),
)
def test_an_exchange_and_its_gradient_are_adjoint(rows, wanted):
    """<F x, y> = <x, F* y>, for rows of neighbours and of those beyond them."""
    mesh = Mesh(split=(3,))
    rng = np.random.RandomState(3)
    x = [tf.constant(rng.normal(size=(2, rows[i + 1] - rows[i], 3))) for i in range(3)]
    y = [tf.constant(rng.normal(size=(2, end - begin, 3))) for begin, end in wanted]

    def device(group):
        own = x[group.device]
        with tf.GradientTape() as tape:
            tape.watch(own)
            borders = group.borders(own, 0, rows, wanted)
            made = borders.joined(borders.tensor, borders.others)
        back = tape.gradient(made, own, output_gradients=y[group.device])
        return np.sum(made * y[group.device]), np.sum(own * back)

    forward, backward = zip(*Threads(mesh).run(device), strict=True)
    assert sum(forward) == pytest.approx(sum(backward), rel=1e-13)


@pytest.mark.parametrize("method", ["gathered", "sum"])
def test_a_gather_and_a_sum_are_adjoint_to_their_gradients(method):
    mesh = Mesh(split=(2, 2))
    rng = np.random.RandomState(4)
    x = [tf.constant(rng.normal(size=(5,))) for _ in range(4)]
    y = [tf.constant(rng.normal(size=(4, 5) if method == "gathered" else (5,))) for _ in range(4)]

    def device(group):
        own = x[group.device]
        with tf.GradientTape() as tape:
            tape.watch(own)
            made = getattr(group, method)(own)
        back = tape.gradient(made, own, output_gradients=y[group.device])
        return np.sum(made * y[group.device]), np.sum(own * back)

    forward, backward = zip(*Threads(mesh).run(device), strict=True)
    assert sum(forward) == pytest.approx(sum(backward), rel=1e-13)
