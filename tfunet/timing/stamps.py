"""Times a part of a traced step: when it could begin, and when it was done."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Note = Callable[[str, float, float], None]


def timed(
    name: str,
    note: Note | None,
    part: Callable[[Any], Any],
    given: Any = (),
    *,
    device: str | None = None,
) -> Any:
    """Return `part(given)` in a tf.function, and have `note` told of each time it ran.

    Between two Unix times: that at which all of `given` was there, and that at which all that
    `part` makes is. Neither begins anything before, or TensorFlow would look at its clock when it
    has nothing else to do. Both are of the host: what a GPU was asked to do may not be done then.
    Without `note` nothing is added to the graph. What `part` makes lies on `device`, if given.
    """
    if note is None:
        return part(given)
    tell, where = note, name.replace(" ", "_")

    def now() -> np.ndarray:
        return np.array(time.time())

    def told(begin: np.ndarray) -> np.ndarray:
        end = time.time()
        tell(name, float(begin), end)
        return np.array(end)

    begin, given = _stamped(given, f"{where}_given", None, lambda: _call(now))
    with tf.control_dependencies([begin]):
        made = part(given)
    _, made = _stamped(made, f"{where}_made", device, lambda: _call(told, begin))
    return made


def unordered(op: tf.Operation) -> tf.Operation:
    """Return an op that waits for its inputs and control edges only.

    TensorFlow counts it among those with a state, and would run it after all such ops that were
    made before: what belongs to the second replica after the last one of the first, which waits
    for the second where they exchange gradients or statistics.
    """
    manager = op.graph.experimental_acd_manager
    if manager is not None:
        manager.run_independently(op)
    return op


def _call(clock: Callable[..., np.ndarray], *given: tf.Tensor) -> tf.Tensor:
    # Not tf.timestamp, which op determinism refuses.
    with tf.device("CPU:0"):
        seconds = tf.numpy_function(clock, given, tf.float64, name="stamp")
    seconds.set_shape(())
    unordered(seconds.op)
    return seconds


def _stamped(
    values: Any, name: str, device: str | None, clock: Callable[[], tf.Tensor]
) -> tuple[tf.Tensor, Any]:
    """Return what the clock says when all values are there, and the values, for after that."""
    flat = tf.nest.flatten(values, expand_composites=True)
    with tf.control_dependencies(flat):
        seconds = clock()
    # Not tf.device(None), which forgets the device of a replica.
    where = tf.device(device) if device else contextlib.nullcontext()
    with where, tf.control_dependencies([seconds]):
        # Names of their own: Horovod knows tensors by names, which must be those of all ranks,
        # and what else is named "Identity" depends on each rank's plan of what to swap.
        after = [tf.identity(tensor, name=name) for tensor in flat]
    return seconds, tf.nest.pack_sequence_as(values, after, expand_composites=True)
