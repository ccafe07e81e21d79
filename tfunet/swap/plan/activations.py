"""Gradients of activations that read the activation's output in the place of its input. Pure.

What an activation reads need not stay for the backward pass then, and the activation takes over its
memory. The output stays anyway where the gradient of the next convolution reads it.
"""

from collections.abc import Collection
from dataclasses import replace

from tfunet.graph.step import Trace, root


def from_outputs(trace: Trace, threshold_bytes: int) -> list[str]:
    """Return the gradients of activations, by name, with which a step needs less memory if they
    read the output: nothing else of the backward pass reads the input, and something else does read
    the output, which stays for it."""
    read: dict[int, set[int]] = {}
    for index, op in enumerate(trace.ops):
        for one in op.inputs if op.is_backward else ():
            read.setdefault(root(trace, one), set()).add(index)
    found = []
    for index, op in enumerate(trace.ops):
        if op.instead < 0:
            continue
        tensor = trace.tensors[op.inputs[1]]
        own = trace.tensors[root(trace, op.inputs[1])]
        is_large = own.producer >= 0 and tensor.num_bytes >= max(1, threshold_bytes)
        is_known = not (own.is_result or tensor.is_result)
        is_alone = read[root(trace, op.inputs[1])] == {index}
        if is_large and is_known and is_alone and read.get(root(trace, op.instead)):
            found.append(op.name)
    return found


def reading_outputs(trace: Trace, gradients: Collection[str]) -> Trace:
    """Return a step in which these gradients, by name, read the outputs of their activations."""
    if not gradients:
        return trace
    ops = list(trace.ops)
    parted = set()
    for index, op in enumerate(ops):
        if op.name in gradients:
            parted.add(op.inputs[1])
            ops[index] = replace(op, inputs=(op.inputs[0], op.instead, *op.inputs[2:]))
    return replace(trace, ops=tuple(ops), parted=frozenset(parted))
