"""What TensorFlow computes once, when it compiles a step, and keeps: large tensors of one value."""

from collections.abc import Sequence

import tensorflow as tf

# Of these, the output has one value where this input has, or where all have.
OF_FIRST = frozenset(
    {"BroadcastTo", "Cast", "ExpandDims", "Identity", "Neg", "Reshape", "Squeeze", "Tile"}
)
OF_ALL = frozenset({"AddV2", "DivNoNan", "Maximum", "Minimum", "Mul", "RealDiv", "Sub"})
FILLED = frozenset({"OnesLike", "ZerosLike"})
SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})


def of_one_value(ops: Sequence[tf.Operation]) -> set[str]:
    """Return the names of the tensors of a step that depend on no data and have one value: the
    gradient of a mean, say. Others that are large TensorFlow computes in each step anew.

    Args:
        ops: Of the step, in order.
    """
    found: set[str] = set()
    fixed: set[str] = set()  # depend on no data

    def is_fixed(tensor: tf.Tensor) -> bool:
        return tensor.name in fixed or tensor.op.type == "Const"

    def has_one_value(tensor: tf.Tensor) -> bool:
        return tensor.name in found or (is_fixed(tensor) and tensor.shape.num_elements() == 1)

    for op in ops:
        names = {one.name for one in op.outputs}
        known = all(one.shape.is_fully_defined() for one in (*op.inputs, *op.outputs))
        if op.type in SHAPES | FILLED:
            fixed |= names if known else set()
            found |= names if known and op.type in FILLED else set()
        elif known and op.inputs and all(map(is_fixed, op.inputs)):
            fixed |= names
            first = op.inputs[1 if op.type == "Fill" else 0]
            of_first = op.type in OF_FIRST | {"Fill"} and has_one_value(first)
            if of_first or (op.type in OF_ALL and all(map(has_one_value, op.inputs))):
                found |= names
    return found
