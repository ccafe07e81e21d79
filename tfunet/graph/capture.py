"""Wraps a step of a model so that its ops can be read and changed when it is traced."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfunet.graph import reader

_tracing = threading.local()
# Takes the ops and the results of a step, and may change their graph.
Edit = Callable[[Sequence[tf.Operation], Sequence[tf.Tensor]], None]


def taken_over(step: Callable[..., Any], edit: Edit) -> Callable[..., Any]:
    """Return a step that calls `edit` with its ops and its results each time it is traced.

    The ops are those of the replica that is being traced, in the order in which they are to run
    (`tfunet.graph.reader.in_order`). If a step calls another, as a train_step may call test_step,
    `edit` gets only the outer one. It gets no step that returns ragged or sparse tensors.
    """

    @functools.wraps(step)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or getattr(_tracing, "is_under_way", False):
            return step(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        _tracing.is_under_way, _tracing.later = True, []
        try:
            returned = step(*args, **kwargs)
        finally:
            _tracing.is_under_way = False
        return _edited(edit, graph.get_operations()[begin:], returned, _tracing.later)

    return traced


def needed_later(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return readers of tensors of a step that is being traced, for what is made after it.

    Without them, ops that nothing needs yet would be left out of what `edit` gets.
    """
    if getattr(_tracing, "is_under_way", False):
        _tracing.later += tensors
    return [tf.identity(tensor) for tensor in tensors]


# A step may want AutoGraph; AutoGraph would make `edit` ten times as slow.
@tf.autograph.experimental.do_not_convert
def _edited(
    edit: Edit, ops: Sequence[tf.Operation], returned: Any, later: Sequence[tf.Tensor]
) -> Any:
    results = [value for value in (*tf.nest.flatten(returned), *later) if tf.is_tensor(value)]
    if any(isinstance(value, tf.RaggedTensor | tf.SparseTensor) for value in results):
        return returned
    # Replicas of one process are traced into one graph, in turn, each under its own device.
    device = tf.no_op().device
    ops = [op for op in ops if op.device == device or reader.goes_with(op) == device]
    # The step returns readers of its results, so that `edit` can replace a result.
    returned = tf.nest.map_structure(
        lambda value: tf.identity(value) if isinstance(value, tf.Tensor) else value, returned
    )
    edit(reader.in_order(ops, results), results)
    return returned
