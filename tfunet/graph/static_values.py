"""Values of tensors that are known before a traced step runs: they follow from shapes."""

from typing import Any

import numpy as np
import tensorflow as tf


def static_value(tensor: tf.Tensor) -> Any:
    """Return the value of a tensor that follows from shapes and constants; None of any other."""
    op = tensor.op
    if op.type in ("Shape", "ShapeN"):
        shape = op.inputs[tensor.value_index].shape
        return np.array(shape.as_list()) if shape.is_fully_defined() else None
    if op.type == "Reshape":
        value, shape = static_value(op.inputs[0]), static_value(op.inputs[1])
        return None if value is None or shape is None else np.reshape(value, shape)
    if op.type == "Pack":
        parts = [static_value(part) for part in op.inputs]
        is_known = all(part is not None for part in parts)
        return np.stack(parts, axis=op.get_attr("axis")) if is_known else None
    if op.type == "FloorMod":
        value, divisor = map(static_value, op.inputs)
        return None if value is None or divisor is None else value % divisor
    if op.type == "ConcatOffset":
        axis, *shapes = map(static_value, op.inputs)
        if axis is None or any(shape is None for shape in shapes):
            return None
        offset = np.zeros_like(shapes[0])
        axis = int(axis) % len(offset)
        offset[axis] = sum(int(shape[axis]) for shape in shapes[: tensor.value_index])
        return offset
    return tf.get_static_value(tensor)


def known_value(op: tf.Operation, tensor: tf.Tensor) -> Any:
    """Return the value of an op's input if it does not depend on data; None of any other."""
    if tensor.op.type == "ShapeN":
        return list(tensor.op.inputs[tensor.value_index].shape)
    value = tf.get_static_value(tensor)
    if value is None and op.type == "Tile" and tensor is op.inputs[1]:
        before, after = op.inputs[0].shape, op.outputs[0].shape
        if after.is_fully_defined() and 0 not in before:
            return [size // repeated for repeated, size in zip(before, after, strict=True)]
    return value
