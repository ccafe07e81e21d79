"""What is known of tensors before a traced step runs: values, and large tensors of one value.

TensorFlow computes the latter once, when it compiles a step.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfunet.inside.of_tensorflow import evaluated

# The output has one value if the first input has, or if all inputs have.
OF_FIRST = frozenset(
    {"BroadcastTo", "Cast", "ExpandDims", "Identity", "Neg", "Reshape", "Squeeze", "Tile"}
)
OF_ALL = frozenset({"AddV2", "DivNoNan", "Maximum", "Minimum", "Mul", "RealDiv", "Sub"})
FILLED = frozenset({"OnesLike", "ZerosLike"})
SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
# A tensor of more numbers is none of shapes, axes or counts.
MOST_NUMBERS = 64


def static_value(tensor: tf.Tensor) -> Any:
    """Return the value of a tensor that follows from shapes and constants; None of any other."""
    op = tensor.op
    if op.type == "ShapeN":
        shape = op.inputs[tensor.value_index].shape
        return np.array(shape.as_list()) if shape.is_fully_defined() else None
    value = tf.get_static_value(tensor)
    size = tensor.shape.num_elements()
    if value is not None or not tensor.dtype.is_integer or size is None or size > MOST_NUMBERS:
        return value
    # TensorFlow's Python knows of few ops; the C++ that infers shapes runs any.
    return evaluated(tensor)


def known_value(op: tf.Operation, tensor: tf.Tensor) -> Any:
    """Return the value of an op's input if it does not depend on data; None of any other."""
    value = static_value(tensor)
    if value is None and op.type == "Tile" and tensor is op.inputs[1]:
        before, after = op.inputs[0].shape, op.outputs[0].shape
        if after.is_fully_defined() and 0 not in before:
            return [size // repeated for repeated, size in zip(before, after, strict=True)]
    return value


def of_one_value(ops: Sequence[tf.Operation]) -> set[str]:
    """Return the names of the tensors of a step that depend on no data and have one value.

    The gradient of a mean is one. TensorFlow computes other large tensors anew in each step.
    """
    single: set[str] = set()  # Tensors of one value.
    fixed: set[str] = set()  # Tensors that depend on no data.

    def is_fixed(tensor: tf.Tensor) -> bool:
        return tensor.name in fixed or tensor.op.type == "Const"

    def has_one_value(tensor: tf.Tensor) -> bool:
        return tensor.name in single or (is_fixed(tensor) and tensor.shape.num_elements() == 1)

    for op in ops:
        names = {tensor.name for tensor in op.outputs}
        if not all(tensor.shape.is_fully_defined() for tensor in (*op.inputs, *op.outputs)):
            continue
        if op.type in SHAPES | FILLED:
            fixed |= names
            single |= names if op.type in FILLED else set()
        elif op.type == "Pad" and op.inputs[0].shape.num_elements() == 0:
            fixed |= names
            single |= names
        elif op.inputs and all(map(is_fixed, op.inputs)):
            fixed |= names
            first = op.inputs[1 if op.type == "Fill" else 0]
            of_first = op.type in OF_FIRST | {"Fill"} and has_one_value(first)
            if of_first or (op.type in OF_ALL and all(map(has_one_value, op.inputs))):
                single |= names
    return single
