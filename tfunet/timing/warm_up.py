"""Which steps of a run count for its speed: those after its warm-up. Pure."""

import statistics
from collections.abc import Iterable, Sequence

BATCH_STEPS = 5
# The spread of fewer says nothing: one batch alone has none.
LEAST_BATCHES = 6


def warm_up_steps(seconds: Sequence[float]) -> int:
    """Return how many of the first steps are not yet as the others are; at most half of them.

    The marginal standard error rule, MSER-5 (White 1997, doi 10.1177/003754979706900601): those
    are left out without which the mean of the rest is known best. Of each five steps the median
    is taken instead of the mean, since one step that a neighbour slows is no warm-up.
    """
    count = len(seconds) // BATCH_STEPS
    batches = [
        statistics.median(seconds[BATCH_STEPS * at : BATCH_STEPS * (at + 1)]) for at in range(count)
    ]
    if count < LEAST_BATCHES:
        return 0

    def error(left_out: int) -> float:
        rest = batches[left_out:]
        return statistics.pvariance(rest) / len(rest)

    return BATCH_STEPS * min(range(count // 2 + 1), key=error)


def steady_seconds(
    step_seconds: Sequence[float], traced_steps: Iterable[int], *, first: int = 1
) -> tuple[list[float], int]:
    """Return the times of the steps after the warm-up, and how many were left out for that.

    Steps that traced a graph, from 1, and those before `first` count for neither.
    """
    traced = set(traced_steps)
    untraced = [
        value for step, value in enumerate(step_seconds, 1) if step >= first and step not in traced
    ]
    warm_up = warm_up_steps(untraced)
    return untraced[warm_up:], warm_up
