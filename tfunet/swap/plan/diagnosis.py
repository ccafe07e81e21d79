"""Why a step needs so much memory: its peak, its largest ops, and what would help. Pure."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tfunet.graph.step import ALIASES, Trace
from tfunet.swap.plan.plan import Way
from tfunet.swap.plan.schedule import Action, held

LARGEST = 12
# TensorFlow's fused batch normalisation: neither it nor its gradient can run in slabs.
BATCH_NORMALISATION = "FusedBatchNorm"
ALWAYS = ("a smaller batch or patch", "fewer filters")
SHORTER_NUMBERS = "mixed_bfloat16"
OTHER_NORMALISATION = (
    "group or instance normalisation (TensorFlow's batch normalisation cannot run in slabs)"
)
SPLITTING = 'splitting tensors too (allowed=["swap", "recompute", "split"])'


def at_peak(
    trace: Trace, actions: Sequence[Action], in_use: np.ndarray, scratch: Mapping[int, int]
) -> tuple[str, dict[str, int]]:
    """Return the name of the op that runs, or the tensor that is copied, at the peak, and the
    bytes of the largest tensors held then, by name, the largest first.

    Scratch memory (`tfunet.swap.plan.schedule.memory`) is listed as "scratch of" its op.
    """
    if not len(actions):
        return "", {}
    at = int(in_use.argmax())
    action = actions[at]
    sizes = {trace.tensors[index].name: size for index, size in held(trace, actions, at).items()}
    is_op = action.kind in ("op", "again")
    name = (trace.ops if is_op else trace.tensors)[action.index].name
    if is_op:
        sizes[f"scratch of {name}"] = scratch.get(action.index, 0)
    return name, largest(sizes)


def largest(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the few largest of some sizes, the largest first."""
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return {name: sizes[name] for name in names[:LARGEST] if sizes[name]}


def working_sets(trace: Trace, scratch: Mapping[int, int]) -> dict[str, int]:
    """Return the bytes of the inputs, outputs and scratch of each op, by its name."""
    sizes = {}
    for index, op in enumerate(trace.ops):
        touched = {*op.inputs, *(() if op.kind in ALIASES else op.outputs)}
        num_bytes = sum(trace.tensors[tensor].num_bytes for tensor in touched)
        sizes[op.name] = num_bytes + scratch.get(index, 0)
    return sizes


def largest_op(trace: Trace, scratch: Mapping[int, int]) -> tuple[int, str]:
    """Return the most bytes that a single op reads, makes and needs at once, and its name."""
    sizes = working_sets(trace, scratch)
    name = max(sizes, key=lambda op: sizes[op], default="")
    return sizes.get(name, 0), name


def in_the_way(
    trace: Trace,
    *,
    budget_bytes: int,
    scratch: Mapping[int, int],
    held: Collection[str],
    allowed: Collection[Way],
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the largest of the ops that alone exceed the budget, with bytes, and what would help.

    `held` names the largest tensors at the peak, which are to blame where no op is.
    """
    ops = largest(
        {name: size for name, size in working_sets(trace, scratch).items() if size > budget_bytes}
    )
    tensors = {at for at, tensor in enumerate(trace.tensors) if tensor.name in held}
    concerned = [
        op
        for op in trace.ops
        if op.name in ops or not tensors.isdisjoint((*op.inputs, *op.outputs))
    ]
    advice = [*ALWAYS]
    # In mixed precision some ops, such as the loss, stay at 32 bits.
    if all(op.item_bytes != 2 for op in trace.ops):
        advice.append(SHORTER_NUMBERS)
    if "split" not in allowed:
        advice.append(SPLITTING)
    elif any(op.kind.startswith(BATCH_NORMALISATION) for op in concerned):
        advice.append(OTHER_NORMALISATION)
    return ops, tuple(advice)
