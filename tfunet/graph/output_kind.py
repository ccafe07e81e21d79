"""What the output of a traced forward pass is made of: numbers of any sign, or probabilities."""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfunet.inside.of_tensorflow import function_graph

# Give a value to each input value, or move values: what they are does not change.
SAME = frozenset(
    {"Identity", "IdentityN", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"}
    | {"Cast", "Reshape", "Squeeze", "ExpandDims", "Transpose", "Slice", "StridedSlice", "Pad"}
    | {"PadV2", "MirrorPad", "SpaceToDepth", "DepthToSpace", "ResizeNearestNeighbor"}
    | {"ResizeBilinear", "SpaceToBatchND", "BatchToSpaceND", "GatherV2", "Tile"}
)
# Sums, products and choices of several inputs: what they give depends on all of these.
MIXED = frozenset(
    {"Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Mean", "Sum", "ConcatV2", "Pack", "Neg"}
    | {"Maximum", "Minimum", "SelectV2", "Select", "BroadcastTo", "Max"}
)
PROBABILITIES = frozenset({"Softmax", "Sigmoid"})
# Give numbers of any size, or are activations that are no probabilities.
FREE = frozenset(
    {"BiasAdd", "MatMul", "BatchMatMulV2", "Einsum", "DepthwiseConv2dNative", "FusedBatchNormV3"}
    | {"Conv2D", "Conv3D", "Conv2DBackpropInput", "Conv3DBackpropInputV2", "LogSoftmax"}
    | {"Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "Tanh"}
)
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def is_made_of(output: tf.Tensor) -> frozenset[str]:
    """Return the kinds of op that the values of a tensor come from, past those that only move them.

    Kinds other than those of PROBABILITIES and FREE say nothing. An op of MIXED is among the
    kinds too.
    """
    kinds: set[str] = set()
    seen: set[int] = set()
    pending: list[tuple[tf.Tensor, tuple[tf.Operation, ...]]] = [(output, ())]
    while pending:
        tensor, callers = pending.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        op = tensor.op
        if op.type in SAME:
            pending.append((op.inputs[0], callers))
        elif op.type in CALLS:
            inner = _function(op).outputs[tensor.value_index]
            pending.append((inner, (*callers, op)))
        elif op.type == "Placeholder" and callers:
            caller = callers[-1]
            position = [id(given) for given in _function(caller).inputs].index(id(tensor))
            pending.append((caller.inputs[position], callers[:-1]))
        else:
            kinds.add(op.type)
            if op.type in MIXED:
                pending += [(given, callers) for given in _values(op.inputs)]
    return frozenset(kinds)


def _values(inputs: Iterable[tf.Tensor]) -> Iterator[tf.Tensor]:
    return (tensor for tensor in inputs if tensor.dtype.is_floating and tensor.op.type != "Const")


def _function(op: tf.Operation) -> Any:
    return function_graph(op.graph, op.get_attr("f").name)
