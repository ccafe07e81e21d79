"""Makes sums of two out of large sums of more gradients."""

from collections.abc import Sequence
from itertools import dropwhile

import tensorflow as tf

from tfunet.swap.trace import is_backward, num_bytes

# TensorFlow's AddN adds up to so many terms in one go, from the left: as sums of two do.
MOST_TERMS = 8


def in_pairs(
    ops: Sequence[tf.Operation], results: Sequence[tf.Tensor], threshold_bytes: int
) -> list[tf.Operation]:
    """Change the graph in place so that large gradients are added up as they come, two at a time,
    and return its ops.

    What is read in three or more places has a gradient that is the sum of theirs. In one sum of all
    they have to be there together, and TensorFlow's memory optimizer may divide it, in another
    order: then no plan knows its memory, nor its last bits. Sums of two it leaves as they are.

    Args:
        ops: Of one replica's step, in the order in which they run.
        results: Tensors that the step returns; sums that are among them stay.
        threshold_bytes: So do those of smaller tensors.
    """
    returned = {one.name for one in results}
    placed = list(ops)
    # The sums themselves are in no name scope of the tape.
    for op in dropwhile(lambda one: not is_backward(one), ops):
        if _is_large_sum(op, threshold_bytes) and op.outputs[0].name not in returned:
            _divide(op, placed)
    return placed


def _is_large_sum(op: tf.Operation, threshold_bytes: int) -> bool:
    return (
        op.type == "AddN"
        and 3 <= len(op.inputs) <= MOST_TERMS
        and not op.control_inputs
        and num_bytes(op.outputs[0]) >= max(1, threshold_bytes)
    )


def _divide(op: tf.Operation, placed: list[tf.Operation]) -> None:
    """Put sums of two in the place of an op, each where the later of its terms has been made."""
    at = {one.name: position for position, one in enumerate(placed)}
    total, *terms = op.inputs
    place = at.get(total.op.name, -1)
    made: list[tuple[int, list[tf.Operation]]] = []
    for term in terms:
        with (
            op.graph.as_default(),
            tf.control_dependencies(None),
            tf.device(op.device),
            tf.name_scope(f"{op.name}/"),
        ):
            both = tf.raw_ops.AddN(inputs=[total, term])
            # Else TensorFlow's optimizer makes one sum of them again.
            total = tf.raw_ops.EnsureShape(input=both, shape=both.shape)
        place = max(place, at.get(term.op.name, -1))
        made.append((place, [both.op, total.op]))
    _replace(op, total)
    placed.remove(op)
    for place, pair in reversed(made):
        placed[place + 1 : place + 1] = pair


def _replace(op: tf.Operation, total: tf.Tensor) -> None:
    """Let what reads an op's output, or waits for it, read another, or wait for that."""
    for reader in op.outputs[0].consumers():
        for position, one in enumerate(reader.inputs):
            if one.name == op.outputs[0].name:
                reader._update_input(position, total)
    for waiting in list(op._control_outputs):
        others = [one for one in waiting.control_inputs if one.name != op.name]
        waiting._remove_all_control_inputs()
        waiting._add_control_inputs([*others, total.op])
