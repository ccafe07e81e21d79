"""Tensors that leave the device for a while, so that the allocator finds room in one piece. Pure.

A plan's bytes may be within the budget, and yet lie so that nothing large has room between them.
What lies in the way leaves for the host, whatever pass it is of, and comes back where it is read
next. What the op itself reads leaves too, and is back at once, with nothing but its like beside it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tfunet.graph.step import Trace, fused
from tfunet.swap.arena.arena import Arena, failing, requests
from tfunet.swap.plan.schedule import Action, Copy, buffers_of

# So often more of them are looked for at most.
ROUNDS = 40
# With what leaves, the tensors leave that nobody reads there and that are smaller than such a part
# of what the allocator has: they cost little, and where they lie hangs on all that was before.
SMALL_SHARE = 1 / 64
# Smaller ones than such a part stay.
LEAST_SHARE = 1 / 16384
# Of the tensors that nobody reads there, so many are tried alone before the largest goes.
TRIED_ALONE = 8


class Detour(NamedTuple):
    """A tensor that leaves the device for a while: the copy of it that is there.

    Args:
        tensor: Its index.
        leaves: Before which action, by its name (`name_of`).
        returns: The same.
    """

    tensor: int
    leaves: str
    returns: str


def name_of(trace: Trace, action: Action) -> str:
    """Return a name of an action that no other of its step has."""
    if action.kind == "op":
        return trace.ops[action.index].name
    named = trace.ops if action.kind == "again" else trace.tensors
    number = action.outputs[0][1] if action.outputs else 1
    return f"{action.kind} {named[action.index].name}" + (f" {number}" if number > 1 else "")


def with_detours(
    trace: Trace, actions: Sequence[Action], detours: Iterable[Detour]
) -> list[Action]:
    """Return the actions with those of the detours."""
    return [action for action, _ in _with_places(trace, actions, detours)]


def _with_places(
    trace: Trace, actions: Sequence[Action], detours: Iterable[Detour]
) -> Iterator[tuple[Action, int]]:
    """Yield the actions with those of the detours, and the place of each in `actions`, or of the
    one before which it comes."""
    leaving: dict[str, list[int]] = {}
    returning: dict[str, list[int]] = {}
    for one in detours:
        leaving.setdefault(one.leaves, []).append(one.tensor)
        returning.setdefault(one.returns, []).append(one.tensor)
    number = max((copy[1] for action in actions for copy in action.outputs), default=0)
    latest: dict[int, Copy] = {}
    instead: dict[Copy, Copy] = {}

    def now(copy: Copy) -> Copy:
        while copy in instead:
            copy = instead[copy]
        return copy

    for place, action in enumerate(actions):
        name = name_of(trace, action) if detours else ""
        for tensor in leaving.get(name, ()):
            yield Action("leave", tensor, (now(latest[tensor]),), ()), place
        for tensor in returning.get(name, ()):
            number += 1
            instead[now(latest[tensor])] = (tensor, number)
            yield Action("return", tensor, (), ((tensor, number),)), place
        latest.update((copy[0], copy) for copy in action.outputs)
        yield action._replace(inputs=tuple(map(now, action.inputs))), place


def find(
    trace: Trace,
    actions: Sequence[Action],
    blocks: Mapping[int, Sequence[int]],
    arenas: Sequence[Callable[[], Arena]],
    *,
    limit_bytes: int,
) -> list[Detour]:
    """Return the detours with which a step finds room, or comes further.

    Where the allocator has no room, that leaves with which it has room in most arenas: a tensor
    that nobody reads there, or those that are read there, which come back at once, one beside the
    other. Where neither is enough, the largest of the former goes, and the next is looked for.

    Args:
        trace: The step, cut as it will run.
        actions: Of it.
        blocks: See `tfunet.swap.arena.arena.requests`.
        arenas: Make what the step may find; each must have room.
        limit_bytes: What the allocator has.
    """
    search = _Search(trace, actions, blocks, limit_bytes)
    detours: list[Detour] = []
    for _ in range(ROUNDS):
        more = _further(search, detours, arenas, [*search.failing(arenas, detours)])
        if more is None:
            break
        detours = more
    return _needed(search, detours, arenas)


def _further(
    search: "_Search",
    detours: list[Detour],
    arenas: Sequence[Callable[[], Arena]],
    places: Sequence[int | None],
) -> list[Detour] | None:
    """Return detours with which most of the arenas have room where they had none; failing that,
    those that there were and the largest tensor in the way; None where there is none.

    `places` are those of `_Search.failing`, an arena each.
    """
    largest: list[Detour] | None = None
    for place in sorted({one for one in places if one is not None}):
        unread, read = search.movable(detours, place)
        if largest is None and unread:
            largest = _joined(detours, unread[:1])
        small = [one for one in unread if search.is_small(one)]
        some = [one for one, at in zip(arenas, places, strict=True) if at == place]
        found: list[tuple[int, int, list[Detour]]] = []
        for alone in [
            *([one] for one in unread[:TRIED_ALONE]),
            *([read, read[::-1]] if read else ()),
        ]:
            trial = [*alone, *(one for one in small if one not in alone)]
            # What returns first comes to lie first.
            for joined in (_joined(detours, trial), _joined(trial, detours)):
                ends = search.failing(some, joined)
                further = sum(at is None or at > place for at in ends)
                found.append((further, -search.num_bytes(trial), joined))
        further, _, best = max(found, default=(0, 0, []))
        if further:
            return best
    return largest


def _joined(detours: Sequence[Detour], more: Sequence[Detour]) -> list[Detour]:
    """Return detours with more of them, two of a tensor as one where one ends as another begins."""
    found = list(detours)
    for one in more:
        for at, other in enumerate(found):
            if (other.tensor, other.leaves) == (one.tensor, one.returns):
                found[at] = other._replace(leaves=one.leaves)
                break
            if (other.tensor, other.returns) == (one.tensor, one.leaves):
                found[at] = other._replace(returns=one.returns)
                break
        else:
            found.append(one)
    return found


def _needed(
    search: "_Search", detours: Sequence[Detour], arenas: Sequence[Callable[[], Arena]]
) -> list[Detour]:
    """Return the detours without those of large tensors that no arena needs, the largest first.

    What is only moved stays moved: where it would lie otherwise hangs on what nobody knows.
    """

    def have_room(some: Sequence[Detour]) -> set[int]:
        return {at for at, one in enumerate(search.failing(arenas, some)) if one is None}

    found, with_all = list(detours), have_room(detours)
    large = [one for one in detours if not search.is_small(one) and one.leaves != one.returns]
    for one in sorted(large, key=lambda one: -search.num_bytes([one])):
        fewer = [other for other in found if other is not one]
        if with_all <= have_room(fewer):
            found = fewer
    return found


def movable(
    trace: Trace,
    actions: Sequence[Action],
    detours: Sequence[Detour],
    place: int,
    *,
    least_bytes: int,
) -> tuple[list[Detour], list[Detour]]:
    """Return the detours that tensors can take which are there before an action: of those that it
    does not read, and of those that it does, the largest first.

    Args:
        trace: The step, cut as it will run.
        actions: Of it.
        detours: That are taken.
        place: Of the action.
        least_bytes: Smaller tensors stay.
    """
    both = list(_with_places(trace, actions, detours))
    begin = next(at for at, (_, one) in enumerate(both) if one == place)
    found = [action for action, _ in both]
    buffers = buffers_of(trace, found)
    inner = {out for one in fused(trace) for out in trace.ops[one].outputs}
    there = {copy for action in found[:begin] for copy in action.outputs}
    awaited = {action.index for action in found[begin:] if action.kind == "out"}
    readers: dict[int, dict[Copy, int]] = {}
    for action, at in both[begin:]:
        for copy in action.inputs:
            if copy in there:
                readers.setdefault(buffers[copy], {}).setdefault(copy, at)
    unread: list[Detour] = []
    read: list[Detour] = []
    for copies in readers.values():
        ((tensor, _), reader), *views = copies.items()
        one = trace.tensors[tensor]
        stays = views or one.is_inner or one.is_result or one.num_bytes < least_bytes
        if stays or tensor in awaited or tensor in inner:
            continue
        here, there_again = (name_of(trace, actions[at]) for at in (place, reader))
        (unread if reader > place else read).append(Detour(tensor, here, there_again))
    for some in (unread, read):
        some.sort(key=lambda one: (-trace.tensors[one.tensor].num_bytes, one))
    return unread, read


class _Search:
    def __init__(
        self,
        trace: Trace,
        actions: Sequence[Action],
        blocks: Mapping[int, Sequence[int]],
        limit_bytes: int,
    ) -> None:
        self._trace = trace
        self._actions = actions
        self._blocks = blocks
        self._least_bytes = int(limit_bytes * LEAST_SHARE)
        self._small_bytes = int(limit_bytes * SMALL_SHARE)
        parts = {reader: op for op, reader in fused(trace).items()}
        places = {one.index: at for at, one in enumerate(actions) if one.kind == "op"}
        # Of what runs as one op, it is the first that waits for what leaves.
        self._firsts: dict[int, int] = {}
        for op, place in places.items():
            first = op
            while first in parts:
                first = parts[first]
            self._firsts[place] = places[first]

    def num_bytes(self, detours: Iterable[Detour]) -> int:
        return sum(self._trace.tensors[one.tensor].num_bytes for one in detours)

    def is_small(self, detour: Detour) -> bool:
        return self.num_bytes([detour]) < self._small_bytes

    def failing(
        self, arenas: Iterable[Callable[[], Arena]], detours: Sequence[Detour]
    ) -> Iterator[int | None]:
        """Yield the place of the first action for which each arena has no room, None if it has."""
        both = list(_with_places(self._trace, self._actions, detours))
        asked = requests(self._trace, [action for action, _ in both], self._blocks)
        for make in arenas:
            # Something small is free somewhere.
            at = failing(make(), asked, least_bytes=self._small_bytes // 4)
            yield None if at is None else both[at][1]

    def movable(self, detours: Sequence[Detour], place: int) -> tuple[list[Detour], list[Detour]]:
        first = self._firsts.get(place, place)
        return movable(self._trace, self._actions, detours, first, least_bytes=self._least_bytes)
