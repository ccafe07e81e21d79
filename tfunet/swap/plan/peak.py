"""What a step holds where it needs most memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfunet.graph.step import Trace
from tfunet.swap.plan.schedule import Action, held

LARGEST = 12


def at_peak(
    trace: Trace, actions: Sequence[Action], in_use: np.ndarray, scratch: Mapping[int, int]
) -> tuple[str, dict[str, int]]:
    """Return the op, or the tensor that is copied, of the peak, and the largest that is held then.

    Args:
        trace: The step.
        actions: Of it, in order.
        in_use: Bytes in use while each of them runs.
        scratch: See `tfunet.swap.plan.schedule.memory`.

    Returns tensors by name, the largest first; the scratch of the op is named after it.
    """
    if not len(actions):
        return "", {}
    at = int(in_use.argmax())
    action = actions[at]
    sizes = {trace.tensors[one].name: size for one, size in held(trace, actions, at).items()}
    is_op = action.kind in ("op", "again")
    name = (trace.ops if is_op else trace.tensors)[action.index].name
    if is_op:
        sizes[f"scratch of {name}"] = scratch.get(action.index, 0)
    # Beside it, those that are swapped in fewer bits have that form.
    sizes["tensors in fewer bits"] = int(in_use[at]) - sum(sizes.values())
    return name, largest(sizes)


def largest(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the few largest of some sizes, the largest first."""
    names = sorted(sizes, key=lambda one: (-sizes[one], one))
    return {one: sizes[one] for one in names[:LARGEST] if sizes[one]}
