"""How much of a budget a plan may use for TensorFlow's allocator to find it in pieces. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tfunet.swap.arena import Arena, Request, at_start, plays, requests
from tfunet.swap.chains import blocks_of_slab
from tfunet.swap.plan import Plan
from tfunet.swap.planned import as_planned, cut, scheduled
from tfunet.swap.split import Cut
from tfunet.swap.steps import Trace

# So many plans are tried at most: to make one takes seconds where there are thousands of ops.
MOST_TRIALS = 10
# The budget of a plan is less than that of the one before by so much at least, and at most.
LEAST_STEP, MOST_STEP = 1.04, 1.6
# Of the budget: how far in things may lie that nobody knows of, such as what timing the ops left
# behind. Where a tensor comes to lie hangs on them: a plan has room if it has with each.
HOLES = (0.0, 0.01, 0.02, 0.035, 0.05, 0.07)
# How large they may be, beside what is there as often again, the next batch say: of that, so much.
UNKNOWN, MOST_AGAIN = 0.05, 0.1


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of a device as a step finds it.

    Args:
        limit_bytes: The budget.
        first_bytes: See `tfunet.swap.arena.at_start`.
        resident: Bytes of each variable.
        more_bytes: Of all else that is there, such as the batch.
    """

    limit_bytes: int
    first_bytes: int = 0
    resident: Sequence[int] = ()
    more_bytes: int = 0

    @property
    def step_bytes(self) -> int:
        """What is left to a step."""
        return max(0, self.limit_bytes - sum(self.resident) - self.more_bytes)


def fitted(
    step: Trace,
    memory: Memory,
    make: Callable[[int], Plan],
    scratch: Mapping[int, int],
    *,
    most_bytes: int | None = None,
) -> Plan:
    """Return the plan with the largest budget for which TensorFlow's allocator finds room.

    The allocator hands out blocks of up to twice the size that is asked for, and leaves gaps
    between them. It is played through the step under one plan after the other, each for a smaller
    budget. Where none has room, that which has it most often, with the lowest peak.

    Args:
        step: That is planned.
        memory: Of the device.
        make: Returns the plan for so many bytes.
        scratch: See `tfunet.swap.schedule.memory`.
        most_bytes: Budget to begin with instead of all that a step has.
    """
    tried: list[Plan] = []
    budget_bytes = memory.step_bytes if most_bytes is None else most_bytes
    while len(tried) < MOST_TRIALS:
        plan = make(budget_bytes)
        is_over = plan.peak_bytes > plan.budget_bytes
        if is_over and tried and plan.peak_bytes >= tried[-1].peak_bytes:
            break  # There is nothing less.
        asked = _asked(step, plan, scratch)
        plan = replace(plan, finds_room=_had_room(memory, asked))
        tried.append(plan)
        # Of a step that is not cut there is nothing less; slabs may be lower.
        if plan.finds_room == 1 or (is_over and not plan.split):
            break
        budget_bytes = int(min(budget_bytes, plan.peak_bytes) / _short(memory, asked))
    best = max(tried, key=lambda one: (one.finds_room, -one.peak_bytes))
    most = tried[0].budget_bytes
    if best.finds_room == 1 and best.peak_bytes <= best.budget_bytes:
        return best
    # The budget that it was made for was smaller than that of the step.
    if best.peak_bytes <= most:
        best = replace(best, obstacles={}, advice=(), wanted_host_bytes=0, wanted_peak_bytes=0)
    return replace(best, budget_bytes=most)


def finds_room(step: Trace, memory: Memory, plan: Plan, scratch: Mapping[int, int]) -> float:
    """Return how often, of the times it was played through, the allocator had room for a plan."""
    return _had_room(memory, _asked(step, plan, scratch))


def _had_room(memory: Memory, asked: Sequence[Request]) -> float:
    had_room = [plays(arena, asked) for arena in _arenas(memory)]
    return sum(had_room) / len(had_room)


def _short(memory: Memory, asked: Sequence[Request]) -> float:
    """Return how many times its memory a plan wants, to have room in it."""
    times = LEAST_STEP
    while times < MOST_STEP:
        larger = replace(memory, limit_bytes=int(memory.limit_bytes * times))
        if all(plays(arena, asked) for arena in _arenas(larger)):
            break
        times *= LEAST_STEP
    return times


def _arenas(memory: Memory) -> Iterator[Arena]:
    """Yield what a step may find, as `HOLES` has it."""
    again = min(memory.more_bytes, int(MOST_AGAIN * memory.limit_bytes))
    most_bytes = memory.more_bytes + again + int(UNKNOWN * memory.limit_bytes)
    for hole in HOLES:
        for more_bytes in (most_bytes, memory.more_bytes):
            yield at_start(
                memory.limit_bytes,
                first_bytes=memory.first_bytes,
                resident=memory.resident,
                more_bytes=more_bytes,
                hole_bytes=int(hole * memory.limit_bytes),
            )


def _asked(step: Trace, plan: Plan, scratch: Mapping[int, int]) -> list[Request]:
    """Return what a step asks of the allocator under a plan."""
    step = as_planned(step, plan)
    found = cut(step, plan)
    return requests(found.trace, scheduled(found.trace, plan), _blocks(step, found, scratch))


def _blocks(step: Trace, found: Cut, scratch: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """Return the bytes of the blocks that ops of a cut step need and no tensor shows."""
    own = found.scratch_with(scratch)
    blocks: dict[int, Sequence[int]] = {one: [size] for one, size in own.items()}
    for last, chain in found.chains.items():
        of_slab = blocks_of_slab(step, chain.ops, chain.height)
        blocks[last] = [*of_slab, own[last] - sum(of_slab)]
    return blocks
