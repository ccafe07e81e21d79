"""Ops that can run in slabs along their first spatial axis, and how: which rows of what they read
belong to rows of what they make, and the op that makes them.

A convolution in slabs is one without padding over rows that were padded before; its gradients are
the transposed sums of the same rows (Dumoulin and Visin, A guide to convolution arithmetic for
deep learning, 2016, sections 2 and 4). What is summed over all voxels is summed slab by slab, which
rounds differently in the last bits.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfunet.geometry.reach import Reach, Slabs
from tfunet.graph.step import ALIASES, IN_PLACE

# A convolution of one spatial axis runs as one of two, of which the first is one row high.
LEAST_RANK = 4
LEAST_ROWS = 2
OF_ELEMENTS = frozenset(
    {
        "Cast",
        "Equal",
        "Erf",
        "Greater",
        "GreaterEqual",
        "Less",
        "LessEqual",
        "Log1p",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "NotEqual",
        "Pow",
        "Reciprocal",
        "SelectV2",
        "Sign",
    }
)
SAME_ROWS = (IN_PLACE | ALIASES | OF_ELEMENTS | {"ConcatV2", "Slice", "Tile"}) - {"Squeeze"}
# Of these, a row of the output is a row of the input where both have as many, in other shapes.
OF_SHAPE = frozenset({"EnsureShape", "ExpandDims", "Reshape"})
REDUCTIONS = frozenset({"Mean", "Sum"})
CONVOLUTIONS = frozenset({"Conv2D", "Conv3D"})
OF_FILTERS = frozenset({"Conv2DBackpropFilter", "Conv3DBackpropFilterV2"})
OF_INPUTS = frozenset({"Conv2DBackpropInput", "Conv3DBackpropInputV2"})
POOLS = frozenset({"AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D"})
POOL_GRADIENTS = frozenset({"MaxPool3DGrad", "MaxPoolGrad"})


def describe(op: tf.Operation) -> Slabs | None:
    """Return how an op can run in slabs; None where it cannot."""
    tensors = (*op.inputs, *op.outputs)
    known = all(one.shape.is_fully_defined() for one in tensors)
    # A control edge that means more than an order cannot follow an op into its slabs.
    held = [one for one in op.control_inputs if not orders_only(one, op)]
    held += [one for one in op._control_outputs if not orders_only(op, one)]
    if not known or not op.outputs or held:
        return None
    if op.type in ("BiasAdd", "BiasAddGrad") and not _channels_last(op):
        return None
    if max(one.shape.rank for one in tensors) < LEAST_RANK:
        return None
    if op.type in CONVOLUTIONS | OF_FILTERS | OF_INPUTS:
        found = _convolution(op)
    elif op.type in POOLS | POOL_GRADIENTS:
        found = _pool(op)
    elif op.type == "Reshape" and is_folded(op.outputs[0]):
        whole = op.inputs[0]
        found = Slabs(
            rows=whole.shape[1], unit=1, inputs=(_same(whole), None), outputs=(_same(whole),)
        )
    elif op.type == "Sum" and is_folded(op.inputs[0]):
        folded, made = _same(op.inputs[0].op.inputs[0]), _same(op.outputs[0])
        found = Slabs(rows=made.extent, unit=1, inputs=(folded, None), outputs=(made,))
    elif op.type in REDUCTIONS:
        found = _reduction(op)
    elif op.type == "BiasAddGrad":
        rows = _same(op.inputs[0])
        found = Slabs(rows=rows.extent, unit=1, inputs=(rows,), outputs=(None,))
    elif op.type in SAME_ROWS:
        found = _same_rows(op)
    else:
        found = None
    return found if found is not None and found.rows >= LEAST_ROWS else None


def make(
    op: tf.Operation, slabs: Slabs, inputs: Sequence[tf.Tensor], begin: int, end: int
) -> list[tf.Tensor]:
    """Return what a slab gives of each output: its rows, or its part of a sum.

    Args:
        op: The whole one.
        slabs: Of `describe`.
        inputs: What a slab takes of each input; that of the whole op where it takes it whole.
        begin: First of its own rows.
        end: The row after its last.
    """
    if op.type in CONVOLUTIONS | OF_FILTERS:
        return _made_convolution(op, slabs, inputs, begin, end)
    if op.type in OF_INPUTS:
        return _made_input_gradient(op, slabs, inputs, begin, end)
    if op.type == "Mean" and slabs.outputs[0] is None:
        (made,) = _again(op, inputs)
        return [made * tf.constant((end - begin) / slabs.rows, made.dtype)]
    if op.type == "Sum" and has_folded_axes(op.inputs[0]):
        # Of what `_made_with_shape` left of the folded axes.
        kept = range(2, op.inputs[0].shape.rank - 2, 2)
        return _again(op, [inputs[0], tf.constant(list(kept), op.inputs[1].dtype)])
    given = slabs.outputs[0]
    if given is not None and op.type in ("Slice", "Reshape", "EnsureShape", "Tile"):
        first, last = given.rows(begin, end)
        return [_made_with_shape(op, inputs, last - first)]
    if op.type in POOL_GRADIENTS and inputs[1].op.type not in POOLS:
        # oneDNN's takes what only its forward op hands on: without, it takes sixty times as long.
        return _again(op, [inputs[0], _pooled(op, inputs[0]), inputs[2]])
    return _again(op, inputs)


def _pooled(gradient: tf.Operation, rows: tf.Tensor) -> tf.Tensor:
    """Return what the pooling of a gradient makes of rows of its input."""
    kind = tf.raw_ops.MaxPool3D if gradient.type == "MaxPool3DGrad" else tf.raw_ops.MaxPool
    same = {key: gradient.get_attr(key) for key in ("ksize", "strides", "padding", "data_format")}
    return kind(input=rows, name=f"slab/pooled_for_{gradient.name}", **same)


def _again(op: tf.Operation, inputs: Sequence[tf.Tensor], **changed: Any) -> list[tf.Tensor]:
    """Return the outputs of an op like another, on other inputs."""
    attributes = {key: one for key, one in op.node_def.attr.items() if not key.startswith("_")}
    made = tf.compat.v1.get_default_graph().create_op(
        op.type,
        list(inputs),
        [one.dtype for one in op.outputs],
        attrs={**attributes, **changed},
        op_def=op.op_def,
        name=f"slab/{op.name}",
    )
    return list(made.outputs)


def _same(tensor: tf.Tensor, **changed: Any) -> Reach:
    shape = tensor.shape.as_list()
    row_bytes = prod(shape) // shape[1] * tensor.dtype.size if shape[1] else 0
    return Reach(extent=shape[1], row_bytes=row_bytes, **changed)


def _same_rows(op: tf.Operation) -> Slabs | None:
    """Return the slabs of an op each row of whose output comes from that row of its inputs."""
    output = op.outputs[0]
    shape = output.shape.as_list()
    if len(op.outputs) > 1 or len(shape) < LEAST_RANK or not all(shape):
        return None
    inputs: list[Reach | None] = []
    for position, one in enumerate(op.inputs):
        taken = one.shape.as_list()
        if _describes(op, position):
            inputs.append(None)
        elif op.type in OF_SHAPE:
            inputs.append(_same(one) if taken[:2] == shape[:2] else None)
        elif len(taken) == len(shape) and taken[1] == shape[1]:
            inputs.append(_same(one))
        elif len(taken) < len(shape) - 1 or (len(taken) == len(shape) and taken[1] == 1):
            inputs.append(None)
        else:
            return None
    if op.type == "ConcatV2":
        axis = _static(op.inputs[-1])
        if axis is None or int(axis) % len(shape) == 1:
            return None
    if op.type == "Slice" and (_static(op.inputs[1]) is None or inputs[0] is None):
        return None
    if op.type == "Tile" and (_static(op.inputs[1]) is None):
        return None
    if op.type == "Reshape" and inputs[0] is None:
        return _several_rows(op)
    # Of one spatial axis, nothing that follows could take its slabs.
    if op.type == "ExpandDims" and op.inputs[0].shape.rank < LEAST_RANK:
        return None
    whole = op.type in OF_SHAPE | {"Identity"} and inputs[0] is None
    if whole or (op.type == "Slice" and op.inputs[0].shape[1] != shape[1]):
        return None
    return Slabs(rows=shape[1], unit=1, inputs=tuple(inputs), outputs=(_same(output),))


def _several_rows(op: tf.Operation) -> Slabs | None:
    """Return the slabs of a Reshape that makes one row of several, or several of one: those of
    repeated voxels, and of their gradient."""
    read, made = op.inputs[0], op.outputs[0]
    least, most = sorted((read.shape[1], made.shape[1])) if read.shape.rank > 1 else (0, 0)
    if read.shape.rank < LEAST_RANK or read.shape[0] != made.shape[0] or not least or most % least:
        return None
    several = {"stride": most // least, "size": most // least}
    taken = _same(read, **(several if read.shape[1] == most else {}))
    given = _same(made, **(several if made.shape[1] == most else {}))
    return Slabs(rows=least, unit=1, inputs=(taken, None), outputs=(given,))


def orders_only(before: tf.Operation, after: tf.Operation) -> bool:
    """Whether a control edge from one op to another says in which order they run, and no more: as
    neither has a state, what they compute is the same without it."""
    pure = all(one.outputs and not one.op_def.is_stateful for one in (before, after))
    return pure and not before.control_inputs


def is_folded(tensor: tf.Tensor) -> bool:
    """Whether each axis of a tensor has been made two, (times, size), for the gradient of a Tile
    that repeats neither samples nor rows: it sums over the times.

    In slabs it has its samples and rows first, and then the others of those axes.
    """
    readers = [one for one in tensor.consumers() if one.type not in ("Shape", "ShapeN")]
    return has_folded_axes(tensor) and bool(readers) and all(map(_sums_times, readers))


def has_folded_axes(tensor: tf.Tensor) -> bool:
    """Whether a tensor is of such a shape, whoever reads it."""
    op, shape = tensor.op, tensor.shape
    if op.type != "Reshape" or not shape.is_fully_defined() or shape.rank < 2 * LEAST_RANK:
        return False
    times, sizes = shape.as_list()[::2], shape.as_list()[1::2]
    whole = [one * size for one, size in zip(times, sizes, strict=False)]
    return shape.rank % 2 == 0 and times[:2] == [1, 1] and op.inputs[0].shape == whole


def shape_of_rows(tensor: tf.Tensor, rows: int) -> list[int]:
    """Return the shape that so many rows of a tensor have in slabs."""
    shape = tensor.shape.as_list()
    if has_folded_axes(tensor):
        return [shape[1], rows, *shape[4:]]
    return [shape[0], rows, *shape[2:]]


def _sums_times(op: tf.Operation) -> bool:
    axes = _static(op.inputs[1]) if op.type == "Sum" and not op.get_attr("keep_dims") else None
    return axes is not None and list(axes.reshape(-1)) == list(range(0, op.inputs[0].shape.rank, 2))


def _describes(op: tf.Operation, position: int) -> bool:
    """Whether an input says what to do and has no rows."""
    if op.type == "ConcatV2":
        return position == len(op.inputs) - 1
    return position > 0 and op.type in ("ExpandDims", "Reshape", "Slice", "Tile")


def _made_with_shape(op: tf.Operation, inputs: Sequence[tf.Tensor], rows: int) -> tf.Tensor:
    if op.type == "Slice":
        begin = [int(one) for one in _static(op.inputs[1])]
        return tf.slice(inputs[0], begin, shape_of_rows(op.outputs[0], rows))
    if op.type == "Tile":
        times = [int(one) for one in _static(op.inputs[1])]
        times[1] = rows // inputs[0].shape[1]
        return tf.tile(inputs[0], times)
    return tf.reshape(inputs[0], shape_of_rows(op.outputs[0], rows))


def _reduction(op: tf.Operation) -> Slabs | None:
    axes = _static(op.inputs[1])
    if axes is None or not op.outputs[0].dtype.is_floating:
        return None
    rank = op.inputs[0].shape.rank
    rows = _same(op.inputs[0])
    reduced = {int(one) % rank for one in axes.reshape(-1)}
    if 1 in reduced:
        return Slabs(rows=rows.extent, unit=1, inputs=(rows, None), outputs=(None,))
    if 0 in reduced and not op.get_attr("keep_dims"):
        return None
    given = _same(op.outputs[0])
    return Slabs(rows=rows.extent, unit=1, inputs=(rows, None), outputs=(given,))


def _pool(op: tf.Operation) -> Slabs | None:
    """Return the slabs of a pooling whose windows lie side by side."""
    size, stride = op.get_attr("ksize")[1], op.get_attr("strides")[1]
    whole = op.inputs[0]
    side_by_side = size == stride and whole.shape[1] % size == 0
    if not _channels_last(op) or not side_by_side or not _is_padded_as_usual(op):
        return None
    window = _same(whole, stride=stride, size=size)
    if op.type in POOLS:
        pooled = _same(op.outputs[0])
        return Slabs(rows=pooled.extent, unit=1, inputs=(window,), outputs=(pooled,))
    pooled, pooled_twice = _same(op.inputs[1]), _same(op.inputs[1], copies=2)
    return Slabs(
        rows=pooled.extent, unit=1, inputs=(window, pooled_twice, pooled), outputs=(window,)
    )


class Axis(NamedTuple):
    """One spatial axis of a convolution: voxels it reads, and makes, and what lies between."""

    extent: int
    made: int
    stride: int
    size: int
    before: int
    after: int


def _axes(op: tf.Operation) -> list[Axis] | None:
    """Return the spatial axes of a convolution, of which the op may be a gradient."""
    if op.type in CONVOLUTIONS:
        read, weights, made = op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape
    elif op.type in OF_FILTERS:
        read, weights, made = op.inputs[0].shape, op.outputs[0].shape, op.inputs[2].shape
    else:
        read, weights, made = op.outputs[0].shape, op.inputs[1].shape, op.inputs[2].shape
    if not _channels_last(op) or not _is_padded_as_usual(op):
        return None
    strides, dilations = op.get_attr("strides"), op.get_attr("dilations")
    axes = []
    for axis in range(1, read.rank - 1):
        size = (weights[axis - 1] - 1) * dilations[axis] + 1
        stride = strides[axis]
        lacking = (made[axis] - 1) * stride + size - read[axis]
        padded = max(0, lacking) if op.get_attr("padding") == b"SAME" else 0
        axes.append(Axis(read[axis], made[axis], stride, size, padded // 2, padded - padded // 2))
    return axes


def _is_padded_as_usual(op: tf.Operation) -> bool:
    return op.get_attr("padding") in (b"SAME", b"VALID")


def _channels_last(op: tf.Operation) -> bool:
    return op.get_attr("data_format").decode() in ("NHWC", "NDHWC")


def _convolution(op: tf.Operation) -> Slabs | None:
    axes = _axes(op)
    if axes is None or axes[0].size < axes[0].stride:
        return None
    first = axes[0]
    # Rows are padded, or cut out, in a copy.
    copies = 2 if any(one.before or one.after for one in axes) else 1
    if op.type in OF_INPUTS:
        # What no window reaches has no slab of the gradient.
        if (first.made - 1) * first.stride + first.size - first.before < first.extent:
            return None
        more = first.size - first.stride
        given = _same(op.outputs[0], copies=2 if more else copies, more_rows=2 * more)
        reached = _same(
            op.inputs[2],
            stride=first.stride,
            before=first.before,
            size=first.size,
            transposed=True,
        )
        return Slabs(
            rows=first.extent, unit=first.stride, inputs=(None, None, reached), outputs=(given,)
        )
    taken = _same(
        op.inputs[0], stride=first.stride, before=first.before, size=first.size, copies=copies
    )
    if op.type in OF_FILTERS:
        made = _same(op.inputs[2])
        return Slabs(rows=first.made, unit=1, inputs=(taken, None, made), outputs=(None,))
    made = _same(op.outputs[0])
    return Slabs(rows=first.made, unit=1, inputs=(taken, None), outputs=(made,))


def _made_convolution(
    op: tf.Operation, slabs: Slabs, inputs: Sequence[tf.Tensor], begin: int, end: int
) -> list[tf.Tensor]:
    axes, reach = _axes_and_reach(op, slabs, 0)
    first, last = reach.wanted(begin, end)
    paddings = [
        (max(0, -first), max(0, last - reach.extent)),
        *((one.before, one.after) for one in axes[1:]),
    ]
    taken = inputs[0]
    if any(map(any, paddings)):
        taken = tf.pad(taken, [(0, 0), *paddings, (0, 0)])
    rest = list(inputs[1:])
    if op.type in OF_FILTERS:
        rest[0] = tf.constant(op.outputs[0].shape.as_list(), tf.int32)
    return _again(op, [taken, *rest], padding=_attribute("VALID"))


def _made_input_gradient(
    op: tf.Operation, slabs: Slabs, inputs: Sequence[tf.Tensor], begin: int, end: int
) -> list[tf.Tensor]:
    axes, reach = _axes_and_reach(op, slabs, 2)
    _, weights, slab = inputs
    own = axes[0]
    first, last = reach.rows(begin, end)
    # In rows of the padded input: what the slab's rows reach, from `start` on.
    start = first * own.stride
    wanted = (begin + own.before - start, end + own.before - start)
    reached = max((last - first - 1) * own.stride + own.size, wanted[1])
    shape = op.outputs[0].shape.as_list()
    padded = [one.extent + one.before + one.after for one in axes[1:]]
    sizes = tf.constant([shape[0], reached, *padded, shape[-1]], tf.int32)
    (made,) = _again(op, [sizes, weights, slab], padding=_attribute("VALID"))
    offsets = [0, wanted[0], *(one.before for one in axes[1:]), 0]
    extents = [shape[0], end - begin, *shape[2:]]
    if made.shape.as_list() == extents:
        return [made]
    return [tf.slice(made, offsets, extents)]


def _axes_and_reach(op: tf.Operation, slabs: Slabs, position: int) -> tuple[list[Axis], Reach]:
    """Return the axes of a convolution, and the rows that slabs take of one of its inputs."""
    axes, reach = _axes(op), slabs.inputs[position]
    if axes is None or reach is None:
        raise ValueError(f"{op.name} cannot run in slabs.")
    return axes, reach


def _attribute(text: str) -> Any:
    return tf.compat.v1.AttrValue(s=text.encode())


def _static(tensor: tf.Tensor) -> Any:
    """Return the value of a tensor that follows from shapes; None of any other."""
    op = tensor.op
    if op.type in ("Shape", "ShapeN"):
        shape = op.inputs[tensor.value_index].shape
        return np.array(shape.as_list()) if shape.is_fully_defined() else None
    if op.type == "Reshape":
        value, form = _static(op.inputs[0]), _static(op.inputs[1])
        return None if value is None or form is None else np.reshape(value, form)
    if op.type == "Pack":
        parts = [_static(one) for one in op.inputs]
        known = all(one is not None for one in parts)
        return np.stack(parts, axis=op.get_attr("axis")) if known else None
    if op.type == "FloorMod":
        sides = [_static(one) for one in op.inputs]
        return None if any(one is None for one in sides) else sides[0] % sides[1]
    if op.type == "ConcatOffset":
        axis, shapes = _static(op.inputs[0]), [_static(one) for one in op.inputs[1:]]
        if axis is None or any(one is None for one in shapes):
            return None
        offset = np.zeros_like(shapes[0])
        at = int(axis) % len(offset)
        offset[at] = sum(int(one[at]) for one in shapes[: tensor.value_index])
        return offset
    return tf.get_static_value(tensor)
