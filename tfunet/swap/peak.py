"""What a step holds where it needs most memory. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfunet.swap.measured import largest
from tfunet.swap.schedule import Action, held
from tfunet.swap.steps import Trace


def at_peak(
    trace: Trace, actions: Sequence[Action], in_use: np.ndarray, scratch: Mapping[int, int]
) -> tuple[str, dict[str, int]]:
    """Return the op, or the tensor that is copied, of the peak, and the largest that is held then.

    Args:
        trace: The step.
        actions: Of it, in order.
        in_use: Bytes in use while each of them runs.
        scratch: See `tfunet.swap.schedule.memory`.

    Returns tensors by name, the largest first; the scratch of the op is named after it.
    """
    if not len(actions):
        return "", {}
    at = int(in_use.argmax())
    action = actions[at]
    sizes = {trace.tensors[one].name: size for one, size in held(trace, actions, at).items()}
    if action.kind not in ("op", "again"):
        return trace.tensors[action.index].name, largest(sizes)
    op = trace.ops[action.index]
    sizes[f"scratch of {op.name}"] = scratch.get(action.index, 0)
    return op.name, largest(sizes)
