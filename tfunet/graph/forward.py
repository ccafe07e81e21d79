"""Splits a forward pass alone, of an evaluation or a prediction, into two parts."""

from bisect import bisect, bisect_left
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tfunet.graph.step import ALIASES, Trace, fused, root


def divided(trace: Trace) -> Trace:
    """Return a forward pass whose second part stands for the backward pass of a training step.

    What is done to training steps, such as computing tensors again, can then be done to it. The
    second part begins where most bytes wait for longest: in a U-Net on the way to the bottleneck,
    where all skip connections wait. If no tensor ever waits, there is no second part. A step with
    gradients stays as it is.
    """
    trace = replace(trace, is_forward=True)
    if any(op.is_backward for op in trace.ops):
        return trace
    trace = _with_inner(trace)
    waits = waiting(trace)
    for op, reader in fused(trace).items():
        waits[op + 1 : reader + 1] = 0  # They run as one.
    if not waits.any():
        return trace
    begin = int(waits.argmax())
    ops = (replace(op, is_backward=index >= begin) for index, op in enumerate(trace.ops))
    return replace(trace, ops=tuple(ops))


def _with_inner(trace: Trace) -> Trace:
    """Return a forward pass in which all tensors inside of fused ops are marked as inner.

    The tensor between a bias and an activation is inner, too: parted, the two give other last bits.
    It keeps its bytes, because the result is there while the fused op still reads its input, which
    may be freed after it. (In training the input stays anyway.)
    """
    tensors = list(trace.tensors)
    for op, reader in reversed(fused(trace).items()):
        (inner,), (result,) = trace.ops[op].outputs, trace.ops[reader].outputs
        num_bytes = tensors[result].num_bytes
        tensors[inner] = replace(tensors[inner], is_inner=True, num_bytes=num_bytes)
    return replace(trace, tensors=tuple(tensors))


def waiting(trace: Trace) -> np.ndarray:
    """Return how much waits before each op, (ops,).

    A tensor waits from an op that makes or reads it to the next one that reads it. It counts with
    its bytes times the number of ops between the two.
    """
    touched: dict[int, list[int]] = {}
    work = [position for position, op in enumerate(trace.ops) if op.kind not in ALIASES]
    for position in work:
        op = trace.ops[position]
        for tensor in {root(trace, index) for index in (*op.inputs, *op.outputs)}:
            touched.setdefault(tensor, []).append(position)
    waits = np.zeros(len(trace.ops), np.int64)
    for tensor, positions in touched.items():
        for before, after in pairwise(positions):
            between = bisect_left(work, after) - bisect(work, before)
            waits[before + 1 : after + 1] += trace.tensors[tensor].num_bytes * between
    return waits
