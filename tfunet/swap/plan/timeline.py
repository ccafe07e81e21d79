"""When ops and copies of a step happen: one copy at a time in each direction. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from tfunet.graph.step import Trace
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.schedule import Action, Copy, is_on_host, memory


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """How long a step takes.

    Args:
        step_seconds: From its first op to its last.
        repeat_seconds: Of that, ops that are run again.
        exposed_seconds: Of that, time in which nothing is computed because a copy is awaited.
        copy_seconds: All copies, hidden or not.
        ends: When each action is over, (actions,), in seconds.
    """

    step_seconds: float
    repeat_seconds: float
    exposed_seconds: float
    copy_seconds: float
    ends: tuple[float, ...]


def timeline(trace: Trace, actions: Sequence[Action], costs: Costs) -> Timeline:
    """Return how long the actions take in this order.

    A copy out begins when its tensor is there, and where "out" stands the step waits for its end.
    A copy in begins where "in" stands, and what reads it waits for its end. What leaves to make
    room is waited for.
    """
    now = repeats = exposed = copies = 0.0
    out_free = in_free = 0.0
    ends: list[float] = []
    leaving: dict[int, float] = {}
    arriving: dict[Copy, float] = {}
    disk_of: dict[int, int] = {}  # of what has left: itself if it is swapped, or -1
    swapped = {action.index for action in actions if action.kind == "out"}
    for action in actions:
        if action.kind in ("out", "in"):
            seconds = (
                costs.leaving_seconds(trace, action.index)
                if action.kind == "out"
                else costs.arriving_seconds(trace, action.index)
            )
            copies += seconds
            if not costs.copies_overlap:
                now += seconds
                exposed += seconds
            elif action.kind == "out":
                waited = max(0.0, leaving[action.index] - now)
                now += waited
                exposed += waited
            else:
                begin = max(now, in_free, leaving[action.index])
                in_free = arriving[action.outputs[0]] = begin + seconds
            ends.append(now)
            continue
        if action.kind == "leave":
            is_there = is_on_host(trace, action.inputs[0], swapped)
            disk_of[action.index] = action.index if is_there else -1
            if is_there:
                end = max(now, leaving[action.index]) if costs.copies_overlap else now
            else:
                seconds = costs.out_seconds(trace.tensors[action.index].num_bytes)
                copies += seconds
                end = out_free = max(now, out_free) + seconds
            exposed += end - now
            now = end
            ends.append(now)
            continue
        if action.kind == "return":
            num_bytes = trace.tensors[action.index].num_bytes
            seconds = costs.in_seconds(num_bytes, disk_of[action.index])
            copies += seconds
            if costs.copies_overlap:
                in_free = arriving[action.outputs[0]] = max(now, in_free) + seconds
            else:
                now += seconds
                exposed += seconds
            ends.append(now)
            continue
        ready = max((arriving.get(one, 0.0) for one in action.inputs), default=0.0)
        waited = max(0.0, ready - now)
        seconds = costs.op_seconds[action.index]
        now += waited + seconds
        exposed += waited
        repeats += seconds if action.kind == "again" else 0.0
        ends.append(now)
        for tensor, back in action.outputs:
            if not back and tensor in swapped:
                begin = max(now, out_free)
                out_free = begin + costs.leaving_seconds(trace, tensor)
                leaving[tensor] = out_free
    return Timeline(
        step_seconds=now,
        repeat_seconds=repeats,
        exposed_seconds=exposed,
        copy_seconds=copies,
        ends=tuple(ends),
    )


@dataclass(frozen=True, kw_only=True)
class Moves:
    """Where the copies of a step stand: tensor to the op (by index) right after which.

    Args:
        awaited: Where the step waits for a tensor's copy to the host.
        fetched: Where its copy to the device begins, the first if there are several.
        fetched_again: The same of the others, by tensor and number.
    """

    awaited: Mapping[int, int]
    fetched: Mapping[int, int]
    fetched_again: Mapping[Copy, int] = field(default_factory=dict)


def overlap(
    trace: Trace,
    actions: Sequence[Action],
    costs: Costs,
    *,
    budget_bytes: int,
    scratch: Mapping[int, int] | None = None,
) -> Moves:
    """Return where the copies should stand so that computation hides them.

    A copy to the device begins as early as it takes, that of the next one in mind, and a copy to
    the host is awaited as late; but only as far as there is memory for what is then there longer.
    """
    if not costs.copies_overlap:
        return Moves(awaited={}, fetched={})
    ops, use = _points(trace, actions, memory(trace, actions, scratch))
    at = {op: point for point, op in enumerate(ops)}
    seconds = [0.0] * len(ops)
    made: dict[int, int] = {}  # tensor to the point after whose op its copy out stands
    read: dict[int, int] = {}  # tensor to the point whose op, or its repetitions, wants it back
    point = -1
    for action in actions:
        if action.kind == "op":
            point = at[action.index]
            seconds[point] += costs.op_seconds[action.index]
        elif action.kind == "again":
            seconds[point + 1] += costs.op_seconds[action.index]
        elif action.kind == "out":
            made[action.index] = point
        else:
            read[action.index] = point + 1
    ends = list(accumulate(seconds))  # of computation, after the op of each point
    room = budget_bytes - use

    awaited = {}
    free = 0.0
    for tensor, first in made.items():
        # Compressed, it is that form which waits on the device for its copy.
        num_bytes = trace.tensors[tensor].stored_bytes
        free = max(free, ends[first]) + costs.leaving_seconds(trace, tensor)
        last = first
        while last + 1 < read.get(tensor, len(ops)) - 1 and ends[last] < free:
            if room[last + 1] < num_bytes:
                break
            last += 1
            room[last] -= num_bytes
        if last > first:
            awaited[tensor] = ops[last]
        free = max(free, 0.0)

    fetched = {}
    begin = ends[-1]
    for tensor, wanted in reversed(read.items()):
        num_bytes = trace.tensors[tensor].num_bytes + trace.tensors[tensor].compressed_bytes
        computed = ends[wanted - 1] if wanted else 0.0
        begin = min(begin, computed) - costs.arriving_seconds(trace, tensor)
        after = wanted - 1
        # Right after its op it has not left yet.
        limit = at[awaited[tensor]] if tensor in awaited else made[tensor] + 1
        while after > limit and ends[after] > begin and room[after] >= num_bytes:
            room[after] -= num_bytes
            after -= 1
        begin = max(begin, ends[after])
        if after < wanted - 1:
            fetched[tensor] = ops[after]
    return Moves(awaited=awaited, fetched=fetched)


def moved(actions: Sequence[Action], moves: Moves) -> list[Action]:
    """Return the actions with the copies where `moves` puts them."""
    fetched = {**{(one, 1): op for one, op in moves.fetched.items()}, **moves.fetched_again}
    wanted: dict[int, list[Action]] = {}
    rest = []
    for action in actions:
        place = None
        if action.kind == "out":
            place = moves.awaited.get(action.index)
        elif action.kind == "in":
            place = fetched.get(action.outputs[0])
        if place is None:
            rest.append(action)
        else:
            wanted.setdefault(place, []).append(action)
    found = []
    for action in rest:
        found.append(action)
        if action.kind == "op":
            found += wanted.pop(action.index, ())
    return found


def _points(
    trace: Trace, actions: Sequence[Action], in_use: np.ndarray
) -> tuple[list[int], np.ndarray]:
    """Return the ops in order, and the most bytes in use at each: while it runs, with what is
    repeated or copied just before it."""
    ops: list[int] = []
    use: list[int] = []
    before = 0
    for action, num_bytes in zip(actions, in_use.tolist(), strict=True):
        before = max(before, num_bytes)
        if action.kind == "op":
            ops.append(action.index)
            use.append(before)
            before = 0
    return ops, np.array(use, np.int64)


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
