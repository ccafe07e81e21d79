"""Says whether a run's loss has left its range. Imports no TensorFlow."""

import math

# A loss of the last epoch that is so many times that of the first step has diverged. The first step
# may have been an easy one, without foreground or with trained weights, so it counts as no less
# than the loss of a network that knows nothing of two classes, rounded up.
DIVERGED, LEAST = 10.0, 1.0
ADVICE = (
    "Train anew, in another folder, with a tenth of the learning rate; tfunet rate finds one. "
    "optimizer_options.clipnorm = 1.0 helps against single large steps."
)


def has_diverged(first: float, last: float) -> bool:
    """Return whether the loss of the last epoch is not finite, or far above the first step's."""
    return not math.isfinite(last) or (
        math.isfinite(first) and last > DIVERGED * max(abs(first), LEAST)
    )


def warning(first: float, last: float) -> str:
    """Return what to say of a diverged loss; "" for another one."""
    if not has_diverged(first, last):
        return ""
    return (
        f"The loss diverged: it was {first:.4g} in the first step and {last:.4g} in the last "
        f"epoch. The network is of no use. {ADVICE}"
    )
