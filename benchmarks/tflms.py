"""The rule of IBM's TFLMS v2, for comparison: distances in the graph say what is swapped.

T. D. Le, H. Imai, Y. Negishi and K. Kawachiya, "Automatic GPU memory management for large neural
models in TensorFlow", ISMM 2019. The level of an op is the length of the longest path to it in the
graph, and the distance of two ops the difference of their levels.

A tensor is swapped if an op of the backward pass reads it at a greater distance than
`swapout_threshold` from the op that made it. Its copy back begins `swapin_ahead` + 1 levels before
its first reader. Both are as large as fits, the first before the second, as TFLMS's autotune finds
them. Unlike there, a tensor comes back once for all its readers in the backward pass.
"""

from tfunet.graph.step import root
from tfunet.swap.plan import split
from tfunet.swap.plan.schedule import schedule
from tfunet.swap.plan.timeline import Moves, moved, overlap
from tfunet.swap.search.candidates import may_go
from tfunet.swap.search.planner import as_plan
from tfunet.swap.search.strategy import Strategy

NO_LIMIT_BYTES = 2**62


class Tflms(Strategy):
    """Swaps by the rule of TFLMS v2."""

    def plan(self, problem):
        levels = Levels(problem.trace)
        readers = _readers(problem.trace, problem.threshold_bytes)

        def outcome(threshold, ahead):
            decisions = _decisions(problem, levels, readers, threshold)
            moves = _moves(problem, levels, readers, decisions, ahead)
            actions = moved(schedule(problem.trace, decisions), moves)
            return problem.outcome(decisions, moves, actions)

        def fits(threshold, ahead):
            return outcome(threshold, ahead).peak_bytes <= problem.budget_bytes

        # These need least memory.
        threshold = _largest(1, levels.count, lambda value: fits(value, 0))
        ahead = 0
        if problem.costs.copies_overlap:
            ahead = _largest(0, levels.count, lambda value: fits(threshold, value))
        cut = split.cut(problem.trace, ())
        return as_plan(problem, cut, outcome(threshold, ahead), problem.weigh({}))


class Levels:
    """The level of each op, and the op before it on a longest path to it."""

    def __init__(self, trace):
        self.of = []
        self._parents = []
        for op in trace.ops:
            producers = (trace.tensors[tensor].producer for tensor in op.inputs)
            made = (at for at in producers if at >= 0)
            parent = max(made, key=lambda at: (self.of[at], at), default=-1)
            self._parents.append(parent)
            self.of.append(0 if parent < 0 else self.of[parent] + 1)
        self.count = max(self.of, default=-1) + 1

    def before(self, op, num_levels):
        """Return the op that is so many levels before another, on a longest path to it."""
        for _ in range(min(num_levels, self.of[op])):
            op = self._parents[op]
        return op


def _readers(trace, threshold_bytes):
    """Return the ops of the backward pass that read each tensor that may be swapped, or a view."""
    readers = {}
    for at, op in enumerate(trace.ops):
        for tensor in {root(trace, index) for index in op.inputs} if op.is_backward else ():
            if trace.is_of_forward(tensor) and may_go(trace, tensor, threshold_bytes):
                readers.setdefault(tensor, []).append(at)
    return readers


def _decisions(problem, levels, readers, threshold):
    """Return what is swapped, the farthest first, as long as host memory and disk have room."""
    tensors = problem.trace.tensors
    distances = {
        tensor: max(levels.of[op] for op in ops) - levels.of[tensors[tensor].producer]
        for tensor, ops in readers.items()
    }
    decisions = {}
    for tensor in sorted(distances, key=lambda tensor: (-distances[tensor], tensor)):
        has_room = problem.costs.swap_seconds(problem.trace, tensor, decisions) is not None
        if distances[tensor] > threshold and has_room:
            decisions[tensor] = "swap"
    return decisions


def _moves(problem, levels, readers, decisions, ahead):
    trace = problem.trace
    costs, actions = problem.costs.placed(trace, decisions), schedule(trace, decisions)
    awaited = overlap(trace, actions, costs, budget_bytes=NO_LIMIT_BYTES).awaited
    last_forward = max((at for at, op in enumerate(trace.ops) if not op.is_backward), default=-1)
    fetched = {}
    for tensor in decisions:
        first = min(readers[tensor], key=lambda op: (levels.of[op], op))
        after = max(awaited.get(tensor, -1), last_forward, levels.before(first, ahead + 1))
        if after < min(readers[tensor]) - 1:
            fetched[tensor] = after
    return Moves(awaited=awaited, fetched=fetched)


def _largest(low, high, fits):
    """Return the largest value that fits; `low` where none does."""
    best = low
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best
