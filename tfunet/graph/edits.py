"""Small changes of the graph of a traced step."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from tfunet.graph.reader import READS


def together(
    of_weights: tf.Operation, of_bias: tf.Operation, before: Sequence[tf.Operation]
) -> tf.Operation:
    """Let two gradients of a convolution wait for ops by what both read, and return the op after
    which both are done. oneDNN makes one op of two with the same edges, in other last bits, and
    which of them TensorFlow leaves nobody says."""
    shared = of_weights.inputs[2]
    with tf.control_dependencies(None):
        if before:
            with tf.control_dependencies(before), tf.device(of_weights.device):
                shared = tf.raw_ops.EnsureShape(input=shared, shape=shared.shape)
            of_weights._update_input(2, shared)
            of_bias._update_input(0, shared)
        with tf.control_dependencies([of_weights, of_bias]):
            return tf.no_op()


def delayed(tensor: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
    """Return a tensor that is there only after an op: an edge that keeps no two ops from fusing."""
    if tensor.op.type in READS:
        return tensor
    return identity(tensor, after)


def named_after(op: tf.Operation, what: str = "") -> AbstractContextManager[str]:
    """Return a scope for what takes the place of an op's output.

    TensorFlow sorts the inputs of sums and products by their names before it rearranges them: with
    the op's own name in front, what takes its place keeps its place.
    """
    return tf.name_scope(f"{op.name}/{what}/" if what else f"{op.name}/")


def identity(tensor: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
    if not after:
        return tensor
    with (
        tf.control_dependencies(None),
        tf.control_dependencies(after),
        tf.device(tensor.device),
        named_after(tensor.op),
    ):
        return tf.identity(tensor, name="after")


def done(op: tf.Operation) -> tf.Operation:
    """Return an op that runs after another, to wait for: edges from it keep no two from fusing."""
    if not op.outputs:
        return op
    with tf.control_dependencies(None), tf.device(op.device):
        return tf.identity(op.outputs[0]).op


def kept_apart(op: tf.Operation) -> None:
    """Keep TensorFlow from making a sum or product anew with an op that reads it, now that there is
    no second one: it leaves alone what it believes that it has done."""
    for stage in ("AddOpsRewriteStage", "MinimizeBroadcasts"):
        name = f"_grappler_ArithmeticOptimizer_{stage}"
        op._set_attr(name, attr_value_pb2.AttrValue(b=True))


def repeated(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
    """Return a second op like the first, on other inputs."""
    with tf.control_dependencies(None), tf.device(op.device), named_after(op):
        return op.graph.create_op(
            op.type,
            list(inputs),
            [one.dtype for one in op.outputs],
            attrs=dict(op.node_def.attr),
            op_def=op.op_def,
            name="again",
        )
