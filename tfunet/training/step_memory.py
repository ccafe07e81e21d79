"""Measures the memory of a training step, with TensorFlow's profiler."""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.data.pipeline import TrainingPipeline
from tfunet.machine.device import used_bytes
from tfunet.swap.report.measured import Measured, account
from tfunet.timing.xplane import read_allocations
from tfunet.training.input_bound import unchanged

NO_ACCOUNT = (
    "the device's allocator keeps no account; a GPU's does, and a CPU's with oneDNN or with "
    "TF_CPU_ALLOCATOR_USE_BFC=true"
)
OPTIONS = tf.profiler.experimental.ProfilerOptions(
    host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
)
FAILURES = (OSError, RuntimeError, ValueError, tf.errors.OpError)
# The first step on a feed also waits for the feed to begin.
WARM_UP_STEPS = 1


def step_memory(
    step: Callable[[Any], Any],
    backend: Backend,
    topology: Topology,
    pipeline: TrainingPipeline,
    variables: Sequence[Any],
) -> Measured:
    """Return the memory over one more step, which has no effect; called by all processes together.

    Only the chief profiles it: in other processes TensorFlow 2.21 often aborts when a profile ends.
    The chief says in `why_not` what went wrong. An error of the step itself is raised where other
    processes take part. `variables`, which the step changes, have their values again afterwards.
    """
    is_profiled = topology.is_chief and used_bytes() is not None
    # Either all processes make the steps or none, and only the chief knows its allocator.
    if not backend.sum(np.array([float(is_profiled)])).any():
        return Measured(why_not=NO_ACCOUNT)
    last = pipeline.last_step
    more = replace(pipeline, first_step=last, last_step=last + WARM_UP_STEPS + 1, synthetic=True)
    try:
        batches = iter(backend.feed(more))
        with unchanged(variables):
            for _ in range(WARM_UP_STEPS):
                step(batches)
            if not is_profiled:
                step(batches)
                return Measured()
            measured = _profiled(lambda: step(batches))
    except Exception as error:
        if topology.process_count > 1:
            raise
        return Measured(why_not=_first_line(error))
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    return replace(measured, num_replicas=1 if on_gpu else len(topology.local_replicas))


def _profiled(step: Callable[[], Any]) -> Measured:
    """Make a step, even if its profile fails, and return its memory."""
    folder = None
    why_not = ""
    with contextlib.ExitStack() as cleanup:
        try:
            temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            folder = Path(cleanup.enter_context(temporary))
            tf.profiler.experimental.start(str(folder), OPTIONS)
        except FAILURES as error:  # Another profile is being taken, or the disk is full.
            why_not = _first_line(error)
        try:
            step()
        finally:
            if folder is None or why_not:
                measured = Measured(why_not=why_not)
            else:
                measured = _end_profile(folder)
        return measured


def _end_profile(folder: Path) -> Measured:
    try:
        tf.profiler.experimental.stop()
        (path,) = folder.glob("**/*.xplane.pb")
        return account(read_allocations(path))
    except Exception as error:  # Training has ended well: a broken profile must not fail the run.
        return Measured(why_not=_first_line(error))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
