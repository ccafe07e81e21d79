"""Makes the op that computes a slab of another op.

A slab of a convolution is a convolution without padding, on rows that were padded before.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfunet.graph import window_axes as windows
from tfunet.graph.edits import like
from tfunet.graph.slab_rules import has_folded_axes, shape_of_rows
from tfunet.graph.slabs import SlabRows, Slabs
from tfunet.graph.static_values import static_value

VALID = tf.compat.v1.AttrValue(s=b"VALID")


def make(
    op: tf.Operation, slabs: Slabs, inputs: Sequence[tf.Tensor], begin: int, end: int
) -> list[tf.Tensor]:
    """Return the rows [begin, end) of each output of a slab, or the slab's part of a sum.

    `inputs` are the rows that the slab reads of each input, or all of the input.
    """
    if op.type in windows.CONVOLUTIONS | windows.FILTER_GRADIENTS:
        return _convolution(op, slabs, inputs, begin, end)
    if op.type in windows.INPUT_GRADIENTS:
        return _input_gradient(op, slabs, inputs, begin, end)
    made = slabs.outputs[0]
    if op.type == "Mean" and made is None:
        (mean,) = _again(op, inputs)
        return [mean * tf.constant((end - begin) / slabs.rows, mean.dtype)]
    if op.type == "Sum" and has_folded_axes(op.inputs[0]):
        # The axes that `shape_of_rows` keeps are fewer than those of the tensor.
        axes = range(2, op.inputs[0].shape.rank - 2, 2)
        return _again(op, [inputs[0], tf.constant(list(axes), op.inputs[1].dtype)])
    if made is not None and op.type in ("Slice", "Reshape", "EnsureShape", "Tile"):
        first, last = made.rows(begin, end)
        return [_with_shape(op, inputs[0], last - first)]
    if op.type in windows.POOL_GRADIENTS and inputs[1].op.type not in windows.POOLS:
        # oneDNN's gradient reads more than the output of its forward op. Without it, it takes sixty
        # times as long.
        return _again(op, [inputs[0], _pooled(op, inputs[0]), inputs[2]])
    return _again(op, inputs)


def _again(
    op: tf.Operation, inputs: Sequence[tf.Tensor], **attributes: tf.compat.v1.AttrValue
) -> list[tf.Tensor]:
    return list(like(op, inputs, f"slab/{op.name}", **attributes).outputs)


def _convolution(
    op: tf.Operation, slabs: Slabs, inputs: Sequence[tf.Tensor], begin: int, end: int
) -> list[tf.Tensor]:
    axes, read = _axes_and_rows(op, slabs, 0)
    paddings = [
        read.reach.padding(begin, end, read.extent),
        *(axis.padding for axis in axes[1:]),
    ]
    rows = inputs[0]
    if any(map(any, paddings)):
        rows = tf.pad(rows, [(0, 0), *paddings, (0, 0)])
    others = list(inputs[1:])
    if op.type in windows.FILTER_GRADIENTS:
        others[0] = tf.constant(op.outputs[0].shape.as_list(), tf.int32)
    return _again(op, [rows, *others], padding=VALID)


def _input_gradient(
    op: tf.Operation, slabs: Slabs, inputs: Sequence[tf.Tensor], begin: int, end: int
) -> list[tf.Tensor]:
    axes, read = _axes_and_rows(op, slabs, 2)
    _, weights, rows = inputs
    reach = axes[0].reach
    first, last = read.rows(begin, end)
    # The gradient that `rows` give begins at row first * stride of the padded input.
    offset = begin + reach.before - first * reach.stride
    height = max((last - first - 1) * reach.stride + reach.size, offset + end - begin)
    shape = op.outputs[0].shape.as_list()
    padded = [axis.extent + sum(axis.padding) for axis in axes[1:]]
    sizes = tf.constant([shape[0], height, *padded, shape[-1]], tf.int32)
    (gradient,) = _again(op, [sizes, weights, rows], padding=VALID)
    offsets = [0, offset, *(axis.reach.before for axis in axes[1:]), 0]
    extents = [shape[0], end - begin, *shape[2:]]
    if gradient.shape.as_list() == extents:
        return [gradient]
    return [tf.slice(gradient, offsets, extents)]


def _axes_and_rows(
    op: tf.Operation, slabs: Slabs, position: int
) -> tuple[list[windows.Axis], SlabRows]:
    axes, rows = windows.window_axes(op), slabs.inputs[position]
    if axes is None or rows is None:
        raise ValueError(f"{op.name} cannot run in slabs.")
    return axes, rows


def _with_shape(op: tf.Operation, rows: tf.Tensor, height: int) -> tf.Tensor:
    if op.type == "Slice":
        begin = [int(index) for index in static_value(op.inputs[1])]
        return tf.slice(rows, begin, shape_of_rows(op.outputs[0], height))
    if op.type == "Tile":
        times = [int(count) for count in static_value(op.inputs[1])]
        times[1] = height // rows.shape[1]
        return tf.tile(rows, times)
    return tf.reshape(rows, shape_of_rows(op.outputs[0], height))


def _pooled(gradient: tf.Operation, rows: tf.Tensor) -> tf.Tensor:
    pool = tf.raw_ops.MaxPool3D if gradient.type == "MaxPool3DGrad" else tf.raw_ops.MaxPool
    options = {
        key: gradient.get_attr(key) for key in ("ksize", "strides", "padding", "data_format")
    }
    return pool(input=rows, name=f"slab/pooled_for_{gradient.name}", **options)
