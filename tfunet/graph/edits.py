"""Small changes to the graph of a traced step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tfunet.graph.shared_rows import SPLITS
from tfunet.graph.step import READS, SHAPE_READERS
from tfunet.inside.of_tensorflow import set_attribute, set_input


def together(
    of_weights: tf.Operation, of_bias: tf.Operation, before: Sequence[tf.Operation]
) -> tf.Operation:
    """Let the gradients of a convolution's weights and bias wait for ops, and return an op that
    runs after both.

    oneDNN makes one op of two with the same control edges, which changes the last bits, and
    TensorFlow does not say which of the two stays. So they wait by the tensor that both read.
    """
    gradient = of_weights.inputs[2]
    with tf.control_dependencies(None):
        if before:
            with tf.control_dependencies(before), tf.device(of_weights.device):
                gradient = tf.raw_ops.EnsureShape(input=gradient, shape=gradient.shape)
            set_input(of_weights, 2, gradient)
            set_input(of_bias, 0, gradient)
        with tf.control_dependencies([of_weights, of_bias]):
            return tf.no_op()


def delayed(tensor: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
    """Return a tensor that is there only after ops. Unlike a control edge on the op that makes it,
    this keeps no two ops from being fused."""
    if tensor.op.type in READS:
        return tensor
    return identity(tensor, after)


def named_after(op: tf.Operation, scope: str = "") -> AbstractContextManager[str]:
    """Return a name scope for what takes the place of an op's output.

    TensorFlow sorts the inputs of sums and products by name before it rearranges them. A name that
    begins with the op's name keeps the op's place.
    """
    return tf.name_scope(f"{op.name}/{scope}/" if scope else f"{op.name}/")


def identity(tensor: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
    if not after:
        return tensor
    with (
        tf.control_dependencies(None),
        tf.control_dependencies(after),
        tf.device(tensor.device),
        named_after(tensor.op),
    ):
        return _same(tensor, name="after")


def done(op: tf.Operation) -> tf.Operation:
    """Return an op to wait for that runs after `op`: edges from it keep no two ops from being
    fused."""
    if not op.outputs:
        return op
    with tf.control_dependencies(None), tf.device(op.device):
        return _same(op.outputs[0]).op


def _same(tensor: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Return the values of a tensor from an op of their own, whose control edges TensorFlow keeps.

    TensorFlow puts an identity of each part of a split before the split, where one waits for what
    is made of another part. It does not optimize the graph any further then: last bits change.
    """
    if tensor.op.type in SPLITS:
        return tf.raw_ops.EnsureShape(input=tensor, shape=tensor.shape, name=name)
    return tf.identity(tensor, name=name)


def kept_apart(op: tf.Operation) -> None:
    """Keep TensorFlow from merging a sum or product with the op that reads it, now that no second
    op reads it: TensorFlow leaves alone what is marked as merged already."""
    for stage in ("AddOpsRewriteStage", "MinimizeBroadcasts"):
        name = f"_grappler_ArithmeticOptimizer_{stage}"
        set_attribute(op, name, attr_value_pb2.AttrValue(b=True))


def repeated(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    """Return a second op like the first, on other inputs."""
    with tf.control_dependencies(None), tf.device(op.device), named_after(op):
        return op.graph.create_op(
            op.type,
            list(inputs),
            [tensor.dtype for tensor in op.outputs],
            attrs=dict(op.node_def.attr),
            op_def=op.op_def,
            name="again",
        )


def like(
    op: tf.Operation, inputs: Sequence[tf.Tensor], name: str, **attributes: Any
) -> tf.Operation:
    """Return an op of the same kind, in the graph being traced now, without private attributes."""
    own = {key: value for key, value in op.node_def.attr.items() if not key.startswith("_")}
    return tf.compat.v1.get_default_graph().create_op(
        op.type,
        list(inputs),
        [tensor.dtype for tensor in op.outputs],
        attrs={**own, **attributes},
        op_def=op.op_def,
        name=name,
    )


def read_instead(old: tf.Tensor, new: tf.Tensor) -> None:
    """Let all ops that read a tensor read another."""
    for reader in old.consumers():
        for position, handle in enumerate(reader.inputs):
            if handle is old:
                set_input(reader, position, new)


def forget_shape_readers(tensor: tf.Tensor) -> None:
    """Let what reads only the shape of a tensor read constants, so that nobody holds its memory
    for that. Zeros and ones of its shape stay."""
    values: dict[str, Callable[[list[int]], tf.Tensor]] = {
        "Shape": lambda shape: shape,
        "ShapeN": lambda shape: shape,
        "Rank": len,
        "Size": lambda shape: tf.TensorShape(shape).num_elements(),
    }
    for op in tensor.consumers():
        if op.type not in SHAPE_READERS or op.type not in values:
            continue
        # All of them: what is left of a ShapeN, the shape of weights, would hold the tensor too.
        for position, output in enumerate(op.outputs):
            shape = op.inputs[position].shape
            if not shape.is_fully_defined():
                continue
            with tf.control_dependencies(None), tf.device(op.device):
                known = tf.constant(values[op.type](shape.as_list()), output.dtype)
            read_instead(output, known)
