"""Which ops cut rows off a tensor without a copy, and how large what other processes send is."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import tensorflow as tf

from tfunet.graph import reader
from tfunet.graph.passes import COLLECTIVE
from tfunet.graph.step import ALIASES, Trace

# Ops that cut a tensor: which of their inputs is the tensor, and which the axis.
SPLITS = {"Split": (1, 0), "SplitV": (0, 2)}
# Rows are a view if they begin and end at multiples of this.
ALIGNED_BYTES = 64


def with_shared_rows(trace: Trace, ops: Sequence[tf.Operation]) -> Trace:
    """Return the trace of these ops where what shows rows of a tensor is a view of it.

    A tensor of unknown shape, as other processes send, is as large as what is taken of it.
    """
    traced, tensors = list(trace.ops), list(trace.tensors)
    for at, op in enumerate(ops):
        if op.type == "CollectiveGatherV2":
            # It makes the tensors of all processes, also where nothing of them is read.
            group_size = int(tf.get_static_value(op.inputs[1]) or 1)
            num_bytes = group_size * reader.num_bytes(op.inputs[0])
            made = traced[at].outputs[0]
            tensors[made] = replace(tensors[made], num_bytes=num_bytes)
        if not op.inputs or not (op.type in ALIASES or _cuts(op)):
            continue
        source, _ = SPLITS.get(op.type, (0, 0))
        cut = traced[at].inputs[source]
        if tensors[cut].producer >= 0 and not op.inputs[source].shape.is_fully_defined():
            num_bytes = sum(tensors[made].num_bytes for made in traced[at].outputs)
            num_bytes = max(num_bytes, tensors[cut].num_bytes)
            tensors[cut] = replace(tensors[cut], num_bytes=num_bytes)
        if _cuts(op) and _is_view(op):
            others = (tensor for place, tensor in enumerate(traced[at].inputs) if place != source)
            traced[at] = replace(
                traced[at],
                kind="Identity",
                inputs=(cut, *others),
                # Another order of inputs than that of the op cannot be made again.
                is_repeatable=traced[at].is_repeatable and source == 0,
            )
    return replace(trace, ops=tuple(traced), tensors=tuple(tensors))


def largest_message(trace: Trace) -> int:
    """Return the bytes of the largest tensor that an exchange makes."""
    exchanges = (op for op in trace.ops if op.kind.startswith(COLLECTIVE))
    made = (tensor for op in exchanges for tensor in op.outputs)
    return max((trace.tensors[tensor].num_bytes for tensor in made), default=0)


def _cuts(op: tf.Operation) -> bool:
    return op.type == "StridedSlice" or op.type in SPLITS


def _is_view(op: tf.Operation) -> bool:
    if op.type in SPLITS:
        _, axis = SPLITS[op.type]
        return tf.get_static_value(op.inputs[axis]) == 0 and all(map(_is_aligned, op.outputs))
    before, after = op.inputs[0].shape, op.outputs[0].shape
    begin, strides = tf.get_static_value(op.inputs[1]), tf.get_static_value(op.inputs[3])
    if begin is None or strides is None or (strides != 1).any():
        return False
    if not after.is_fully_defined():
        return False
    if before.is_fully_defined() and before.num_elements() == after.num_elements():
        return True
    if after.rank == 0 or before.rank != after.rank or before[1:] != after[1:]:
        return False
    first_bytes = int(begin[0]) * prod(after[1:]) * op.outputs[0].dtype.size
    return _is_aligned(op.outputs[0]) and first_bytes % ALIGNED_BYTES == 0


def _is_aligned(rows: tf.Tensor) -> bool:
    if not rows.shape.is_fully_defined() or rows.shape.rank == 0:
        return False
    unit = rows.shape if rows.shape.rank == 1 else rows.shape[1:]
    return prod(unit) * rows.dtype.size % ALIGNED_BYTES == 0
