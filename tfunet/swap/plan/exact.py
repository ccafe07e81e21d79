"""Which swapped tensors must not be compressed, since an op compares their numbers. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tfunet.graph.step import ALIASES, Trace
from tfunet.swap.plan import split
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.schedule import Copy, schedule

# Ops that look for the numbers of one input in the other. If one is rounded, they are not found:
# the gradient of a pooling in 3D then loses all but half a percent, and that of a maximum is
# divided by 0.
COMPARING = frozenset(
    (
        *("ApproximateEqual", "Equal", "MaxPool3DGrad", "MaxPool3DGradGrad", "MaxPoolGrad"),
        *("MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPoolGradV2", "NotEqual"),
    )
)
COMPARED_INPUTS = 2
# The output of these ops has the numbers of the inputs, in other places.
MOVING = ALIASES | frozenset(
    (
        *("BroadcastTo", "Cast", "ConcatV2", "Pad", "PadV2", "Slice", "Split", "SplitV"),
        *("StridedSlice", "Tile", "Transpose"),
    )
)


def uncompressed(trace: Trace, indices: Collection[int]) -> Trace:
    """Return the step with some tensors, by index, swapped without compression."""
    if not indices:
        return trace
    tensors = list(trace.tensors)
    for tensor in indices:
        tensors[tensor] = replace(tensors[tensor], compressed_bytes=0)
    return replace(trace, tensors=tuple(tensors))


def without_compared(trace: Trace) -> Trace:
    """Return the step in which no tensor that an op compares directly is compressed.

    Tensors that are recomputed from compressed ones may be compared too: see `compared`.
    """
    all_swapped: dict[int, Decision] = {
        index: "swap"
        for index, tensor in enumerate(trace.tensors)
        if tensor.compressed_bytes and trace.ops[tensor.producer].kind not in ALIASES
    }
    if not all_swapped:
        return trace
    return uncompressed(trace, compared(split.cut(trace, ()), all_swapped))


def compared(cut: split.Cut, decisions: Mapping[int, Decision]) -> frozenset[int]:
    """Return the compressed tensors that an op compares with another tensor, directly or after
    something was recomputed from them.
    """
    tensors = cut.trace.tensors
    if not any(tensors[tensor].compressed_bytes for tensor in decisions):
        return frozenset()
    comparing = {index for index, op in enumerate(cut.trace.ops) if op.kind in COMPARING}
    for last, chain in cut.chains.items():
        if any(cut.whole.ops[index].kind in COMPARING for index in chain.ops):
            comparing.add(last)
    # The compressed tensors that the numbers of each copy come from.
    sources: dict[Copy, frozenset[int]] = {}
    result: frozenset[int] = frozenset()
    for action in schedule(cut.trace, decisions):
        if action.kind == "in" and tensors[action.index].compressed_bytes:
            sources[action.outputs[0]] = frozenset({action.index})
        elif action.kind in ("op", "again"):
            read = [sources.get(copy, frozenset()) for copy in action.inputs]
            if not any(read):
                continue
            if action.index in comparing:
                count = None if action.index in cut.chains else COMPARED_INPUTS
                result = result.union(*read[:count])
            if action.kind == "again" or cut.trace.ops[action.index].kind in MOVING:
                sources |= dict.fromkeys(action.outputs, frozenset().union(*read))
    return result
