"""Measures how steady the machine is: times a fixed computation on all cores at once."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tfunet.machine.cores import usable_cores

ROUNDS = 80
# 200,000 sines take some milliseconds: long enough for the clock, and short enough to see bursts of
# other programs.
SIZE = 200_000
# A machine is not quiet if its fixed computation varies or drifts by more than this.
NOISY = 0.10


def measure_noise(rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter) -> dict:
    """Return the median seconds of the computation and its spread, over `rounds` repetitions.

    Every core computes the same, and a round lasts until the last core is done, so that another
    program on any core shows. `spread` is (90th - 10th percentile) / median.
    """
    import numpy as np

    cores = len(usable_cores())
    values = np.linspace(0.0, 100.0, SIZE)
    outputs = [np.empty(SIZE) for _ in range(cores)]
    seconds = []
    # NumPy frees the interpreter lock while it computes, so the threads run side by side.
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(lambda out: np.sin(values, out=out), outputs))
        for _ in range(rounds):
            since = clock()
            list(pool.map(lambda out: np.sin(values, out=out), outputs))
            seconds.append(clock() - since)
    low, median, high = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    measured: dict[str, Any] = {
        "median_seconds": median,
        "spread": (high - low) / median,
        "cores": cores,
        "unix_seconds": time.time(),
    }
    return measured


def unsteadiness(measured: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the largest spread, and by which share the median changed; 0 for one that is quiet.

    A share above NOISY is not quiet; others are returned as 0.
    """
    measured = list(measured)
    spread = max((float(probe.get("spread", 0)) for probe in measured), default=0.0)
    medians = [float(probe.get("median_seconds", 0)) for probe in measured]
    change = max(medians) / min(medians) - 1 if medians and min(medians) > 0 else 0.0
    return spread if spread > NOISY else 0.0, change if change > NOISY else 0.0


def was_quiet(measured: Iterable[Mapping[str, Any]]) -> bool | None:
    """Return whether the machine was quiet; None if nothing was measured."""
    measured = list(measured)
    return not any(unsteadiness(measured)) if measured else None
