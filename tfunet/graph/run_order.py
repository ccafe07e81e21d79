"""In which order TensorFlow runs the ops of a traced step, on one thread.

It runs what is ready, and follows what becomes ready by that: cheap ops at once, in turn; of costly
ones the last, while the others wait on a stack. What another process sends comes when nothing else
is left to do. (`ExecutorState::ScheduleReady` in core/common_runtime/executor.cc, and a thread pool
that takes first what it was given last.)
"""

from collections import deque
from collections.abc import Sequence

import tensorflow as tf

from tfunet.graph.passes import COLLECTIVE
from tfunet.graph.step import ALIASES, READS, SHAPE_READERS

# TensorFlow counts all others as costly in the first hundred steps.
CHEAP = ALIASES | READS | SHAPE_READERS | {"IdentityN", "NoOp", "StridedSlice"}


def run_order(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return ops, which are as they were traced, in the order in which they run."""
    places = {op.name: place for place, op in enumerate(ops)}
    readers: list[list[int]] = [[] for _ in ops]
    missing = [0] * len(ops)
    for place, op in enumerate(ops):
        before = {tensor.op.name: None for tensor in op.inputs}
        before |= {other.name: None for other in op.control_inputs}
        for name in before.keys() & places.keys():
            readers[places[name]].append(place)
            missing[place] += 1
    ordered: list[tf.Operation] = []
    stack: list[int] = []
    under_way: deque[int] = deque()

    def made_ready(place: int) -> list[int]:
        for reader in readers[place]:
            missing[reader] -= 1
        return [reader for reader in readers[place] if not missing[reader]]

    def end(place: int, queue: deque[int]) -> None:
        """Add what an op makes ready to the queue, and to the stack."""
        costly: list[int] = []
        for reader in made_ready(place):
            (queue if ops[reader].type in CHEAP else costly).append(reader)
        if costly and not queue:
            queue.append(costly.pop())
        stack.extend(costly)

    for place in [place for place in range(len(ops)) if not missing[place]]:
        # What is there before the step, such as a constant, keeps nobody waiting.
        if ops[place].type in READS:
            ordered.append(ops[place])
            stack += made_ready(place)
        else:
            stack.append(place)
    stack.reverse()
    while stack or under_way:
        queue: deque[int] = deque()
        if stack:
            queue.append(stack.pop())
        else:
            end(under_way.popleft(), queue)
        while queue:
            place = queue.popleft()
            ordered.append(ops[place])
            if ops[place].type.startswith(COLLECTIVE):
                under_way.append(place)
            else:
                end(place, queue)
    return ordered
