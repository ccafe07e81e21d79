"""The memory that the step of a stage takes, read from its traced ops before it runs."""

from collections.abc import Sequence

import tensorflow as tf

from tfunet.graph import reader
from tfunet.graph.run_order import run_order
from tfunet.graph.shared_rows import with_shared_rows
from tfunet.swap.arena.arena import step_bytes
from tfunet.swap.plan.schedule import Action


# AutoGraph would make it ten times as slow.
@tf.autograph.experimental.do_not_convert
def forecast_bytes(results: Sequence[tf.Tensor], resident: Sequence[int]) -> int:
    """Return the most bytes that the step which is being traced holds beside its variables.

    They are those of the blocks of TensorFlow's allocator. Scratch that only a run shows, such as
    that of convolutions on a GPU, is left out.

    Args:
        results: What the step returns.
        resident: Bytes of each variable.
    """
    graph = tf.compat.v1.get_default_graph()
    ops = run_order(reader.needed(graph.get_operations(), results))
    trace, _ = reader.read(ops, results)
    trace = with_shared_rows(trace, ops)
    actions = [Action("op", at, *op.first_copies) for at, op in enumerate(trace.ops)]
    return step_bytes(trace, actions, resident)
