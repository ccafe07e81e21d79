"""Which tensors a step holds at its peak of memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfunet.graph.step import Trace
from tfunet.swap.plan.schedule import Action, held

LARGEST = 12


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
    # Compressed tensors take these bytes beside their full form.
    sizes["tensors in fewer bits"] = int(in_use[at]) - sum(sizes.values())
    return name, largest(sizes)


def largest(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the few largest of some sizes, the largest first."""
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    return {name: sizes[name] for name in names[:LARGEST] if sizes[name]}
