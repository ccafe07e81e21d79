"""Which ops can run in slabs along their first spatial axis, and on which rows.

The gradients of a convolution reach the rows of the convolution itself (Dumoulin and Visin, A guide
to convolution arithmetic for deep learning, 2016, sections 2 and 4). A sum over all voxels becomes
a sum over slabs, which rounds differently in the last bits.
"""

from dataclasses import replace
from math import prod

import tensorflow as tf

from tfunet.geometry.reach import Reach
from tfunet.graph import window_axes as windows
from tfunet.graph.slabs import SlabRows, Slabs
from tfunet.graph.static_values import static_value
from tfunet.graph.step import ALIASES, IN_PLACE
from tfunet.inside.of_tensorflow import control_outputs

# TensorFlow runs a convolution of one spatial axis as one of two, the first of them one row high.
LEAST_RANK = 4
LEAST_ROWS = 2
ELEMENTWISE = frozenset(
    (
        *("Cast", "Equal", "Erf", "Greater", "GreaterEqual", "Less", "LessEqual", "Log1p", "Pow"),
        *("LogicalAnd", "LogicalNot", "LogicalOr", "NotEqual", "Reciprocal", "SelectV2", "Sign"),
    )
)
SAME_ROWS = (IN_PLACE | ALIASES | ELEMENTWISE | {"ConcatV2", "Slice", "Tile"}) - {"Squeeze"}
# A row of their output is a row of their input if both have equally many.
RESHAPING = frozenset({"EnsureShape", "ExpandDims", "Reshape"})
REDUCTIONS = frozenset({"Mean", "Sum"})


def describe(op: tf.Operation) -> Slabs | None:
    """Return how an op can run in slabs; None if it cannot."""
    tensors = (*op.inputs, *op.outputs)
    is_known = all(tensor.shape.is_fully_defined() for tensor in tensors)
    # A control edge that means more than an order cannot follow an op into its slabs.
    is_held = not all(
        [_orders_only(before, op) for before in op.control_inputs]
        + [_orders_only(op, after) for after in control_outputs(op)]
    )
    if not is_known or not op.outputs or is_held:
        return None
    if op.type in ("BiasAdd", "BiasAddGrad") and not windows.channels_last(op):
        return None
    if max(tensor.shape.rank for tensor in tensors) < LEAST_RANK:
        return None
    slabs = _slabs(op)
    return slabs if slabs is not None and slabs.rows >= LEAST_ROWS else None


def _slabs(op: tf.Operation) -> Slabs | None:
    if op.type in windows.CONVOLUTIONS | windows.FILTER_GRADIENTS | windows.INPUT_GRADIENTS:
        return _convolution(op)
    if op.type in windows.POOLS | windows.POOL_GRADIENTS:
        return _pool(op)
    if op.type == "Reshape" and is_folded(op.outputs[0]):
        rows = _rows(op.inputs[0])
        return Slabs(rows=rows.extent, inputs=(rows, None), outputs=(rows,))
    if op.type == "Sum" and is_folded(op.inputs[0]):
        folded, summed = _rows(op.inputs[0].op.inputs[0]), _rows(op.outputs[0])
        return Slabs(rows=summed.extent, inputs=(folded, None), outputs=(summed,))
    if op.type in REDUCTIONS:
        return _reduction(op)
    if op.type == "BiasAddGrad":
        rows = _rows(op.inputs[0])
        return Slabs(rows=rows.extent, inputs=(rows,), outputs=(None,))
    return _same_rows(op) if op.type in SAME_ROWS else None


def _orders_only(before: tf.Operation, after: tf.Operation) -> bool:
    """Whether a control edge only orders two ops, which compute the same without it."""
    is_pure = all(op.outputs and not op.op_def.is_stateful for op in (before, after))
    return is_pure and not before.control_inputs


def _rows(tensor: tf.Tensor, reach: Reach | None = None, **copied: int) -> SlabRows:
    shape = tensor.shape.as_list()
    row_bytes = prod(shape) // shape[1] * tensor.dtype.size if shape[1] else 0
    return SlabRows(reach=reach or Reach(), extent=shape[1], row_bytes=row_bytes, **copied)


def _convolution(op: tf.Operation) -> Slabs | None:
    axes = windows.window_axes(op)
    if axes is None or axes[0].reach.size < axes[0].reach.stride:
        return None
    first, reach = axes[0], axes[0].reach
    # Rows are padded, or cut out, in a copy.
    copies = 2 if any(any(axis.padding) for axis in axes) else 1
    if op.type in windows.INPUT_GRADIENTS:
        # Rows that no window reaches would belong to no slab of the gradient.
        if reach.needed(0, first.out_extent)[1] < first.extent:
            return None
        more = reach.size - reach.stride
        made = _rows(op.outputs[0], copies=2 if more else copies, more_rows=2 * more)
        read = _rows(op.inputs[2], replace(reach, transposed=True))
        return Slabs(
            rows=first.extent, unit=reach.stride, inputs=(None, None, read), outputs=(made,)
        )
    read = _rows(op.inputs[0], reach, copies=copies)
    if op.type in windows.FILTER_GRADIENTS:
        gradient = _rows(op.inputs[2])
        return Slabs(rows=first.out_extent, inputs=(read, None, gradient), outputs=(None,))
    return Slabs(rows=first.out_extent, inputs=(read, None), outputs=(_rows(op.outputs[0]),))


def _pool(op: tf.Operation) -> Slabs | None:
    axes = windows.window_axes(op)
    if axes is None:
        return None
    reach, extent = axes[0].reach, axes[0].extent
    if reach.size != reach.stride or extent % reach.size:
        return None
    window = _rows(op.inputs[0], reach)
    if op.type in windows.POOLS:
        pooled = _rows(op.outputs[0])
        return Slabs(rows=pooled.extent, inputs=(window,), outputs=(pooled,))
    pooled, gradient = _rows(op.inputs[1], copies=2), _rows(op.inputs[1])
    return Slabs(rows=pooled.extent, inputs=(window, pooled, gradient), outputs=(window,))


def _reduction(op: tf.Operation) -> Slabs | None:
    axes = static_value(op.inputs[1])
    if axes is None or not op.outputs[0].dtype.is_floating:
        return None
    rank = op.inputs[0].shape.rank
    rows = _rows(op.inputs[0])
    reduced = {int(axis) % rank for axis in axes.reshape(-1)}
    if 1 in reduced:
        return Slabs(rows=rows.extent, inputs=(rows, None), outputs=(None,))
    if 0 in reduced and not op.get_attr("keep_dims"):
        return None
    return Slabs(rows=rows.extent, inputs=(rows, None), outputs=(_rows(op.outputs[0]),))


def _same_rows(op: tf.Operation) -> Slabs | None:
    """Return the slabs of an op that makes each row of its output of that row of its inputs."""
    output = op.outputs[0]
    shape = output.shape.as_list()
    if len(op.outputs) > 1 or len(shape) < LEAST_RANK or not all(shape):
        return None
    inputs: list[SlabRows | None] = []
    for position, tensor in enumerate(op.inputs):
        read = tensor.shape.as_list()
        if _is_option(op, position):
            inputs.append(None)
        elif op.type in RESHAPING:
            inputs.append(_rows(tensor) if read[:2] == shape[:2] else None)
        elif len(read) == len(shape) and read[1] == shape[1]:
            inputs.append(_rows(tensor))
        elif len(read) < len(shape) - 1 or (len(read) == len(shape) and read[1] == 1):
            inputs.append(None)
        else:
            return None
    if op.type == "Reshape" and inputs[0] is None:
        return _several_rows(op)
    if not _keeps_rows(op, has_rows=inputs[0] is not None):
        return None
    return Slabs(rows=shape[1], inputs=tuple(inputs), outputs=(_rows(output),))


def _is_option(op: tf.Operation, position: int) -> bool:
    """Whether an input says what to do, such as an axis or a shape: it has no rows."""
    if op.type == "ConcatV2":
        return position == len(op.inputs) - 1
    return position > 0 and op.type in ("ExpandDims", "Reshape", "Slice", "Tile")


def _keeps_rows(op: tf.Operation, *, has_rows: bool) -> bool:
    """Whether an op of SAME_ROWS, whose first input `has_rows`, leaves each row in its place."""
    if op.type == "ConcatV2":
        axis = static_value(op.inputs[-1])
        return axis is not None and int(axis) % op.outputs[0].shape.rank != 1
    if op.type == "Slice":
        is_known = static_value(op.inputs[1]) is not None
        return is_known and has_rows and op.inputs[0].shape[1] == op.outputs[0].shape[1]
    if op.type == "Tile":
        return static_value(op.inputs[1]) is not None
    # With one spatial axis, no op that follows could take the slabs.
    if op.type == "ExpandDims" and op.inputs[0].shape.rank < LEAST_RANK:
        return False
    return has_rows or op.type not in RESHAPING | {"Identity"}


def _several_rows(op: tf.Operation) -> Slabs | None:
    """Return the slabs of a Reshape of up-sampling: one row becomes several, or several one."""
    source, target = op.inputs[0], op.outputs[0]
    if source.shape.rank < LEAST_RANK or source.shape[0] != target.shape[0]:
        return None
    least, most = sorted((source.shape[1], target.shape[1]))
    if not least or most % least:
        return None
    several = Reach(stride=most // least, size=most // least)
    read = _rows(source, several if source.shape[1] == most else None)
    made = _rows(target, several if target.shape[1] == most else None)
    return Slabs(rows=least, inputs=(read, None), outputs=(made,))


def is_folded(tensor: tf.Tensor) -> bool:
    """Whether the gradient of a Tile has made each axis of a tensor two, (times, size), to sum over
    the times, and the Tile repeats neither samples nor rows.

    In slabs the tensor has its samples and rows first, and then its other axes.
    """
    readers = [reader for reader in tensor.consumers() if reader.type not in ("Shape", "ShapeN")]
    return has_folded_axes(tensor) and bool(readers) and all(map(_sums_times, readers))


def has_folded_axes(tensor: tf.Tensor) -> bool:
    """Whether a tensor has such a shape, whoever reads it."""
    op, shape = tensor.op, tensor.shape
    if op.type != "Reshape" or not shape.is_fully_defined() or shape.rank < 2 * LEAST_RANK:
        return False
    times, sizes = shape.as_list()[::2], shape.as_list()[1::2]
    unfolded = [time * size for time, size in zip(times, sizes, strict=False)]
    return shape.rank % 2 == 0 and times[:2] == [1, 1] and op.inputs[0].shape == unfolded


def _sums_times(op: tf.Operation) -> bool:
    if op.type != "Sum" or op.get_attr("keep_dims"):
        return False
    axes = static_value(op.inputs[1])
    return axes is not None and list(axes.reshape(-1)) == list(range(0, op.inputs[0].shape.rank, 2))


def shape_of_rows(tensor: tf.Tensor, rows: int) -> list[int]:
    """Return the shape that so many rows of a tensor have in slabs."""
    shape = tensor.shape.as_list()
    if has_folded_axes(tensor):
        return [shape[1], rows, *shape[4:]]
    return [shape[0], rows, *shape[2:]]
