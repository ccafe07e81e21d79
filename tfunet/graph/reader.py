"""Reads the ops of a training step, and the bytes of their tensors, from its graph."""

import math
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from tfunet.config.compression import COMPRESSIONS
from tfunet.graph import slices
from tfunet.graph.constants import of_one_value
from tfunet.graph.regrouped import SUMS, made_by, regrouped
from tfunet.graph.step import FUSED_WITH_BIAS, SHAPE_READERS, Op, Tensor, Trace, root

# Their memory is not the step's own: a variable's, the batch's, the graph's.
READS = frozenset({"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"})
# Ops between replicas: one that ran twice in one of them would wait for the others for ever.
COLLECTIVE = ("Collective", "Horovod", "Nccl")
NO_SIZE = (tf.resource, tf.variant, tf.string)


def in_order(ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """Return the ops that run, in the order in which a step with little memory runs them.

    Args:
        ops: Of one replica's step.
        results: Tensors that the step returns. What nothing needs, TensorFlow leaves out: the
            gradient of the first convolution's input.

    It is the order in which they were traced, but of the gradients of one convolution that with
    respect to its weights comes first, then that with respect to its bias, then that with respect
    to its input: the input need not be there any more when its gradient, which is as large, comes
    into being. The first two lie side by side because oneDNN makes one op of them: anything that
    had to run between them would be in a circle.
    """
    ops = _needed(ops, results)
    own = {op.name for op in ops}
    of_weights = {op.inputs[2].name: op for op in ops if "BackpropFilter" in op.type}
    of_bias = {op.inputs[0].name: op for op in ops if op.type == "BiasAddGrad"}
    placed: dict[str, tf.Operation] = {}

    def place(op: tf.Operation | None) -> None:
        if op is None or op.name in placed or op.name not in own:
            return
        for before in (*(one.op for one in op.inputs), *op.control_inputs):
            place(before)
        placed[op.name] = op

    for op in ops:
        if is_backward(op) and op.type.startswith(("BiasAddGrad", "Conv", "Depthwise")):
            gradient = op.inputs[-1 if op.type != "BiasAddGrad" else 0].name
            if gradient in of_weights:
                place(of_weights[gradient])
                place(of_bias.get(gradient))
        place(op)
    return list(placed.values())


def _needed(ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> list[tf.Operation]:
    own = {op.name for op in ops}
    returned = {one.op.name for one in results}
    needed: set[str] = set()
    for op in reversed(ops):
        readers = [reader for one in op.outputs for reader in one.consumers()]
        readers += op._control_outputs
        if (
            op.op_def.is_stateful
            or op.name in returned
            or any(one.name in needed or one.name not in own for one in readers)
        ):
            needed.add(op.name)
    return [op for op in ops if op.name in needed]


def read(
    ops: Sequence[tf.Operation],
    results: Sequence[tf.Tensor] = (),
    *,
    compression: str | None = None,
) -> tuple[Trace, list[tf.Tensor]]:
    """Return what the ops of one replica's step compute, and the tensors behind its indices.

    Args:
        ops: Those that were created while the model's train_step was traced, from `in_order`.
        results: What the step returns.
        compression: Of swapped tensors: one of `tfunet.config.compression.COMPRESSIONS`.
    """
    of_step = {op.name for op in ops}
    returned = {one.name for one in results}
    last = {one.op.name for one in results}
    constants = of_one_value(ops)
    groups = regrouped(ops, last, lambda op: _runs(op, last))
    in_groups = {*groups, *groups.values()}
    indices: dict[str, int] = {}
    tensors: list[Tensor] = []
    handles: list[tf.Tensor] = []

    def index(handle: tf.Tensor, producer: int) -> int:
        if handle.name not in indices:
            indices[handle.name] = len(tensors)
            is_own = producer >= 0 and ops[producer].type not in READS
            is_fused = producer >= 0 and _is_inner(ops[producer])
            is_term = producer >= 0 and made_by(handle).name in groups
            # Of a sum that becomes part of another nothing is left; a factor stays one.
            own = is_own and not (is_fused or (is_term and made_by(handle).type in SUMS))
            own = own and handle.name not in constants
            tensors.append(
                Tensor(
                    name=handle.name,
                    num_bytes=num_bytes(handle) if own else 0,
                    producer=producer,
                    is_inner=is_fused or is_term,
                    is_folded=slices.is_folded(handle),
                    is_result=handle.name in returned or _is_read_whole(handle, of_step, last),
                    compressed_bytes=_compressed_bytes(handle, compression) if own else 0,
                )
            )
            handles.append(handle)
        return indices[handle.name]

    found = []
    in_backward = False
    for position, op in enumerate(ops):
        in_backward = in_backward or is_backward(op)
        found.append(
            Op(
                name=op.name,
                kind=op.type,
                inputs=tuple(index(one, -1) for one in _read_inputs(op)),
                outputs=tuple(index(one, position) for one in op.outputs),
                is_backward=in_backward,
                is_repeatable=_is_repeatable(op),
                flops=_flops(op),
                item_bytes=op.outputs[0].dtype.size if op.outputs else 4,
                slabs=slices.describe(op),
                instead=_instead(op, indices),
                is_regrouped=op.name in in_groups,
            )
        )
    kept = [one for one in handles if one.name in constants and _is_kept(one, constants)]
    step = Trace(
        ops=tuple(found),
        tensors=tuple(tensors),
        compression=compression,
        constant_bytes=sum(map(num_bytes, kept)),
    )
    return step, handles


def _instead(op: tf.Operation, indices: Mapping[str, int]) -> int:
    """Return the output of the activation that an op is the gradient of, if that will do.

    LeakyReluGrad asks of the activation's input whether it is positive, and so is the output then,
    and only then, for a slope from 0 to 1, also where it underflows. (ReluGrad reads the output.)
    """
    if op.type != "LeakyReluGrad" or not 0 <= op.get_attr("alpha") <= 1:
        return -1
    outputs = [
        reader.outputs[0].name
        for reader in op.inputs[1].consumers()
        if reader.type == "LeakyRelu" and reader.get_attr("alpha") == op.get_attr("alpha")
    ]
    return next((indices[one] for one in outputs if one in indices), -1)


def _is_kept(tensor: tf.Tensor, constants: Collection[str]) -> bool:
    """Whether anything that is computed in each step reads a constant."""
    return any(
        any(one.name not in constants for one in reader.outputs) for reader in tensor.consumers()
    )


def _is_read_whole(tensor: tf.Tensor, own: Collection[str], last: Collection[str]) -> bool:
    """Whether an op that is not one of the step's own reads a tensor, or one that fills another."""
    return any(
        reader.type in ("OnesLike", "ZerosLike")
        or (reader.name not in own and reader.type not in SHAPE_READERS and _runs(reader, last))
        for reader in tensor.consumers()
    )


def _runs(op: tf.Operation, last: Collection[str]) -> bool:
    """Whether an op is not one of those that TensorFlow leaves out, for nothing needs them."""
    seen: set[str] = set()
    following = [op]
    while following:
        one = following.pop()
        if one.op_def.is_stateful or one._control_outputs or one.name in last:
            return True
        if one.name not in seen:
            seen.add(one.name)
            following += [reader for output in one.outputs for reader in output.consumers()]
    return False


def num_bytes(tensor: tf.Tensor) -> int:
    """Return the bytes of a tensor; 0 where its shape or type has no size."""
    if not tensor.shape.is_fully_defined() or tensor.dtype in NO_SIZE:
        return 0
    return int(tensor.shape.num_elements()) * tensor.dtype.size


def _compressed_bytes(tensor: tf.Tensor, compression: str | None) -> int:
    """Return what a tensor takes in fewer bits; 0 where it has no wider numbers, or no size."""
    if compression is None or not tensor.dtype.is_floating:
        return 0
    item_bytes = COMPRESSIONS[compression]
    found = num_bytes(tensor) // tensor.dtype.size * item_bytes
    return found if item_bytes < tensor.dtype.size else 0


def of_unknown_size(step: Trace, handles: Sequence[tf.Tensor]) -> list[str]:
    """Return the tensors of the forward pass that the backward pass reads, and whose shape is not
    known before the step runs."""
    read_later = {root(step, one) for op in step.ops if op.is_backward for one in op.inputs}
    return [
        step.tensors[one].name
        for one in sorted(read_later)
        if step.tensors[one].producer >= 0
        and not step.ops[step.tensors[one].producer].is_backward
        and step.ops[step.tensors[one].producer].kind not in READS
        and not handles[one].shape.is_fully_defined()
        and handles[one].dtype not in NO_SIZE
    ]


def is_backward(op: tf.Operation) -> bool:
    """Whether an op was made by a gradient tape."""
    # The name scope in which TensorFlow's tape makes every op of a gradient.
    return "gradient_tape/" in op.name


def _is_inner(op: tf.Operation) -> bool:
    """Whether the output of an op goes to a bias alone, with which TensorFlow fuses the op."""
    if op.type not in FUSED_WITH_BIAS or is_backward(op):
        return False
    readers = [one for one in op.outputs[0].consumers() if one.type not in SHAPE_READERS]
    return [one.type for one in readers] == ["BiasAdd"]


def _read_inputs(op: tf.Operation) -> Sequence[tf.Tensor]:
    return () if op.type in SHAPE_READERS else op.inputs


def _is_repeatable(op: tf.Operation) -> bool:
    special = any(one.dtype in (tf.resource, tf.variant) for one in (*op.inputs, *op.outputs))
    once = op.op_def.is_stateful or op.type in READS or op.type.startswith(COLLECTIVE)
    return not (once or _has_function(op) or special)


def _has_function(op: tf.Operation) -> bool:
    return any(attribute.type == "func" for attribute in op.op_def.attr)


def _flops(op: tf.Operation) -> float:
    """Return two for each product in a sum; convolutions and matrix products only."""
    if op.type.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")):
        if "BackpropFilter" in op.type:
            weights, result = op.outputs[0], op.inputs[2]
        elif "BackpropInput" in op.type:
            weights, result = op.inputs[1], op.inputs[2]
        else:
            weights, result = op.inputs[1], op.outputs[0]
        if not (weights.shape.is_fully_defined() and result.shape.is_fully_defined()):
            return 0.0
        channels = weights.shape[-1] * (weights.shape[-2] if op.type.startswith("Depth") else 1)
        return 2.0 * result.shape.num_elements() * weights.shape.num_elements() / channels
    if op.type == "MatMul":
        known = all(one.shape.is_fully_defined() for one in (*op.inputs, *op.outputs))
        sizes = [one.shape.num_elements() for one in (*op.inputs, *op.outputs)] if known else [0]
        # (m k) (k n) (m n) = (m k n) squared.
        return 2.0 * math.sqrt(math.prod(sizes))
    return 0.0
