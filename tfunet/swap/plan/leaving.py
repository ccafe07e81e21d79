"""What leaves a device of weights and of optimizers' states, beside tensors of a step. Pure."""

from typing import Literal

Leaving = Literal["auto", "none", "state", "weights"]
# The share of a budget that weights, gradients and states may take; the rest is for activations.
SHARE = 3 / 4


def chosen(
    *, weight_bytes: int, trained_bytes: int, together_bytes: int, slots: int, budget_bytes: int
) -> Leaving:
    """Return what leaves so that the rest takes no more than a share of the budget.

    Args:
        weight_bytes: All weights, those that are not trained included.
        trained_bytes: Those that are, which is the size of all gradients, too.
        together_bytes: Gradients that are on the device together if states leave: the largest one
            where each leaves when it is made, or all.
        slots: States that the optimizer keeps of each number.
    """
    room = SHARE * budget_bytes
    if weight_bytes + trained_bytes * (1 + slots) <= room:
        return "none"
    return "state" if weight_bytes + together_bytes <= room else "weights"
