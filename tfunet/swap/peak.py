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
    is_op = action.kind in ("op", "again")
    name = (trace.ops if is_op else trace.tensors)[action.index].name
    if is_op:
        sizes[f"scratch of {name}"] = scratch.get(action.index, 0)
    # Beside it, those that are swapped in fewer bits have that form.
    sizes["tensors in fewer bits"] = int(in_use[at]) - sum(sizes.values())
    return name, largest(sizes)
