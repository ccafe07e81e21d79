"""Which steps of a run count for its speed, those after its warm-up, and a stopwatch for them."""

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import final

BATCH_STEPS = 5
# The spread of fewer says nothing: one batch alone has none.
LEAST_BATCHES = 6


def warm_up_steps(seconds: Sequence[float]) -> int:
    """Return how many of the first steps are not yet as the others are; at most half of them.

    The marginal standard error rule, MSER-5 (White 1997, doi 10.1177/003754979706900601), leaves
    out the steps without which the mean of the rest is known best. It takes the mean of each five
    steps; here it is the median, since one step that a neighbour slows is no warm-up.
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


@final
class Stopwatch:
    """Times steps; those during which a plan was made are not steady."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._traced: list[int] = []
        self._begin = 0.0
        self._num_plans = 0

    def begin(self, num_plans: int) -> None:
        """Begin a step; so many plans have been made before it."""
        self._begin, self._num_plans = time.perf_counter(), num_plans

    def end(self, num_plans: int, *, steps: int = 1) -> None:
        """End the step, or several steps that Keras ran in one call."""
        self._seconds.append((time.perf_counter() - self._begin) / steps)
        if num_plans > self._num_plans:
            self._traced.append(len(self._seconds))

    def median_seconds(self) -> tuple[float, int] | None:
        """Return (median of the steady steps, their number); None if there is none."""
        steady, _ = steady_seconds(self._seconds, self._traced)
        return (statistics.median(steady), len(steady)) if steady else None
