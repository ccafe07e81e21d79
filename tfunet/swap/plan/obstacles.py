"""Why no plan meets a budget, and what would help. Pure."""

from collections.abc import Collection, Mapping

from tfunet.graph.step import ALIASES, Trace
from tfunet.swap.plan.peak import largest
from tfunet.swap.plan.plan import Way

# TensorFlow's fused batch normalisation: neither it nor its gradient can run in slabs.
BATCH_NORMALISATION = "FusedBatchNorm"
ALWAYS = ("a smaller batch or patch", "fewer filters")
SHORTER_NUMBERS = "mixed_bfloat16"
OTHER_NORMALISATION = (
    "group or instance normalisation (TensorFlow's batch normalisation cannot run in slabs)"
)
SPLITTING = 'splitting tensors too (allowed=["swap", "recompute", "split"])'


def working_sets(trace: Trace, scratch: Mapping[int, int]) -> dict[str, int]:
    """Return the bytes of the inputs, outputs and scratch of each op, by its name."""
    sizes = {}
    for index, op in enumerate(trace.ops):
        touched = {*op.inputs, *(() if op.kind in ALIASES else op.outputs)}
        num_bytes = sum(trace.tensors[tensor].num_bytes for tensor in touched)
        sizes[op.name] = num_bytes + scratch.get(index, 0)
    return sizes


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
