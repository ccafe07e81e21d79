"""Wraps a step of a model, so that its ops are seen, and can be changed, when it is traced."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfunet.graph import reader

_tracing = threading.local()


def taken_over(
    step: Callable[..., Any],
    plan: Callable[[Sequence[tf.Operation], Sequence[tf.Tensor]], None],
) -> Callable[..., Any]:
    """Return a step that calls `plan` with its ops and its results each time it is traced.

    The ops are those of the replica that is being traced, in the order in which they are to run
    (`tfunet.graph.reader.in_order`). Of a step that is part of another, such as a test_step that a
    train_step calls, only the outer one is planned; one that returns ragged or sparse tensors is
    not.
    """

    @functools.wraps(step)
    def planned(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or getattr(_tracing, "is_under_way", False):
            return step(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        _tracing.is_under_way = True
        try:
            returned = step(*args, **kwargs)
        finally:
            _tracing.is_under_way = False
        return _planned(plan, graph.get_operations()[begin:], returned)

    return planned


# A step may want AutoGraph; to run the planner through it takes ten times as long.
@tf.autograph.experimental.do_not_convert
def _planned(
    plan: Callable[[Sequence[tf.Operation], Sequence[tf.Tensor]], None],
    ops: Sequence[tf.Operation],
    returned: Any,
) -> Any:
    results = [one for one in tf.nest.flatten(returned) if tf.is_tensor(one)]
    if any(isinstance(one, tf.RaggedTensor | tf.SparseTensor) for one in results):
        return returned
    own = _of_this_replica(ops)
    # Readers, so that the step returns what a plan puts in the place of a result.
    returned = tf.nest.map_structure(_read, returned)
    plan(reader.in_order(own, results), results)
    return returned


def _read(result: Any) -> Any:
    return tf.identity(result) if isinstance(result, tf.Tensor) else result


def _of_this_replica(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return those of the replica that is being traced.

    Replicas of one process are traced into one graph, in turn, each under its own device.
    """
    device = tf.no_op().device
    return [op for op in ops if op.device == device]
