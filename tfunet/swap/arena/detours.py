"""Tensors that leave the device for a while, so that the allocator finds room in one piece. Pure.

The tensors of a plan can fit the budget and still lie so that no gap between them holds a large
one. A tensor in the way then leaves for the host, whatever pass it belongs to, and comes back where
it is read next. Inputs of the op itself leave too and come back at once, one beside the other:

    before op c    |  free  | b |   free   |    enough is free for c, but not in one piece
    leave b        |          free         |
    op c           |      c      |   free  |
    return b       |      c      | b |free |    at once if op c reads b, or before b's next reader
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tfunet.graph.step import Trace, fused
from tfunet.swap.arena.arena import Arena, failing, requests
from tfunet.swap.plan.schedule import Action, Copy, buffers_of

# How many times more detours are looked for at most.
ROUNDS = 40
# With a tensor that leaves, all unread tensors leave that are smaller than this share of the
# allocator's memory: they cost little, and where they lie depends on all that was before.
SMALL_SHARE = 1 / 64
# Tensors smaller than this share stay.
LEAST_SHARE = 1 / 16384
# How many of the unread tensors are tried alone before the largest goes.
TRIED_ALONE = 8


class Detour(NamedTuple):
    """A tensor whose copy on the device leaves for a while.

    Args:
        tensor: Its index.
        leaves: Name of the action before which it leaves (`name_of`).
        returns: Name of the action before which it returns.
    """

    tensor: int
    leaves: str
    returns: str


def name_of(trace: Trace, action: Action) -> str:
    """Return a name of an action that no other action of its step has."""
    if action.kind == "op":
        return trace.ops[action.index].name
    named = trace.ops if action.kind == "again" else trace.tensors
    return f"{action.kind} {named[action.index].name}"


def with_detours(
    trace: Trace, actions: Sequence[Action], detours: Iterable[Detour]
) -> list[Action]:
    """Return the actions with those of the detours."""
    return [action for action, _ in _with_places(trace, actions, detours)]


def _with_places(
    trace: Trace, actions: Sequence[Action], detours: Iterable[Detour]
) -> Iterator[tuple[Action, int]]:
    """Yield the actions with those of the detours, each with the place in `actions` where it
    stands, or before which it was inserted."""
    leaving: dict[str, list[int]] = {}
    returning: dict[str, list[int]] = {}
    for detour in detours:
        leaving.setdefault(detour.leaves, []).append(detour.tensor)
        returning.setdefault(detour.returns, []).append(detour.tensor)
    number = max((copy[1] for action in actions for copy in action.outputs), default=0)
    latest: dict[int, Copy] = {}
    returned_as: dict[Copy, Copy] = {}

    def now(copy: Copy) -> Copy:
        while copy in returned_as:
            copy = returned_as[copy]
        return copy

    for place, action in enumerate(actions):
        name = name_of(trace, action) if detours else ""
        for tensor in leaving.get(name, ()):
            yield Action("leave", tensor, (now(latest[tensor]),), ()), place
        for tensor in returning.get(name, ()):
            number += 1
            returned_as[now(latest[tensor])] = (tensor, number)
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
    """Return detours with which a cut step finds room, or gets further.

    At the first action without room, the detour is taken that gives room in most arenas: of a
    tensor that is not read there, or of those that are, which come back at once, one beside the
    other. Where neither gives room, the largest unread tensor leaves, and the search goes on.

    `arenas` make the memory that the step may find; each should have room. For `blocks` see
    `tfunet.swap.arena.arena.requests`.
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
    """Return detours that give room in most of the arenas that had none, at `places`. Failing that,
    add the largest tensor in the way; None where there is none.
    """
    largest: list[Detour] | None = None
    for place in sorted({place for place in places if place is not None}):
        unread, read = search.movable(detours, place)
        if largest is None and unread:
            largest = _joined(detours, unread[:1])
        small = [detour for detour in unread if search.is_small(detour)]
        failing_here = [make for make, at in zip(arenas, places, strict=True) if at == place]
        trials: list[tuple[int, int, list[Detour]]] = []
        for alone in [
            *([detour] for detour in unread[:TRIED_ALONE]),
            *([read, read[::-1]] if read else ()),
        ]:
            trial = [*alone, *(detour for detour in small if detour not in alone)]
            # Tensors get addresses in the order in which they return: try both orders.
            for joined in (_joined(detours, trial), _joined(trial, detours)):
                ends = search.failing(failing_here, joined)
                further = sum(at is None or at > place for at in ends)
                trials.append((further, -search.num_bytes(trial), joined))
        further, _, best = max(trials, default=(0, 0, []))
        if further:
            return best
    return largest


def _joined(detours: Sequence[Detour], more: Sequence[Detour]) -> list[Detour]:
    """Return all detours; two of one tensor become one if one ends where the other begins."""
    joined = list(detours)
    for detour in more:
        for at, earlier in enumerate(joined):
            if (earlier.tensor, earlier.leaves) == (detour.tensor, detour.returns):
                joined[at] = earlier._replace(leaves=detour.leaves)
                break
            if (earlier.tensor, earlier.returns) == (detour.tensor, detour.leaves):
                joined[at] = earlier._replace(returns=detour.returns)
                break
        else:
            joined.append(detour)
    return joined


def _needed(
    search: "_Search", detours: Sequence[Detour], arenas: Sequence[Callable[[], Arena]]
) -> list[Detour]:
    """Return the detours without those of large tensors that no arena needs.

    Tensors that come back at once still move: where they would lie otherwise is not known.
    """

    def have_room(some: Sequence[Detour]) -> set[int]:
        return {at for at, place in enumerate(search.failing(arenas, some)) if place is None}

    needed, with_all = list(detours), have_room(detours)
    large = [
        detour
        for detour in detours
        if not search.is_small(detour) and detour.leaves != detour.returns
    ]
    for detour in sorted(large, key=lambda detour: -search.num_bytes([detour])):
        fewer = [kept for kept in needed if kept is not detour]
        if with_all <= have_room(fewer):
            needed = fewer
    return needed


def movable(
    trace: Trace,
    actions: Sequence[Action],
    detours: Sequence[Detour],
    place: int,
    *,
    least_bytes: int,
) -> tuple[list[Detour], list[Detour]]:
    """Return the detours that tensors of at least `least_bytes` can take before the action at
    `place`: of those that it does not read, and of those that it reads, the largest first.
    """
    placed = list(_with_places(trace, actions, detours))
    begin = next(at for at, (_, action_place) in enumerate(placed) if action_place == place)
    all_actions = [action for action, _ in placed]
    buffers = buffers_of(trace, all_actions)
    inner = {tensor for op in fused(trace) for tensor in trace.ops[op].outputs}
    made = {copy for action in all_actions[:begin] for copy in action.outputs}
    awaited = {action.index for action in all_actions[begin:] if action.kind == "out"}
    readers: dict[int, dict[Copy, int]] = {}  # by buffer: where each of its copies is read next
    for action, at in placed[begin:]:
        for copy in action.inputs:
            if copy in made:
                readers.setdefault(buffers[copy], {}).setdefault(copy, at)
    unread: list[Detour] = []
    read: list[Detour] = []
    for copies in readers.values():
        ((tensor, _), reader), *views = copies.items()
        described = trace.tensors[tensor]
        stays = views or described.is_inner or described.is_result
        if stays or described.num_bytes < least_bytes or tensor in awaited or tensor in inner:
            continue
        leaves, returns = (name_of(trace, actions[at]) for at in (place, reader))
        (unread if reader > place else read).append(Detour(tensor, leaves, returns))
    for some in (unread, read):
        some.sort(key=lambda detour: (-trace.tensors[detour.tensor].num_bytes, detour))
    return unread, read


class _Search:
    """A step for which detours are looked for; see `find`."""

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
        places = {action.index: at for at, action in enumerate(actions) if action.kind == "op"}
        # The first of the ops that run as one waits for what leaves.
        self._firsts: dict[int, int] = {}
        for op, place in places.items():
            first = op
            while first in parts:
                first = parts[first]
            self._firsts[place] = places[first]

    def num_bytes(self, detours: Iterable[Detour]) -> int:
        return sum(self._trace.tensors[detour.tensor].num_bytes for detour in detours)

    def is_small(self, detour: Detour) -> bool:
        return self.num_bytes([detour]) < self._small_bytes

    def failing(
        self, arenas: Iterable[Callable[[], Arena]], detours: Sequence[Detour]
    ) -> Iterator[int | None]:
        """Yield the place of the first action for which each arena has no room, None if it has."""
        placed = list(_with_places(self._trace, self._actions, detours))
        asked = requests(self._trace, [action for action, _ in placed], self._blocks)
        for make in arenas:
            # Something small is free somewhere.
            at = failing(make(), asked, least_bytes=self._small_bytes // 4)
            yield None if at is None else placed[at][1]

    def movable(self, detours: Sequence[Detour], place: int) -> tuple[list[Detour], list[Detour]]:
        first = self._firsts.get(place, place)
        return movable(self._trace, self._actions, detours, first, least_bytes=self._least_bytes)
