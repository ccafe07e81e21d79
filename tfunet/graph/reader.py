"""Reads the ops of a training step, and the bytes of their tensors, from its graph."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from tfunet.graph import passes, slab_rules
from tfunet.graph.passes import COLLECTIVE, is_backward
from tfunet.graph.regrouped import SUMS, made_by, regrouped
from tfunet.graph.static_values import of_one_value
from tfunet.graph.step import (
    FUSED_WITH_BIAS,
    GRADIENT_LEAVES,
    HOST_UPDATE,
    READS,
    SHAPE_READERS,
    WEIGHT_ARRIVES,
    WEIGHT_READ,
    Op,
    Tensor,
    Trace,
    root,
)
from tfunet.graph.unrolled import unrolled
from tfunet.inside.of_tensorflow import control_outputs

NO_SIZE = (tf.resource, tf.variant, tf.string)


def in_order(ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """Return the ops that run, in an order that needs little memory.

    It is the order in which they were traced, but for the gradients of a convolution:

        weights     reads the input of the convolution, which may be freed then
        bias        follows at once: oneDNN makes one op of the two, so that an op that had to run
                    between them would wait for itself
        input       makes a tensor as large as the input

    A gradient that leaves the device does so when it is made (`tfunet.state.update`).

    Args:
        ops: The ops of one replica's step.
        results: Tensors that the step returns. TensorFlow leaves out the ops that nothing needs,
            such as the gradient of the first convolution's input.
    """
    ops = needed(ops, results)
    names = {op.name for op in ops}
    of_weights = {op.inputs[2].name: op for op in ops if "BackpropFilter" in op.type}
    of_bias = {op.inputs[0].name: op for op in ops if op.type == "BiasAddGrad"}
    placed: dict[str, tf.Operation] = {}
    leaving = {op.inputs[0].name: op for op in ops if _is_named(op, GRADIENT_LEAVES)}

    def place(op: tf.Operation | None) -> None:
        if op is None or op.name in placed or op.name not in names:
            return
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            place(before)
        placed[op.name] = op
        for made in op.outputs if leaving else ():
            place(leaving.get(made.name))

    for op in ops:
        if is_backward(op) and op.type.startswith(("BiasAddGrad", "Conv", "Depthwise")):
            gradient = op.inputs[-1 if op.type != "BiasAddGrad" else 0].name
            if gradient in of_weights:
                place(of_weights[gradient])
                place(of_bias.get(gradient))
        place(op)
    return list(placed.values())


def needed(ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """Return the ops that run, as they were traced; see `in_order`."""
    names = {op.name for op in ops}
    returned = {tensor.op.name for tensor in results}
    kept: set[str] = set()
    for op in reversed(ops):
        readers = [reader for tensor in op.outputs for reader in tensor.consumers()]
        readers += control_outputs(op)
        if (
            op.op_def.is_stateful
            or op.name in returned
            or any(reader.name in kept or reader.name not in names for reader in readers)
        ):
            kept.add(op.name)
    return [op for op in ops if op.name in kept]


def read(
    ops: Sequence[tf.Operation], results: Sequence[tf.Tensor] = (), *, takes_turns: bool = False
) -> tuple[Trace, list[tf.Tensor]]:
    """Return the trace of one replica's step, and the tensors behind its indices.

    Args:
        ops: The ops that were made while the step was traced, from `in_order`.
        takes_turns: Whether forward passes come after backward passes, too.
    """
    names = {op.name for op in ops}
    returned = {tensor.name for tensor in results}
    last = {tensor.op.name for tensor in results}
    constants = of_one_value(ops)
    groups = regrouped(ops, last, lambda op: _runs(op, last))
    in_groups = {*groups, *groups.values()}
    indices: dict[str, int] = {}
    tensors: list[Tensor] = []
    handles: list[tf.Tensor] = []

    def index(handle: tf.Tensor, producer: int) -> int:
        if handle.name not in indices:
            indices[handle.name] = len(tensors)
            is_made = producer >= 0 and ops[producer].type not in READS
            # On the host, outside of the device's memory.
            is_made = is_made and not _is_on_host(handle.op)
            is_fused = producer >= 0 and _is_inner(ops[producer])
            is_term = producer >= 0 and made_by(handle).name in groups
            # A sum that becomes part of another is never in memory; a factor still is.
            has_memory = is_made and not (is_fused or (is_term and made_by(handle).type in SUMS))
            has_memory = has_memory and handle.name not in constants
            tensors.append(
                Tensor(
                    name=handle.name,
                    num_bytes=num_bytes(handle) if has_memory else 0,
                    producer=producer,
                    is_inner=is_fused or is_term,
                    is_folded=slab_rules.is_folded(handle),
                    is_result=handle.name in returned or _is_read_outside(handle, names, last),
                )
            )
            handles.append(handle)
        return indices[handle.name]

    backward = passes.of_many_turns(ops) if takes_turns else passes.of_one_turn(ops)
    traced_ops = tuple(
        replace(
            _described(op),
            inputs=tuple(
                index(tensor, -1) for tensor in (() if op.type in SHAPE_READERS else op.inputs)
            ),
            outputs=tuple(index(tensor, position) for tensor in op.outputs),
            is_backward=backward[position],
            instead=_instead(op, indices),
            is_regrouped=op.name in in_groups,
        )
        for position, op in enumerate(ops)
    )
    kept = [handle for handle in handles if _is_kept_constant(handle, constants)]
    constant_bytes = sum(map(num_bytes, kept))
    return Trace(ops=traced_ops, tensors=tuple(tensors), constant_bytes=constant_bytes), handles


def _described(op: tf.Operation) -> Op:
    """Return what is known of an op without the others."""
    return Op(
        name=op.name,
        kind="HostUpdate" if _is_named(op, HOST_UPDATE) else op.type,
        inputs=(),
        outputs=(),
        is_backward=False,
        is_repeatable=_is_repeatable(op),
        flops=_flops(op),
        item_bytes=op.outputs[0].dtype.size if op.outputs else 4,
        has_short_way=_has_short_way(op),
        slabs=slab_rules.describe(op),
        unrolled=unrolled(op),
        brings_weight=_is_named(op, WEIGHT_ARRIVES),
    )


def _is_on_host(op: tf.Operation) -> bool:
    """Whether the output of an op is a weight in host memory."""
    shown = op.inputs[0].op if op.type == "EnsureShape" else op
    return _is_named(shown, WEIGHT_READ)


def goes_with(op: tf.Operation) -> str | None:
    """Return the device that an op of the host reads a weight for, or takes a gradient from; None
    for any other op."""
    if _is_named(op, WEIGHT_READ):
        shown = [each for reader in op.outputs[0].consumers() for each in reader.outputs]
        device: str = next((copy.device for each in shown for copy in each.consumers()), "")
        return device
    return op.inputs[0].device if _is_named(op, GRADIENT_LEAVES) else None


def _is_named(op: tf.Operation, name: str) -> bool:
    """Whether an op was given a name, to which TensorFlow may have added a number."""
    return op.name.rpartition("/")[2].rstrip("0123456789").rstrip("_") == name


def _instead(op: tf.Operation, indices: Mapping[str, int]) -> int:
    """Return the output of an activation if its gradient may read that instead of the input.

    LeakyReluGrad reads only whether the activation's input is positive. For a slope from 0 to 1 the
    output is positive if and only if the input is, also if it underflows. (ReluGrad reads the
    output anyway.)
    """
    if op.type != "LeakyReluGrad" or not 0 <= op.get_attr("alpha") <= 1:
        return -1
    outputs = [
        reader.outputs[0].name
        for reader in op.inputs[1].consumers()
        if reader.type == "LeakyRelu" and reader.get_attr("alpha") == op.get_attr("alpha")
    ]
    return next((indices[name] for name in outputs if name in indices), -1)


def _is_kept_constant(tensor: tf.Tensor, constants: Collection[str]) -> bool:
    """Whether a tensor is a constant that an op which runs in each step reads."""
    outputs = [output for reader in tensor.consumers() for output in reader.outputs]
    return tensor.name in constants and any(output.name not in constants for output in outputs)


def _is_read_outside(tensor: tf.Tensor, names: Collection[str], last: Collection[str]) -> bool:
    """Whether an op not in `names` reads a tensor, or one that fills another tensor like it."""
    return any(
        reader.type in ("OnesLike", "ZerosLike")
        or (reader.name not in names and reader.type not in SHAPE_READERS and _runs(reader, last))
        for reader in tensor.consumers()
    )


def _runs(op: tf.Operation, last: Collection[str]) -> bool:
    """Whether something needs an op, so that TensorFlow does not leave it out."""
    seen: set[str] = set()
    following = [op]
    while following:
        op = following.pop()
        if op.op_def.is_stateful or control_outputs(op) or op.name in last:
            return True
        if op.name not in seen:
            seen.add(op.name)
            following += [reader for output in op.outputs for reader in output.consumers()]
    return False


def num_bytes(tensor: tf.Tensor) -> int:
    """Return the bytes of a tensor; 0 if its shape or type has no size."""
    if not tensor.shape.is_fully_defined() or tensor.dtype in NO_SIZE:
        return 0
    return int(tensor.shape.num_elements()) * tensor.dtype.size


def of_unknown_size(trace: Trace, handles: Sequence[tf.Tensor]) -> list[str]:
    """Return the names of the tensors of the forward pass that the backward pass reads, and whose
    shape is not known before the step runs."""
    read_later = {root(trace, index) for op in trace.ops if op.is_backward for index in op.inputs}
    return [
        trace.tensors[index].name
        for index in sorted(read_later)
        if trace.is_of_forward(index)
        and trace.ops[trace.tensors[index].producer].kind not in READS
        and not handles[index].shape.is_fully_defined()
        and handles[index].dtype not in NO_SIZE
    ]


def _is_inner(op: tf.Operation) -> bool:
    """Whether only a bias reads the output of an op, so that TensorFlow fuses the two."""
    if op.type not in FUSED_WITH_BIAS or is_backward(op):
        return False
    readers = [reader.type for reader in op.outputs[0].consumers()]
    return [kind for kind in readers if kind not in SHAPE_READERS] == ["BiasAdd"]


def _is_repeatable(op: tf.Operation) -> bool:
    if _is_named(op, WEIGHT_ARRIVES):
        return True
    tensors = (*op.inputs, *op.outputs)
    has_handle = any(tensor.dtype in (tf.resource, tf.variant) for tensor in tensors)
    has_function = any(attribute.type == "func" for attribute in op.op_def.attr)
    # An op that ran twice in one replica would wait for the others for ever.
    runs_once = op.op_def.is_stateful or op.type in READS or op.type.startswith(COLLECTIVE)
    return not (runs_once or has_function or has_handle)


def _filter_of(op: tf.Operation) -> tf.Tensor:
    """Return the filter, or its gradient, of an op of a convolution."""
    return op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]


def _has_short_way(op: tf.Operation) -> bool:
    """Whether an op is a convolution that Winograd's algorithm shortens."""
    if not op.type.startswith("Conv2D") or _filter_of(op).shape[:2] != (3, 3):
        return False
    steps = [*op.get_attr("strides"), *op.get_attr("dilations")]
    return all(step == 1 for step in steps)


def _flops(op: tf.Operation) -> float:
    """Return the multiplications and additions of a convolution or a matrix product; else 0."""
    if op.type.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")):
        weights = _filter_of(op)
        result = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
        if not (weights.shape.is_fully_defined() and result.shape.is_fully_defined()):
            return 0.0
        channels = weights.shape[-1] * (weights.shape[-2] if op.type.startswith("Depth") else 1)
        return 2.0 * result.shape.num_elements() * weights.shape.num_elements() / channels
    if op.type == "MatMul":
        shapes = [tensor.shape for tensor in (*op.inputs, *op.outputs)]
        is_known = all(shape.is_fully_defined() for shape in shapes)
        sizes = [shape.num_elements() for shape in shapes] if is_known else [0]
        # (m k) (k n) (m n) = (m k n) squared.
        return 2.0 * math.sqrt(math.prod(sizes))
    return 0.0
