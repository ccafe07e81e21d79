"""How near a run's steps come to the synthetic bound: the same steps, their data in memory.

Blocks of steps on real and on synthetic data take turns after the last epoch, so that both meet
the same machine, and the model's variables are put back. The time that a step waits for its data
would not tell: on a CPU, samples in the making slow the step down without making it wait.

To say where efficiency is lost, steps that do not average gradients take turns with them, each
process at its own pace, and the average is timed alone.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.data.pipeline import PREFETCHED_BATCHES, TrainingPipeline
from tfunet.files.atomic import WriteError

TIMED_STEPS = 4
# The first steps of a block take what was made ahead, or run beside the making of it.
BLOCK_STEPS = PREFETCHED_BATCHES + TIMED_STEPS
# What the measurement may cost, as a share of the run's steps; a short run measures one pair.
COST = 0.05
MAX_PAIRS = 5
# Closer to 1 than noise.
NO_WAIT = 0.98
# Who asks for the parts of a step asks for more than one turn.
PARTS_TURNS = 3
AVERAGES = 10


class NoRoomError(WriteError):
    """Large-model support has no room on the disk for a step of its own; all processes know."""


def num_pairs(steps: int) -> int:
    """Return how many pairs of blocks a run of so many steps measures."""
    return max(1, min(MAX_PAIRS, int(COST * steps / (2 * BLOCK_STEPS))))


def share(pairs: Sequence[tuple[float, ...]]) -> float | None:
    """Return the median share of the synthetic bound that steps reach; None without pairs.

    About 1: the devices never wait. Noise of the machine may take it above.
    """
    return statistics.median(bound / real for real, bound, *_ in pairs) if pairs else None


def share_line(pairs: Sequence[tuple[float, ...]]) -> str:
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
    alone_step: Callable[[Any], float] | None = None,
) -> list[tuple[float, ...]]:
    """Return pairs of (median seconds of a step, of a synthetic step); called by all together.

    With `alone_step` each pair has a third, that of a synthetic step that averages nothing.

    Args:
        timed_step: Makes one optimizer step with an iterator and returns its seconds.
        backend: Feeds.
        pipeline: Of the run that is over.
        variables: What the steps change; they have their values again afterwards.
        steps: Optimizer steps of the run.
        alone_step: As `timed_step`, without waiting for other replicas.

    Raises NoRoomError, in all processes alike, where `alone_step` cannot be traced in one of them.
    """
    pairs = num_pairs(steps) if alone_step is None else max(PARTS_TURNS, num_pairs(steps))
    last = pipeline.last_step
    more = replace(pipeline, first_step=last, last_step=last + pairs * BLOCK_STEPS)

    def fed(data: TrainingPipeline) -> Any:
        return iter(backend.feed(data))

    blocks = [(timed_step, fed(more)), (timed_step, fed(replace(more, synthetic=True)))]
    if alone_step is not None:
        blocks.append(
            (alone_step, fed(replace(more, synthetic=True, last_step=more.last_step + 1)))
        )

    def median_seconds(step: Callable[[Any], float], iterator: Any) -> float:
        seconds = [step(iterator) for _ in range(BLOCK_STEPS)]
        return statistics.median(seconds[PREFETCHED_BATCHES:])

    with unchanged(variables):
        if alone_step is not None:
            _trace(*blocks[-1], backend)
        return [tuple(median_seconds(*block) for block in blocks) for _ in range(pairs)]


@contextlib.contextmanager
def unchanged(variables: Sequence[Any]) -> Iterator[None]:
    """Give variables their values again, whatever steps of the block made of them."""
    values = [keras.ops.convert_to_numpy(one.value) for one in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _trace(step: Callable[[Any], float], iterator: Any, backend: Backend) -> None:
    """Make the first of some steps, or raise NoRoomError in all processes."""
    refusal: WriteError | None = None
    try:
        step(iterator)
    except WriteError as error:
        refusal = error
    if backend.sum(np.array([float(refusal is not None)])).any():
        raise NoRoomError(refusal or "Another process has no room for it.") from refusal


def parts(
    backend: Backend,
    topology: Topology,
    alone_seconds: Sequence[float],
    variables: Sequence[Any],
) -> dict[str, Any]:
    """Return what result.json holds of a step's parts; called by all together.

    Args:
        backend: Averages.
        topology: Of the run.
        alone_seconds: Of this process's steps without an average, one a turn.
        variables: Those whose gradients are averaged.
    """
    alone = np.zeros((topology.process_count, len(alone_seconds)))
    alone[topology.process_index] = alone_seconds
    return {
        "alone_seconds": backend.sum(alone).tolist(),
        "average_seconds": _average_seconds(backend, variables),
        "gradient_bytes": sum(
            math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables
        ),
    }


def _average_seconds(backend: Backend, variables: Sequence[Any]) -> list[float]:
    """Return seconds of averages, alone, of what has the sizes of `variables`."""

    def replica_average() -> dict[str, Any]:
        averaged = backend.average([tf.identity(one.value) for one in variables])
        return {"sum": tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32)) for one in averaged])}

    @tf.function
    @tf.autograph.experimental.do_not_convert
    def average() -> dict[str, Any]:
        return backend.run(replica_average)

    def timed() -> float:
        since = time.perf_counter()
        average()["sum"].numpy()
        return time.perf_counter() - since

    timed()  # Traces.
    return [timed() for _ in range(AVERAGES)]
