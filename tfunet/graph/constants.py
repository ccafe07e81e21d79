"""Large tensors of one value, which TensorFlow computes once, when it compiles a step."""

from collections.abc import Sequence

import tensorflow as tf

# The output has one value if the first input has, or if all inputs have.
OF_FIRST = frozenset(
    {"BroadcastTo", "Cast", "ExpandDims", "Identity", "Neg", "Reshape", "Squeeze", "Tile"}
)
OF_ALL = frozenset({"AddV2", "DivNoNan", "Maximum", "Minimum", "Mul", "RealDiv", "Sub"})
FILLED = frozenset({"OnesLike", "ZerosLike"})
SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})


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
        elif op.inputs and all(map(is_fixed, op.inputs)):
            fixed |= names
            first = op.inputs[1 if op.type == "Fill" else 0]
            of_first = op.type in OF_FIRST | {"Fill"} and has_one_value(first)
            if of_first or (op.type in OF_ALL and all(map(has_one_value, op.inputs))):
                single |= names
    return single
