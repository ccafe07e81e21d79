"""Which ops of a traced step belong to backward passes, where passes of both kinds take turns.

A stage of a pipeline makes the passes of several micro-batches in a step. Its tape makes the ops of
each gradient, and marks them. What only sums such results up belongs to them:

    forward 0   forward 1   backward 0   sum   forward 2   backward 1   sum   ...   optimizer
                            marked       <--               marked       <--         all after them
"""

from collections.abc import Sequence

import tensorflow as tf

from tfunet.graph.step import READS

# Ops between processes: what comes out of one is what another process made, in whatever pass.
COLLECTIVE = ("Collective", "Horovod", "Nccl")


def is_backward(op: tf.Operation) -> bool:
    """Whether a gradient tape made an op."""
    # TensorFlow's tape makes every op of a gradient in this name scope.
    return "gradient_tape/" in op.name


def of_one_turn(ops: Sequence[tf.Operation]) -> list[bool]:
    """Return, for each op, whether it belongs to the backward pass of a step that has one.

    All that comes after its first op does, such as the optimizer's update.
    """
    marked = [is_backward(op) for op in ops]
    first = marked.index(True) if True in marked else len(marked)
    return [at >= first for at in range(len(marked))]


def of_many_turns(ops: Sequence[tf.Operation]) -> list[bool]:
    """Return, for each op, whether it belongs to a backward pass of a step that may have many."""
    marked = [is_backward(op) for op in ops]
    last = max((at for at, is_marked in enumerate(marked) if is_marked), default=len(marked))
    made: set[str] = set()
    belongs = []
    for at, (op, is_marked) in enumerate(zip(ops, marked, strict=True)):
        inputs = [tensor.op for tensor in op.inputs if tensor.op.type not in READS]
        continues = bool(inputs) and all(before.name in made for before in inputs)
        belongs.append(is_marked or continues or at > last)
        if belongs[-1] and not op.type.startswith(COLLECTIVE):
            made.add(op.name)
    return belongs
