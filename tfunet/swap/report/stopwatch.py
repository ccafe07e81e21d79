"""Times the steps of training as a Keras callback sees them. Imports no TensorFlow."""

import statistics
import time
from typing import final

from tfunet.timing.warm_up import steady_seconds


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
