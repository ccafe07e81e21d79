"""The forward pass alone, of an evaluation or a prediction, as a step that can be planned. Pure."""

from bisect import bisect, bisect_left
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tfunet.graph.step import ALIASES, Trace, fused, root


def divided(trace: Trace) -> Trace:
    """Return a forward pass whose second part stands for the backward pass of a training step.

    What the first part makes and the second reads can then be swapped and computed again, and
    large ops of the second run in order. It begins where most bytes wait for longest: in a U-Net on
    the way to the bottleneck, where all skip connections do. Where no tensor ever waits, there is
    no second part. A step with gradients of its own stays as it is.
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
    """Return a forward pass in which all that lies inside of what runs as one op is so named.

    That of a bias and an activation too: parted, they give other last bits. The op's result is
    there while it reads what may go when it is done, and not only, as in training, what stays.
    """
    tensors = list(trace.tensors)
    for op, reader in reversed(fused(trace).items()):
        (inner,), (result,) = trace.ops[op].outputs, trace.ops[reader].outputs
        num_bytes = tensors[result].num_bytes
        tensors[inner] = replace(tensors[inner], is_inner=True, num_bytes=num_bytes)
    return replace(trace, tensors=tuple(tensors))


def waiting(trace: Trace) -> np.ndarray:
    """Return, before each op, how much waits there, (ops,): the bytes of each tensor that was made
    or read before and is read again after, times the ops in between, which do not touch it."""
    touched: dict[int, list[int]] = {}
    work = [position for position, op in enumerate(trace.ops) if op.kind not in ALIASES]
    for position in work:
        op = trace.ops[position]
        for one in {root(trace, tensor) for tensor in (*op.inputs, *op.outputs)}:
            touched.setdefault(one, []).append(position)
    found = np.zeros(len(trace.ops), np.int64)
    for tensor, positions in touched.items():
        for before, after in pairwise(positions):
            between = bisect_left(work, after) - bisect(work, before)
            found[before + 1 : after + 1] += trace.tensors[tensor].num_bytes * between
    return found
