"""Which gradients of activations can read the activation's output instead of its input. Pure.

The input then need not stay for the backward pass, and the activation takes over its memory. The
output stays anyway where the gradient of the next convolution reads it.
"""

from collections.abc import Collection
from dataclasses import replace

from tfunet.graph.step import Trace, root


def from_outputs(trace: Trace, threshold_bytes: int) -> list[str]:
    """Return the names of the gradients of activations that save memory by reading the output.

    These are the gradients whose input nothing else in the backward pass reads, and whose output
    something else there does read, so that the output stays in any case.
    """
    readers: dict[int, set[int]] = {}  # ops of the backward pass, by the tensor that they read
    for index, op in enumerate(trace.ops):
        for read in op.inputs if op.is_backward else ():
            readers.setdefault(root(trace, read), set()).add(index)
    gradients = []
    for index, op in enumerate(trace.ops):
        if op.instead < 0:
            continue
        tensor = trace.tensors[op.inputs[1]]
        source = root(trace, op.inputs[1])
        is_large = trace.tensors[source].producer >= 0
        is_large = is_large and tensor.num_bytes >= max(1, threshold_bytes)
        is_result = trace.tensors[source].is_result or tensor.is_result
        is_only_reader = readers[source] == {index}
        if is_large and not is_result and is_only_reader and readers.get(root(trace, op.instead)):
            gradients.append(op.name)
    return gradients


def reading_outputs(trace: Trace, gradients: Collection[str]) -> Trace:
    """Return the step in which the named gradients read the outputs of their activations."""
    if not gradients:
        return trace
    ops = list(trace.ops)
    parted = set()
    for index, op in enumerate(ops):
        if op.name in gradients:
            parted.add(op.inputs[1])
            ops[index] = replace(op, inputs=(op.inputs[0], op.instead, *op.inputs[2:]))
    return replace(trace, ops=tuple(ops), parted=frozenset(parted))
