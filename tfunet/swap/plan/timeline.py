"""When the ops and copies of a step happen, and where copies should stand to be hidden. Pure.

There is one copy at a time in each direction. Where copies overlap with computation:

    device     |op a|op b|wait|op c|op C|op D|wait|op A|
    to host         [copy of a]                            "out a" stands after op b
    to device                           [copy of a]        "in a" stands after op C; op A reads a

A copy to the host begins when its tensor was made, and the step waits for its end where "out"
stands. A copy to the device begins where "in" stands, and the first op that reads it waits for its
end. Where copies do not overlap, the device waits while "out" and "in" copy. A tensor that leaves
to make room ("leave") is always waited for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from tfunet.graph.step import Trace
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.schedule import Action, Copy, is_on_host, memory


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """How long a step takes, in seconds; `ends` are when each action is over, (actions,)."""

    step_seconds: float
    repeat_seconds: float
    exposed_seconds: float
    copy_seconds: float
    ends: tuple[float, ...]


def timeline(trace: Trace, actions: Sequence[Action], costs: Costs) -> Timeline:
    """Return how long the actions take in this order; see the module."""
    now = repeats = exposed = 0.0
    link = _Link(trace, actions, costs)
    ends: list[float] = []
    for action in actions:
        if action.kind in ("op", "again"):
            ready = max((link.arriving.get(copy, 0.0) for copy in action.inputs), default=0.0)
            waited = max(0.0, ready - now)
            seconds = costs.op_seconds[action.index]
            now += waited + seconds
            repeats += seconds if action.kind == "again" else 0.0
            for tensor, number in action.outputs:
                if not number and tensor in link.swapped:
                    link.begin_out(tensor, now)
        else:
            now, waited = link.copy(action, now)
        exposed += waited
        ends.append(now)
    return Timeline(
        step_seconds=now,
        repeat_seconds=repeats,
        exposed_seconds=exposed,
        copy_seconds=link.seconds,
        ends=tuple(ends),
    )


class _Link:
    """The copies of a step between device and host; see `timeline`."""

    def __init__(self, trace: Trace, actions: Sequence[Action], costs: Costs) -> None:
        self.swapped = {action.index for action in actions if action.kind == "out"}
        self.seconds = 0.0  # of all copies so far
        self.arriving: dict[Copy, float] = {}  # when each copy is back on the device
        self._trace = trace
        self._costs = costs
        self._leaving: dict[int, float] = {}  # when each tensor is on the host
        self._disk_of: dict[int, int] = {}  # tensor that has left to itself if it is swapped, or -1
        self._out_free = self._in_free = 0.0  # when the next copy in each direction can begin

    def begin_out(self, tensor: int, now: float) -> None:
        """Begin the copy of a swapped tensor to the host."""
        begin = max(now, self._out_free)
        self._out_free = begin + self._costs.leaving_seconds(self._trace, tensor)
        self._leaving[tensor] = self._out_free

    def copy(self, action: Action, now: float) -> tuple[float, float]:
        """Return when the step goes on after "out", "in", "leave" or "return", and how long it
        waited."""
        tensor, costs, begin = action.index, self._costs, now
        match action.kind:
            case "leave":
                return self._leave(action, now)
            case "out":
                seconds = costs.leaving_seconds(self._trace, tensor)
            case "in":
                seconds = costs.arriving_seconds(self._trace, tensor)
                begin = max(now, self._leaving[tensor])
            case _:
                num_bytes = self._trace.tensors[tensor].num_bytes
                seconds = costs.in_seconds(num_bytes, self._disk_of[tensor])
        self.seconds += seconds
        waited = 0.0
        if not costs.copies_overlap:
            waited = seconds
        elif action.kind == "out":
            waited = max(0.0, self._leaving[tensor] - now)
        else:
            self._in_free = self.arriving[action.outputs[0]] = max(begin, self._in_free) + seconds
        return now + waited, waited

    def _leave(self, action: Action, now: float) -> tuple[float, float]:
        tensor, costs = action.index, self._costs
        on_host = is_on_host(action.inputs[0], self.swapped)
        self._disk_of[tensor] = tensor if on_host else -1
        if on_host:
            end = max(now, self._leaving[tensor]) if costs.copies_overlap else now
        else:
            seconds = costs.out_seconds(self._trace.tensors[tensor].num_bytes)
            self.seconds += seconds
            end = self._out_free = max(now, self._out_free) + seconds
        return end, end - now


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Where the copies of a step stand: tensor to the op (by index) right after which it is awaited
    on the host or fetched.
    """

    awaited: Mapping[int, int]
    fetched: Mapping[int, int]


def overlap(
    trace: Trace,
    actions: Sequence[Action],
    costs: Costs,
    *,
    budget_bytes: int,
    in_use: np.ndarray | None = None,
) -> Moves:
    """Return where the copies should stand so that computation hides them.

    A copy to the device begins early enough to end in time, and before the next one needs the
    link. A copy to the host is awaited late enough to have ended. Both only as far as there is
    memory for tensors that are on the device longer. `in_use` are the bytes in use while each
    action runs, without it those of the tensors.
    """
    if not costs.copies_overlap:
        return Moves(awaited={}, fetched={})
    in_use = memory(trace, actions) if in_use is None else in_use
    points = _points(actions, in_use, costs)
    ends, room = points.ends, budget_bytes - points.use

    awaited = {}
    free = 0.0
    for tensor, first in points.made.items():
        num_bytes = trace.tensors[tensor].num_bytes
        free = max(free, ends[first]) + costs.leaving_seconds(trace, tensor)
        last = first
        while last + 1 < points.read.get(tensor, len(ends)) - 1 and ends[last] < free:
            if room[last + 1] < num_bytes:
                break
            last += 1
            room[last] -= num_bytes
        if last > first:
            awaited[tensor] = last

    fetched = {}
    begin = ends[-1]
    for tensor, reader in reversed(points.read.items()):
        num_bytes = trace.tensors[tensor].num_bytes
        computed = ends[reader - 1] if reader else 0.0
        begin = min(begin, computed) - costs.arriving_seconds(trace, tensor)
        after = reader - 1
        # Right after its op it has not left yet.
        limit = awaited.get(tensor, points.made[tensor] + 1)
        while after > limit and ends[after] > begin and room[after] >= num_bytes:
            room[after] -= num_bytes
            after -= 1
        begin = max(begin, ends[after])
        if after < reader - 1:
            fetched[tensor] = after
    return Moves(
        awaited={tensor: points.ops[point] for tensor, point in awaited.items()},
        fetched={tensor: points.ops[point] for tensor, point in fetched.items()},
    )


class _Points(NamedTuple):
    """The ops of a step in order, each a point after which a copy can stand.

    Args:
        use: The most bytes in use at each: while it runs, with what is repeated or copied just
            before it, (points,).
        ends: When each ends, if nothing waits for copies.
        made: Tensor to the point after which its "out" stands.
        read: Tensor to the point whose op, or an op that is repeated for it, reads it.
    """

    ops: Sequence[int]
    use: np.ndarray
    ends: Sequence[float]
    made: Mapping[int, int]
    read: dict[int, int]


def _points(actions: Sequence[Action], in_use: np.ndarray, costs: Costs) -> _Points:
    ops: list[int] = []
    use: list[int] = []
    seconds = [0.0]  # of each op with those repeated before it, and of what comes after the last
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    most = 0
    for action, num_bytes in zip(actions, in_use.tolist(), strict=True):
        most = max(most, num_bytes)
        if action.kind in ("op", "again"):
            seconds[-1] += costs.op_seconds[action.index]
        if action.kind == "op":
            ops.append(action.index)
            use.append(most)
            seconds.append(0.0)
            most = 0
        elif action.kind == "out":
            made[action.index] = len(ops) - 1
        elif action.kind == "in":
            read[action.index] = len(ops)
    return _Points(ops, np.array(use, np.int64), list(accumulate(seconds[:-1])), made, read)


def moved(actions: Sequence[Action], moves: Moves) -> list[Action]:
    """Return the actions with the copies where `moves` puts them."""
    copies: dict[int, list[Action]] = {}  # by the op after which they stand
    others = []
    for action in actions:
        op = None
        if action.kind == "out":
            op = moves.awaited.get(action.index)
        elif action.kind == "in":
            op = moves.fetched.get(action.index)
        if op is None:
            others.append(action)
        else:
            copies.setdefault(op, []).append(action)
    result = []
    for action in others:
        result.append(action)
        if action.kind == "op":
            result += copies.pop(action.index, ())
    return result


def curve(ends: Sequence[float], in_use: Sequence[int]) -> tuple[tuple[float, int], ...]:
    """Return (seconds, bytes) where the memory in use changes by a hundredth of its peak."""
    least = max(in_use, default=0) / 100
    points: list[tuple[float, int]] = []
    begin = 0.0
    for end, num_bytes in zip(ends, in_use, strict=True):
        if not points or abs(num_bytes - points[-1][1]) > least:
            points.append((round(begin, 7), int(num_bytes)))
        begin = end
    return (*points, (round(begin, 7), points[-1][1])) if points else ()
