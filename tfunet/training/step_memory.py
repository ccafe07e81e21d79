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
# The first steps on a feed meet its beginning.
WARM_UP_STEPS = 1


def step_memory(
    step: Callable[[Any], Any],
    backend: Backend,
    topology: Topology,
    pipeline: TrainingPipeline,
    variables: Sequence[Any],
) -> Measured:
    """Return the memory over one more step, which nobody sees; called by all processes together.

    The chief alone profiles it: in the other processes TensorFlow 2.21 aborts, often, at the end
    of a profile. What goes wrong is told in `why_not`, by the chief; but an error of a step itself
    is raised where other processes wait in it.

    Args:
        step: Makes one optimizer step with an iterator.
        backend: Feeds.
        topology: Of the run.
        pipeline: Of the run that is over.
        variables: What the steps change; they have their values again afterwards.
    """
    able = topology.is_chief and used_bytes() is not None
    # All make the steps, or none: whether the chief's allocator keeps an account, it alone knows.
    if not backend.sum(np.array([float(able)])).any():
        return Measured(why_not=NO_ACCOUNT)
    last = pipeline.last_step
    more = replace(pipeline, first_step=last, last_step=last + WARM_UP_STEPS + 1, synthetic=True)
    try:
        batches = iter(backend.feed(more))
        with unchanged(variables):
            for _ in range(WARM_UP_STEPS):
                step(batches)
            if not able:
                step(batches)
                return Measured()
            found = _profiled(lambda: step(batches))
    except Exception as error:
        if topology.process_count > 1:
            raise
        return Measured(why_not=_told(error))
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    return replace(found, num_replicas=1 if on_gpu else len(topology.local_replicas))


def _profiled(step: Callable[[], Any]) -> Measured:
    """Make a step, whatever becomes of its profile, and return its memory."""
    folder = None
    why_not = ""
    with contextlib.ExitStack() as cleaned:
        try:
            made = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            folder = Path(cleaned.enter_context(made))
            tf.profiler.experimental.start(str(folder), OPTIONS)
        except FAILURES as error:  # Somebody else is taking one, or there is no room.
            why_not = _told(error)
        try:
            step()
        finally:
            found = Measured(why_not=why_not) if folder is None or why_not else _ended(folder)
        return found


def _ended(folder: Path) -> Measured:
    """End the profile that is being taken, and return the memory that it tells."""
    try:
        tf.profiler.experimental.stop()
        (path,) = folder.glob("**/*.xplane.pb")
        return account(read_allocations(path))
    except Exception as error:  # Training has ended well; a torn profile is no reason to fail.
        return Measured(why_not=_told(error))


def _told(error: Exception) -> str:
    """Return the first line of an error."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
