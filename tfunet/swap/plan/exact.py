"""Which swapped tensors must come back as they were. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tfunet.graph.step import ALIASES, Trace
from tfunet.swap.plan.plan import Decision
from tfunet.swap.plan.schedule import Copy, schedule
from tfunet.swap.plan.split import Cut, cut

# Ops that look for the numbers of one input in the other. Rounded, they are not there: the gradient
# of a pooling in 3D is lost but for half a percent, and that of a maximum is divided by 0.
COMPARING = frozenset(
    {
        "ApproximateEqual",
        "Equal",
        "MaxPool3DGrad",
        "MaxPool3DGradGrad",
        "MaxPoolGrad",
        "MaxPoolGradGrad",
        "MaxPoolGradGradV2",
        "MaxPoolGradV2",
        "NotEqual",
    }
)
COMPARED_INPUTS = 2
# Of these, an output has the numbers of the inputs, in other places.
MOVING = ALIASES | frozenset(
    {
        "BroadcastTo",
        "Cast",
        "ConcatV2",
        "Pad",
        "PadV2",
        "Slice",
        "Split",
        "SplitV",
        "StridedSlice",
        "Tile",
        "Transpose",
    }
)


def uncompressed(trace: Trace, tensors: Collection[int]) -> Trace:
    """Return a step some of whose tensors are swapped as they are."""
    if not tensors:
        return trace
    found = list(trace.tensors)
    for one in tensors:
        found[one] = replace(found[one], compressed_bytes=0)
    return replace(trace, tensors=tuple(found))


def without_compared(trace: Trace) -> Trace:
    """Return a step in which what ops compare with something else is swapped as it is.

    What is computed again from other tensors may be compared too: see `compared`.
    """
    away: dict[int, Decision] = {
        index: "swap"
        for index, one in enumerate(trace.tensors)
        if one.compressed_bytes and trace.ops[one.producer].kind not in ALIASES
    }
    return uncompressed(trace, compared(trace, cut(trace, ()), away)) if away else trace


def compared(whole: Trace, found: Cut, decisions: Mapping[int, Decision]) -> frozenset[int]:
    """Return the compressed tensors that an op compares with another tensor, or something that is
    computed again from them.

    Args:
        whole: The step before it was cut.
        found: The step.
        decisions: See `tfunet.swap.plan.schedule.schedule`.
    """
    tensors = found.trace.tensors
    if not any(tensors[one].compressed_bytes for one in decisions):
        return frozenset()
    comparing = {index for index, op in enumerate(found.trace.ops) if op.kind in COMPARING}
    for last, chain in found.chains.items():
        if any(whole.ops[one].kind in COMPARING for one in chain.ops):
            comparing.add(last)
    # Of a tensor that is read: the compressed ones that its numbers come from.
    sources: dict[Copy, frozenset[int]] = {}
    result: frozenset[int] = frozenset()
    for action in schedule(found.trace, decisions):
        if action.kind == "in" and tensors[action.index].compressed_bytes:
            sources[action.outputs[0]] = frozenset({action.index})
        elif action.kind in ("op", "again"):
            read = [sources.get(one, frozenset()) for one in action.inputs]
            if not any(read):
                continue
            if action.index in comparing:
                count = None if action.index in found.chains else COMPARED_INPUTS
                result = result.union(*read[:count])
            if action.kind == "again" or found.trace.ops[action.index].kind in MOVING:
                sources |= dict.fromkeys(action.outputs, frozenset().union(*read))
    return result
