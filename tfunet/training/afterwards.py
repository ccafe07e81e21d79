"""What is measured after the last step of a run."""

import contextlib
import functools
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import psutil
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.tile_pipeline import TilePipeline
from tfunet.files.atomic import WriteError
from tfunet.machine.device import device_bytes, own_gpus, peak_of, used_bytes
from tfunet.parallel.network import Groups
from tfunet.swap.report.measured import Measured
from tfunet.training import input_bound
from tfunet.training.attempt import Attempt
from tfunet.training.epochs import Trainer
from tfunet.training.staged_network import StagedNetwork
from tfunet.training.step import Step
from tfunet.training.step_memory import NO_ACCOUNT, step_memory

NO_COPY = "host memory has no room for a second copy of weights and states."


@final
@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What is measured after the last step.

    Args:
        peaks: (processes, 2): peak resident and peak device memory.
        turns: Seconds of steps; see `input_bound.paired_seconds`.
    """

    elapsed_seconds: float
    peaks: np.ndarray
    turns: Sequence[tuple[float, ...]]
    parts: Mapping[str, Any]
    step: Measured


def measure(trainer: Trainer) -> Measurements:
    """Measure with further steps, which change nothing; called by all processes together."""
    attempt, network = trainer.attempt, trainer.network
    config, backend, topology = attempt.config, attempt.backend, attempt.topology
    elapsed_seconds = time.perf_counter() - attempt.began
    peaks = _peak_bytes(backend, topology)
    has_parts = config.time_parts and topology.num_replicas > 1 and not config.synthetic
    pipeline = trainer.steps.pipeline
    # Steps over whole samples, tile by tile, take long.
    has_more = not isinstance(pipeline, TilePipeline) or config.time_parts
    if has_more and _lacks_copy(attempt, network.variables):
        attempt.say(f"Left out, what more steps would have told: {NO_COPY}")
        has_more = False
    if not has_more:
        return Measurements(
            elapsed_seconds=elapsed_seconds, peaks=peaks, turns=(), parts={}, step=Measured()
        )
    turns = _turns(trainer, pipeline, has_parts=has_parts)
    step = Measured(why_not="there was no room for more steps")
    is_planned = attempt.support is not None and turns is not None
    if is_planned and isinstance(pipeline, TrainingPipeline):
        again = functools.partial(_timed, attempt, trainer.steps.take)
        step = step_memory(again, backend, topology, pipeline, network.variables)
        if step.why_not not in ("", NO_ACCOUNT):
            attempt.say(f"The memory of a step was not measured: {step.why_not}")
    parts: dict[str, Any] = {}
    if has_parts and turns:
        others = _without(trainer)
        parts = input_bound.seconds_without(backend, topology, turns, list(others))
        if network.stages is None:
            trained = network.model.trainable_variables
            parts |= input_bound.of_average(backend, trained)
        else:
            parts["bubble_seconds"] = network.stages.log.bubble_seconds()
    return Measurements(
        elapsed_seconds=elapsed_seconds, peaks=peaks, turns=turns or (), parts=parts, step=step
    )


def _turns(
    trainer: Trainer, pipeline: TrainingPipeline | TilePipeline, *, has_parts: bool
) -> Sequence[tuple[float, ...]] | None:
    """Return `input_bound.paired_seconds`; () where it is not asked for, None without room."""
    attempt = trainer.attempt
    if attempt.config.synthetic:
        return ()
    if _is_full(attempt):
        attempt.say(
            "Whether steps wait for their images was not measured: a capped CPU has no room for it."
        )
        return ()

    try:
        turns = input_bound.paired_seconds(
            functools.partial(_timed, attempt, trainer.steps.take),
            attempt.backend,
            pipeline,
            trainer.network.variables,
            steps=trainer.progress.step,
            without=list(_without(trainer).values()) if has_parts else [],
        )
    except (WriteError, tf.errors.ResourceExhaustedError) as error:
        # Where not all processes know of the error, some would wait for this one.
        if attempt.topology.process_count > 1 and not isinstance(error, input_bound.NoRoomError):
            raise
        why = error if isinstance(error, WriteError) else "no memory is left for them."
        attempt.say(f"Left out, what more steps would have told: {why}")
        return None
    if line := input_bound.share_line(turns, are_images=trainer.data.task.source.samples is None):
        attempt.say(line)
    return turns


def _without(trainer: Trainer) -> dict[str, Callable[[Any], float]]:
    """Return what times steps that leave something out, by the name of their seconds.

    Each leaves out more than the one before it:

                              average   borders   across stages
        exchanging_seconds    off       as ever   as ever         samples split, or stages
        crossing_seconds      off       off       as ever         both
        alone_seconds         off       off       off
    """
    attempt, network, steps = trainer.attempt, trainer.network, trainer.steps
    groups, stages = network.groups, network.stages

    def exchanging(batches: Any) -> float:
        with network.average.off():
            return _timed(attempt, steps.take_exchanging, batches)

    def crossing(batches: Any) -> float:
        with network.average.off(), _off(groups):
            return _timed(attempt, steps.take_crossing, batches)

    def alone(batches: Any) -> float:
        with network.average.off(), _off(groups), _off(stages):
            return _timed(attempt, steps.take_alone, batches)

    def alone_in_stages(batches: Any) -> float:
        return alone(batches) if stages is None else stages.log.note_alone(lambda: alone(batches))

    without: dict[str, Callable[[Any], float]] = {}
    if groups is not None or stages is not None:
        without["exchanging_seconds"] = exchanging
    if groups is not None and stages is not None:
        without["crossing_seconds"] = crossing
    return {**without, "alone_seconds": alone_in_stages}


def _off(exchanging: Groups | StagedNetwork | None) -> AbstractContextManager[None]:
    """Return the context in which nothing of this is exchanged."""
    return contextlib.nullcontext() if exchanging is None else exchanging.exchange.off()


def _is_full(attempt: Attempt) -> bool:
    """Whether a second pipeline might find no memory: there, oneDNN ends the process."""
    if attempt.config.cpu_memory is None or attempt.support is None:
        return False
    return bool(attempt.backend.sum(np.array([float(attempt.support.gives_up)])).any())


def _lacks_copy(attempt: Attempt, variables: Sequence[Any]) -> bool:
    """Whether a process has no room for what further steps change, to have it again afterwards."""
    room = psutil.virtual_memory().available / 2 / attempt.topology.process_count
    needed = sum(math.prod(each.shape) for each in variables) * tf.float32.size
    return bool(attempt.backend.sum(np.array([float(needed > room)])).any())


def _timed(attempt: Attempt, step: Step, batches: Any) -> float:
    attempt.begin("timing steps")
    since = time.perf_counter()
    # Reading the loss waits for the device: the clock stops after the work is done.
    step(batches)["logs"]["loss"].numpy()
    return time.perf_counter() - since


def _peak_bytes(backend: Backend, topology: Topology) -> np.ndarray:
    """Return (processes, 2): peak resident and peak device memory, called by all together."""
    table = np.zeros((topology.process_count, 2))
    # Linux counts ru_maxrss in KiB.
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # `used_bytes` knows the first device's peak also from before it was measured anew.
    used = used_bytes() if own_gpus() or device_bytes() is not None else None
    device = 0 if used is None else used[1]
    device += sum(map(peak_of, own_gpus()[1:]))
    table[topology.process_index] = [resident, device]
    return backend.sum(table)
