"""Compares a run's steps with the synthetic bound: the same steps with their data in memory.

After the last epoch, blocks of steps on real and on synthetic data take turns, so that both meet
the same conditions:

    real | synthetic | alone | real | synthetic | alone | ...     alone: only with time_parts

Where devices share samples, steps that exchange but average nothing come before "alone"; where the
network is in stages, too, then steps that exchange across stages only.
Then the model's variables are put back. The time that a step waits for its data would not do: on
a CPU, making samples slows a step down without making it wait. Steps that run alone, without
averaging gradients or exchanging borders, show where efficiency is lost. The average is also timed
by itself.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.data.pipeline import PREFETCHED_BATCHES, TrainingPipeline
from tfunet.data.tile_pipeline import TilePipeline
from tfunet.files.atomic import WriteError
from tfunet.graph.traced import traced

TIMED_STEPS = 4
# The first steps of a block take batches that were made ahead, or run while those are made.
BLOCK_STEPS = PREFETCHED_BATCHES + TIMED_STEPS
# The measurement costs at most this share of the run's steps; a short run measures one pair.
COST = 0.05
MAX_PAIRS = 5
# From here on, to wait less would change little. `findings` of a report has the same share.
FEW_WAITS = 0.9
# At least so many turns where the parts of a step are asked for.
PARTS_TURNS = 3
AVERAGES = 10


class NoRoomError(WriteError):
    """The disk has no room for large-model support of another step; all processes raise it."""


def num_pairs(steps: int) -> int:
    """Return how many pairs of blocks are measured after a run of `steps` steps."""
    return max(1, min(MAX_PAIRS, int(COST * steps / (2 * BLOCK_STEPS))))


def share(pairs: Sequence[tuple[float, ...]]) -> float | None:
    """Return the median share of the synthetic bound that steps reach; None without pairs.

    At about 1 the devices never wait. Noise of the machine may take it above 1.
    """
    return statistics.median(bound / real for real, bound, *_ in pairs) if pairs else None


def share_line(pairs: Sequence[tuple[float, ...]], *, are_images: bool = True) -> str:
    """Return `share` in words; "" where the steps hardly wait for their data."""
    reached = share(pairs)
    if reached is None or reached >= FEW_WAITS:
        return ""
    what, help_words = "images", "More CPU cores, or less augmentation,"
    if not are_images:
        what, help_words = "samples", "Larger batches, or more CPU cores,"
    return (
        f"Steps waited for their {what}: with all data in memory they take {1 - reached:.0%} less "
        f"time. {help_words} would make this run faster."
    )


def paired_seconds(
    timed_step: Callable[[Any], float],
    backend: Backend,
    pipeline: TrainingPipeline | TilePipeline,
    variables: Sequence[Any],
    *,
    steps: int,
    without: Sequence[Callable[[Any], float]] = (),
) -> list[tuple[float, ...]]:
    """Return pairs of (median seconds of a step, of a synthetic step); called by all together.

    Further values are those of synthetic steps `without` something. `variables`, which the steps
    change, have their values again afterwards.

    Raises NoRoomError in all processes where a step cannot be traced in one of them.
    """
    pairs = max(PARTS_TURNS if without else 1, num_pairs(steps))
    last = pipeline.last_step
    end = last + pairs * BLOCK_STEPS

    def fed(end: int, *, synthetic: bool) -> Any:
        return iter(backend.feed(pipeline.of_steps(last, end, synthetic=synthetic)))

    blocks = [(timed_step, fed(end, synthetic=is_synthetic)) for is_synthetic in (False, True)]
    # One step more, in which it is traced.
    others = [(step, fed(end + 1, synthetic=True)) for step in without]

    def median_seconds(step: Callable[[Any], float], iterator: Any) -> float:
        seconds = [step(iterator) for _ in range(BLOCK_STEPS)]
        return statistics.median(seconds[PREFETCHED_BATCHES:])

    with unchanged(variables):
        for other in others:
            _trace(*other, backend)
        return [tuple(median_seconds(*block) for block in blocks + others) for _ in range(pairs)]


@contextlib.contextmanager
def unchanged(variables: Sequence[Any]) -> Iterator[None]:
    """Give variables their values again at the end of the block."""
    values = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _trace(step: Callable[[Any], float], iterator: Any, backend: Backend) -> None:
    """Make the first step, or raise NoRoomError in all processes."""
    refusal: WriteError | None = None
    try:
        step(iterator)
    except WriteError as error:
        refusal = error
    if backend.sum(np.array([float(refusal is not None)])).any():
        raise NoRoomError(refusal or "Another process has no room for it.") from refusal


def seconds_without(
    backend: Backend,
    topology: Topology,
    turns: Sequence[tuple[float, ...]],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the times of the steps without something for result.json; called by all together.

    `turns` are those of `paired_seconds`; `names` are those of its values after the first two.
    """
    _, _, *others = zip(*turns, strict=True)

    def of_processes(seconds: Sequence[float]) -> list[list[float]]:
        table = np.zeros((topology.process_count, len(seconds)))
        table[topology.process_index] = seconds
        rows: list[list[float]] = backend.sum(table).tolist()
        return rows

    return {name: of_processes(seconds) for name, seconds in zip(names, others, strict=True)}


def of_average(backend: Backend, variables: Sequence[Any]) -> dict[str, Any]:
    """Return what the average of gradients takes alone, for result.json; called by all together."""
    return {
        "average_seconds": _average_seconds(backend, variables),
        "gradient_bytes": sum(
            math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables
        ),
    }


def _average_seconds(backend: Backend, variables: Sequence[Any]) -> list[float]:
    """Return seconds of averages, timed by themselves, of tensors as large as `variables`."""

    def replica_average() -> dict[str, Any]:
        averages = backend.average([tf.identity(variable.value) for variable in variables])
        sums = [tf.reduce_sum(tf.cast(average, tf.float32)) for average in averages]
        return {"sum": tf.add_n(sums)}

    @traced
    def average() -> dict[str, Any]:
        return backend.run(replica_average)

    def timed() -> float:
        since = time.perf_counter()
        average()["sum"].numpy()
        return time.perf_counter() - since

    timed()  # Traces.
    return [timed() for _ in range(AVERAGES)]
