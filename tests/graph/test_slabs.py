"""Every op that can run in slabs gives what the whole op gives, in slabs of several heights."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.graph import slab_ops, slab_rules, window_axes


def convolution(rank, size, **options):
    kind = {2: layers.Conv2D, 3: layers.Conv3D}[rank]
    return lambda: kind(3, size, dtype="float64", **options)


def transposed(rank, size, stride, padding):
    kind = {2: layers.Conv2DTranspose, 3: layers.Conv3DTranspose}[rank]
    return lambda: kind(3, size, strides=stride, padding=padding, dtype="float64")


class Joined(layers.Layer):
    """Concatenates, normalises and selects."""

    def __init__(self):
        super().__init__(dtype="float64")

    def call(self, x):
        mean = tf.reduce_mean(x, axis=[1, 2], keepdims=True)
        spread = tf.reduce_mean(tf.math.squared_difference(x, mean), [1, 2], keepdims=True)
        x = tf.concat([(x - mean) / tf.sqrt(spread + 0.1), tf.nn.softmax(x)], axis=-1)
        groups = tf.reshape(x, [*x.shape[:3], 2, x.shape[3] // 2])
        x = tf.reshape(groups - tf.reduce_mean(groups, axis=-1, keepdims=True), x.shape)
        return tf.where(x > 0, x, tf.nn.leaky_relu(x)[:, :, :, ::1] * [2.0] * tf.ones_like(x))


STACKS = {
    **{
        f"{rank}D, size {size}, stride {stride}, {padding}, extent {extent}": (
            (extent, *(6,) * (rank - 1), 2),
            [convolution(rank, size, strides=stride, padding=padding)],
        )
        for rank, size, stride, padding, extent in (
            (2, 3, 1, "same", 7),
            (2, 3, 1, "valid", 7),
            (2, 1, 1, "same", 5),
            (2, 4, 1, "same", 6),
            (2, 3, 2, "same", 7),
            (2, 3, 2, "same", 8),
            (2, 3, 2, "valid", 8),
            (2, 5, 3, "same", 11),
            (2, 1, 2, "same", 6),
            (3, 3, 1, "same", 5),
            (3, 2, 2, "valid", 6),
            (3, 3, 2, "same", 5),
        )
    },
    "dilated": ((9, 6, 2), [convolution(2, 3, dilation_rate=2, padding="same")]),
    "groups": ((6, 6, 3), [convolution(2, 3, groups=3, padding="same")]),
    "transposed 2D": ((4, 5, 2), [transposed(2, 2, 2, "same")]),
    "transposed 2D, overlapping": ((5, 4, 2), [transposed(2, 3, 2, "same")]),
    "transposed 2D, valid": ((5, 4, 2), [transposed(2, 3, 2, "valid")]),
    "transposed 3D": ((4, 3, 3, 2), [transposed(3, 2, 2, "same")]),
    "pooled": ((8, 6, 2), [lambda: layers.MaxPooling2D(2, dtype="float64")]),
    "pooled, odd": ((7, 6, 2), [lambda: layers.MaxPooling2D(2, padding="same", dtype="float64")]),
    "averaged": ((9, 6, 2), [lambda: layers.AveragePooling2D(3, dtype="float64")]),
    "joined": ((6, 5, 4), [Joined]),
    "repeated 2D": ((4, 3, 2), [lambda: layers.UpSampling2D((3, 2), dtype="float64")]),
    "repeated 3D": ((4, 3, 2, 2), [lambda: layers.UpSampling3D(2, dtype="float64")]),
    "activations": (
        (6, 5, 4),
        [
            lambda: layers.LeakyReLU(dtype="float64"),
            lambda: layers.ELU(dtype="float64"),
            lambda: layers.Activation("sigmoid", dtype="float64"),
        ],
    ),
}
# Ops that must be among those that were tried, or a stack tests nothing.
LEAST = {
    "2D, size 3, stride 1, same, extent 7": {
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2DBackpropInput",
        "BiasAdd",
        "BiasAddGrad",
    },
    "3D, size 3, stride 2, same, extent 5": {
        "Conv3D",
        "Conv3DBackpropFilterV2",
        "Conv3DBackpropInputV2",
    },
    "transposed 2D, overlapping": {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"},
    "pooled": {"MaxPool", "MaxPoolGrad"},
    "averaged": {"AvgPool"},
    "joined": {"ConcatV2", "Mean", "Softmax", "SelectV2", "Reshape", "Slice", "Tile", "Sum"},
    "repeated 2D": {"ExpandDims", "Tile", "Reshape", "Sum"},
    "repeated 3D": {"ExpandDims", "Tile", "Reshape", "Sum"},
    "activations": {"LeakyRelu", "LeakyReluGrad", "Elu", "EluGrad", "Sigmoid", "SigmoidGrad"},
}


def in_slabs(op, slabs, height):
    """Return the outputs of an op, put together from slabs of it."""
    parts = []
    for begin in range(0, slabs.rows, height):
        end = min(slabs.rows, begin + height)
        taken = []
        for tensor, reach in zip(op.inputs, slabs.inputs, strict=True):
            if reach is None:
                taken.append(tensor)
            else:
                first, last = reach.rows(begin, end)
                tensor = with_rows(tensor)
                assert 0 <= first < last <= tensor.shape[1]
                taken.append(tensor[:, first:last])
        parts.append(slab_ops.make(op, slabs, taken, begin, end))
    return [
        tf.add_n(list(given)) if reach is None else tf.concat(given, axis=1)
        for given, reach in zip(zip(*parts, strict=True), slabs.outputs, strict=True)
    ]


def with_rows(tensor):
    """Return a tensor in the form that it has in slabs, with rows along its second axis."""
    folded = slab_rules.has_folded_axes(tensor)
    return (
        tf.reshape(tensor, slab_rules.shape_of_rows(tensor, tensor.shape[3])) if folded else tensor
    )


@pytest.mark.parametrize("name", STACKS)
def test_slabs_give_what_the_whole_op_gives(name):
    shape, makers = STACKS[name]
    keras.utils.set_random_seed(0)
    stack = [make() for make in makers]
    image = tf.constant(np.random.default_rng(0).normal(size=(2, *shape)))
    image_shape = image.shape
    for layer in stack:
        layer.build(image_shape)
        if len(stack) > 1:
            image_shape = layer.compute_output_shape(image_shape)
    tried = set()

    @tf.function(autograph=False, jit_compile=False)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for layer in stack:
                y = layer(y)
            loss = tf.reduce_sum(tf.sin(y))
        weights = [variable.value for layer in stack for variable in layer.trainable_variables]
        tape.gradient(loss, [x, *weights])
        pairs = []
        for op in tf.compat.v1.get_default_graph().get_operations():
            slabs = slab_rules.describe(op)
            if slabs is None:
                continue
            tried.add(op.type)
            for height in (slabs.unit, 2 * slabs.unit, slabs.rows):
                made = in_slabs(op, slabs, height)
                whole = map(with_rows, op.outputs)
                pairs += [(op.name, a, b) for a, b in zip(whole, made, strict=True)]
        names.extend(name for name, _, _ in pairs)
        return [(a, b) for _, a, b in pairs]

    names = []
    for op, (whole, parts) in zip(names, both(image), strict=True):
        assert whole.dtype == parts.dtype
        np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12, err_msg=op)
    assert names
    assert LEAST.get(name, set()) <= tried, tried


@pytest.mark.parametrize("rank", [2, 3])
def test_all_large_ops_of_repeated_voxels_and_of_a_normalisation_run_in_slabs(rank):
    repeats = {2: layers.UpSampling2D, 3: layers.UpSampling3D}[rank]()
    normalises = layers.GroupNormalization(-1)
    shape = (2, *(4,) * rank, 3)
    normalises.build((2, *(8,) * rank, 3))

    @tf.function(autograph=False, jit_compile=False)
    def gradient(x):
        return tf.gradients(tf.reduce_sum(tf.sin(normalises(repeats(x)))), x)

    graph = gradient.get_concrete_function(tf.TensorSpec(shape)).graph
    large = [op for op in graph.get_operations() if op.outputs and is_large(op.outputs[0])]
    whole = {op.type for op in large if slab_rules.describe(op) is None}
    # The image, the loss and its gradient, and what is returned.
    assert whole <= {"Placeholder", "Sin", "Cos", "Fill", "Identity"}


def is_large(tensor):
    return tensor.shape.is_fully_defined() and tensor.shape.num_elements() >= 2 * 3 * 4**2


def test_control_edge_that_is_more_than_an_order_keeps_an_op_whole():
    with tf.Graph().as_default():
        x = tf.zeros([1, 4, 4, 2])
        first = tf.abs(x)
        state = tf.raw_ops.Print(input=x, data=[x])
        with tf.control_dependencies([first]):
            ordered = tf.abs(x)
        with tf.control_dependencies([state]):
            held = tf.abs(x)
        with tf.control_dependencies([ordered]):
            after = tf.abs(x)
    assert None not in map(slab_rules.describe, (first.op,))
    assert [slab_rules.describe(tensor.op) for tensor in (held, after)] == [None, None]


@pytest.mark.parametrize("rank", [2, 3])
def test_gradient_of_a_pooling_in_slabs_follows_its_own_forward_op(rank):
    # oneDNN hands on from the one to the other where the maxima are.
    with tf.Graph().as_default() as graph:
        x = tf.zeros([1, *(8,) * rank, 2])
        y = tf.nn.max_pool(x, 2, 2, "SAME")
        tf.gradients(tf.reduce_sum(y), x)
        (op,) = (op for op in graph.get_operations() if op.type in window_axes.POOL_GRADIENTS)
        slabs = slab_rules.describe(op)
        (made,) = slab_ops.make(op, slabs, [tensor[:, :4] for tensor in op.inputs], 0, 2)
    whole, slab = op.inputs[1].op, made.op.inputs[1].op
    assert (slab.type, slab.inputs[0].shape[1]) == (whole.type, 4)
