"""How near a run's steps come to the synthetic bound: the same steps, their data in memory.

Blocks of steps on real and on synthetic data take turns after the last epoch, so that both meet
the same machine, and the model's variables are put back. The time that a step waits for its data
would not tell: on a CPU, samples in the making slow the step down without making it wait.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras

from tfunet.backend import Backend
from tfunet.data.pipeline import PREFETCHED_BATCHES, TrainingPipeline

TIMED_STEPS = 4
# The first steps of a block take what was made ahead, or run beside the making of it.
BLOCK_STEPS = PREFETCHED_BATCHES + TIMED_STEPS
# What the measurement may cost, as a share of the run's steps; a short run measures one pair.
COST = 0.05
MAX_PAIRS = 5
# Closer to 1 than noise.
NO_WAIT = 0.98


def num_pairs(steps: int) -> int:
    """Return how many pairs of blocks a run of so many steps measures."""
    return max(1, min(MAX_PAIRS, int(COST * steps / (2 * BLOCK_STEPS))))


def share(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the median share of the synthetic bound that steps reach; None without pairs.

    About 1: the devices never wait. Noise of the machine may take it above.
    """
    return statistics.median(bound / real for real, bound in pairs) if pairs else None


def share_line(pairs: Sequence[tuple[float, float]]) -> str:
    """Return what a person reads of `share`."""
    reached = share(pairs) or 0.0
    if reached >= NO_WAIT:
        return "Input: steps are as fast as with data in memory."
    return f"Input: steps reach {reached:.2f} of those with data in memory."


def paired_seconds(
    timed_step: Callable[[Any], float],
    backend: Backend,
    pipeline: TrainingPipeline,
    variables: Sequence[Any],
    *,
    steps: int,
) -> list[tuple[float, float]]:
    """Return pairs of (median seconds of a step, of a synthetic step); called by all together.

    Args:
        timed_step: Makes one optimizer step with an iterator and returns its seconds.
        backend: Feeds.
        pipeline: Of the run that is over.
        variables: What the steps change; they have their values again afterwards.
        steps: Optimizer steps of the run.
    """
    pairs = num_pairs(steps)
    last = pipeline.last_step
    more = replace(pipeline, first_step=last, last_step=last + pairs * BLOCK_STEPS)
    real = iter(backend.feed(more))
    synthetic = iter(backend.feed(replace(more, synthetic=True)))
    values = [keras.ops.convert_to_numpy(one.value) for one in variables]

    def block(iterator: Any) -> float:
        seconds = [timed_step(iterator) for _ in range(BLOCK_STEPS)]
        return statistics.median(seconds[PREFETCHED_BATCHES:])

    try:
        return [(block(real), block(synthetic)) for _ in range(pairs)]
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
