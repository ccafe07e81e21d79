"""The reach of a Keras layer is that of the ops that it is traced into, and what numbers show."""

from dataclasses import replace
from itertools import product

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfunet.geometry.receptive_field import layer_reach
from tfunet.graph.slab_rules import describe
from tfunet.graph.window_axes import CONVOLUTIONS, INPUT_GRADIENTS, POOLS, window_axes

PADDINGS = ("same", "valid")
CONVOLUTION = {2: layers.Conv2D, 3: layers.Conv3D}
TRANSPOSED = {2: layers.Conv2DTranspose, 3: layers.Conv3DTranspose}
POOLING = {
    2: (layers.MaxPooling2D, layers.AveragePooling2D),
    3: (layers.MaxPooling3D, layers.AveragePooling3D),
}
REPEATING = {2: layers.UpSampling2D, 3: layers.UpSampling3D}
SHAPES = {2: [(12, 9), (11, 10)], 3: [(8, 7, 5)]}


def sizes(rank, size):
    """A size that differs from axis to axis."""
    return tuple(1 + (size - 1 + axis) % 5 for axis in range(rank))


def convolutions(rank, kind):
    for kernel, stride, padding in product(range(1, 6), (1, 2, 3), PADDINGS):
        if rank == 2 or stride < 3:
            yield kind[rank](1, sizes(rank, kernel), strides=stride, padding=padding)


def dilated(rank):
    for kernel, dilation, padding in product((2, 3), (2, 3), PADDINGS):
        if rank == 2 or dilation == 2:
            options = {"dilation_rate": dilation, "padding": padding}
            yield CONVOLUTION[rank](1, (kernel,) * rank, **options)


def poolings(rank):
    for kind, size, stride, padding in product(POOLING[rank], (2, 3), (1, 2, 3), PADDINGS):
        yield kind(size, strides=stride, padding=padding)


def upsamplings(rank):
    yield from map(REPEATING[rank], (1, 2, 3))
    if rank == 2:
        for factor in (1, 2, 3, 4, 5):
            yield layers.UpSampling2D((factor, 2), interpolation="bilinear")
        yield layers.DepthwiseConv2D(3, strides=2, padding="same")
        yield layers.SeparableConv2D(1, 4, padding="same")


KINDS = {
    "convolutions": lambda rank: convolutions(rank, CONVOLUTION),
    "dilated": dilated,
    "transposed": lambda rank: convolutions(rank, TRANSPOSED),
    "poolings": poolings,
    "upsamplings": upsamplings,
}


def called(layer, image):
    """Call a layer. Keras makes several ops of a dilated convolution, where TensorFlow has one."""
    if getattr(layer, "dilation_rate", (1,))[0] == 1:
        return layer(image)
    convolution = tf.nn.conv3d if layer.rank == 3 else tf.nn.conv2d
    dilations = (1, *layer.dilation_rate, 1)
    padding, strides = layer.padding.upper(), [1] * (layer.rank + 2)
    return convolution(image, layer.kernel, strides, padding, dilations=dilations)


def reaches_of_graph(tensor, dimension):
    """Yield the reach of each op between a layer's output and its input, from the output on."""
    while tensor.op.type != "Placeholder":
        op = tensor.op
        position = 2 if op.type in INPUT_GRADIENTS else 0
        slabs = describe(op) if dimension == 0 else None
        if slabs is not None:
            (made,), read = slabs.outputs, slabs.inputs[position]
            yield from [replace(made.reach, transposed=True), read.reach]
        elif op.type in CONVOLUTIONS | INPUT_GRADIENTS | POOLS:
            reach = window_axes(op)[dimension].reach
            yield replace(reach, transposed=op.type in INPUT_GRADIENTS)
        elif op.type not in ("Identity", "AddV2", "BiasAdd"):
            raise LookupError(op.type)
        tensor = op.inputs[position]


def rows_of_numbers(layer, shape, dimension):
    """Return the rows of the input that change each row of the output, (rows, output rows)."""
    image = np.random.default_rng(0).uniform(1, 2, (1, *shape, 1)).astype("float32")
    changed = np.repeat(image, shape[dimension], axis=0)
    for row in range(shape[dimension]):
        np.moveaxis(changed[row], dimension, 0)[row] += 100
    differs = np.abs(layer(changed).numpy() - layer(image).numpy()) > 0.01
    others = tuple(axis for axis in range(1, differs.ndim) if axis != 1 + dimension)
    return differs.any(axis=others)


def made(kind, rank, shape):
    """Return the layers of a kind, with positive weights, and their outputs in a graph."""
    keras.utils.set_random_seed(0)
    pairs = [(layer, layer(keras.Input((*shape, 1)))) for layer in KINDS[kind](rank)]
    stack = [layer for layer, output in pairs if 0 not in output.shape]
    for layer in stack:
        layer.set_weights([np.abs(weights) + 0.1 for weights in layer.get_weights()])
    every = tf.function(lambda image: [called(layer, image) for layer in stack])
    graph = every.get_concrete_function(tf.TensorSpec((1, *shape, 1))).graph
    # What is returned are readers of the outputs.
    return stack, [output.op.inputs[0] for output in graph.outputs]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(kind, shape) for kind in KINDS for rank in SHAPES for shape in SHAPES[rank]],
)
def test_layers_reach_as_far_as_their_ops_and_as_numbers_show(kind, shape):
    in_table = 0
    stack, outputs = made(kind, len(shape), shape)
    for layer, output in zip(stack, outputs, strict=True):
        for dimension, extent in enumerate(shape):
            reach = layer_reach(layer, dimension)
            shown = rows_of_numbers(layer, shape, dimension)
            try:
                of_ops = list(reaches_of_graph(output, dimension))
            except LookupError:
                of_ops = []
            in_table += bool(of_ops)
            for row in range(output.shape[1 + dimension]):
                needed = reach.needed(row, row + 1)
                first, last = reach.inside(row, row + 1, extent)
                (rows,) = np.nonzero(shown[:, row])
                ends = (rows[0], rows[-1] + 1) if len(rows) else (first, first)
                message = f"{layer.get_config()}, axis {dimension}, row {row}"
                # At a border, the first row that a dilated kernel reaches may lie in a gap of it.
                if kind != "dilated" or needed == (first, last):
                    assert (first, max(first, last)) == ends, message
                through = (row, row + 1)
                for op in of_ops:
                    through = op.needed(*through)
                assert through == needed or not of_ops, message
    assert in_table >= len(stack) * (len(shape) if kind != "upsamplings" else 0.3)
