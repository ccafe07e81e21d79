"""Where to cut a chain of layers, so that the slowest device has the least to do. Pure.

Both searches are exact: no other cut of the chain, in its order, has a faster slowest device. Among
equally good cuts into stages, the one with the least traffic is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from tfunet.pipeline.chain import Chain
from tfunet.pipeline.schedules import most_live

# What the layers [begin, end) cost on a device.
Cost = Callable[[int, int, int], float]
# Times that differ by less are alike: sums of the same numbers in another order.
SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Balance:
    """A cut of a chain into stages.

    Args:
        cuts: Where each stage begins, and the end.
        devices: The device of each stage.
        seconds: Time of each device for a micro-batch, both passes.
    """

    cuts: tuple[int, ...]
    devices: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def imbalance(self) -> float:
        """The time of the slowest device, as a multiple of the mean."""
        mean = sum(self.seconds) / len(self.seconds)
        return max(self.seconds) / mean if mean else 1.0


class NoBalanceError(ValueError):
    """The chain cannot be cut as it should be."""


def balance(
    chain: Chain,
    num_stages: int,
    *,
    live: Sequence[int] | None = None,
    memory_bytes: int | None = None,
    recomputed: Sequence[float] | None = None,
) -> Balance:
    """Return the cut into stages, one a device, whose slowest stage is fastest.

    Args:
        live: How many micro-batches each stage keeps at most between their two passes.
        memory_bytes: What a stage may use.
        recomputed: The share of the micro-batches whose forward pass each stage makes twice.

    Raises NoBalanceError if there are too few layers, or none of the cuts keeps to the memory.
    """
    _check(chain, num_stages)
    kept = live or [1] * num_stages
    again = recomputed or [0.0] * num_stages

    def memory(begin: int, end: int, device: int) -> float:
        stage = chain.stage(begin, end)
        return stage.memory_bytes(kept[device], recompute=again[device] > 0)

    def seconds(begin: int, end: int, device: int) -> float:
        if memory_bytes is not None and memory(begin, end, device) > memory_bytes:
            return inf
        return _seconds(chain, begin, end, again[device])

    # What a recomputed stage keeps is what crosses its borders, which may be less for a longer one.
    grows = memory_bytes is None or not any(again)
    least, _ = _best(chain, num_stages, seconds, max, grows=grows)
    if least == inf:
        best, _ = _best(chain, num_stages, memory, max, grows=grows)
        raise NoBalanceError(_too_large(num_stages, memory_bytes, best))

    def traffic(begin: int, end: int, device: int) -> float:
        if seconds(begin, end, device) > least + SAME * chain.seconds:
            return inf
        return sum(chain.stage(begin, end).receives.values())

    _, cuts = _best(chain, num_stages, traffic, lambda first, second: first + second, grows=grows)
    return _of_cuts(chain, cuts, again)


def balances(
    chain: Chain,
    num_stages: int,
    *,
    schedule: str,
    micro_batches: int,
    memory_bytes: int | None = None,
    recomputed: Sequence[float] | None = None,
) -> list[Balance]:
    """Return the cuts to try: for "v" the one whose devices are most alike, and the one whose
    chunks are, which makes devices wait less for each other."""
    if schedule != "v":
        live = most_live(schedule, num_stages, micro_batches)
        return [
            balance(chain, num_stages, live=live, memory_bytes=memory_bytes, recomputed=recomputed)
        ]
    live_of_chunk = min(micro_batches, 2 * num_stages)
    found = v_balance(chain, num_stages, live=live_of_chunk, memory_bytes=memory_bytes)
    if memory_bytes is not None:
        return [found]
    return [found, folded(balance(chain, 2 * num_stages))]


def _places(chain: Chain) -> list[int]:
    """Return where a cut may be, with both ends."""
    return [cut for cut in range(len(chain.layers) + 1) if cut not in chain.shared]


def _best(
    chain: Chain,
    num_stages: int,
    cost: Cost,
    join: Callable[[float, float], float],
    *,
    grows: bool = True,
) -> tuple[float, list[int]]:
    """Return the least joined cost of all stages, and their cuts; see `_table`."""
    best, came = _table(_places(chain), num_stages, cost, join, grows=grows)
    cuts = [len(chain.layers)]
    for stage in range(num_stages, 0, -1):
        cuts.append(came[stage][cuts[-1]])
    return best[num_stages][len(chain.layers)], cuts[::-1]


def _table(
    places: Sequence[int],
    num_stages: int,
    cost: Cost,
    join: Callable[[float, float], float],
    *,
    grows: bool = True,
) -> tuple[list[list[float]], list[list[int]]]:
    """Return the least joined cost of so many stages up to each place, and where the last begins.

    If `grows`, the cost of a stage must not fall where it gets longer; with another `join` than
    `max` it must only stay infinite.
    """
    size = places[-1] + 1
    best = [[inf] * size for _ in range(num_stages + 1)]
    came = [[0] * size for _ in range(num_stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, num_stages + 1):
        before, now = best[stage - 1], best[stage]
        for end in places:
            for begin in reversed(places):
                if begin >= end or before[begin] >= now[end]:
                    continue
                own = cost(begin, end, stage - 1)
                if grows and (own == inf or (join is max and own >= now[end])):
                    break  # Longer stages cost no less.
                if join(before[begin], own) < now[end]:
                    now[end], came[stage][end] = join(before[begin], own), begin
    return best, came


def _seconds(chain: Chain, begin: int, end: int, recomputed: float = 0.0) -> float:
    forward = chain.forward_seconds_before
    seconds = chain.seconds_before[end] - chain.seconds_before[begin]
    return seconds + recomputed * (forward[end] - forward[begin])


def v_balance(
    chain: Chain,
    num_devices: int,
    *,
    live: int = 1,
    memory_bytes: int | None = None,
) -> Balance:
    """Return the cut into two chunks a device, the first with the last, and so on inwards.

        device      1     2     3     3     2     1
        layers  |-----|-----|-----|-----|-----|-----|

    Args:
        live: How many micro-batches each chunk keeps at most between their two passes.
        memory_bytes: What the two chunks of a device may use.

    Raises NoBalanceError as `balance` does.
    """
    _check(chain, 2 * num_devices)
    search = _Folded(chain, num_devices, live, memory_bytes)
    cuts = search.within(inf)
    if cuts is None:
        raise NoBalanceError(_too_large(num_devices, memory_bytes, None))
    # Some device takes the mean or longer, and `low` is less.
    low = chain.seconds / num_devices * (1 - SAME)
    while (high := max(folded(_of_cuts(chain, cuts)).seconds)) - low > SAME * high:
        middle = (low + high) / 2
        better = search.within(middle)
        low, cuts = (middle, cuts) if better is None else (low, better)
    return folded(_of_cuts(chain, cuts))


class _Folded:
    """Cuts of a folded chain; see `v_balance`. Positions count the places where a cut may be."""

    def __init__(self, chain: Chain, num_devices: int, live: int, memory_bytes: int | None) -> None:
        self._num_devices = num_devices
        self._places = _places(chain)
        before = np.array([chain.seconds_before[place] for place in self._places])
        count = len(self._places)
        self._seconds = np.full((count, count + 1), inf)  # of the layers [begin, end)
        self._seconds[:, :count] = before[None, :] - before[:, None]
        self._bytes: np.ndarray | None = None
        self._memory_bytes = memory_bytes
        if memory_bytes is not None:
            self._bytes = np.full((count, count + 1), inf)
            for at, begin in enumerate(self._places):
                for to in range(at + 1, count):
                    stage = chain.stage(begin, self._places[to])
                    self._bytes[at, to] = stage.memory_bytes(live)

    def within(self, limit: float) -> tuple[int, ...] | None:
        """Return cuts in which no device takes longer than the limit, or None.

        `reached[front, back]` says whether the devices so far can do all layers before `front` and
        from `back` on. The nearest of the backs reached with a front leaves least to do.
        """
        count = len(self._places)
        reached = np.zeros((count, count), bool)
        reached[0, count - 1] = True
        came: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(self._num_devices):
            nearest = _next_true(reached)
            fronts_before = np.full((count, count), -1)
            for front in np.flatnonzero(reached.any(axis=1)):
                self._go_on(front, nearest[front], limit, fronts_before)
            reached = fronts_before >= 0
            came.append((fronts_before, nearest))
        middle = np.flatnonzero(reached.diagonal())
        if not len(middle):
            return None
        front = back = int(middle[0])
        fronts, backs = [front], []
        for fronts_before, nearest in reversed(came):
            front = int(fronts_before[front, back])
            back = int(nearest[front, back])
            fronts.append(front)
            backs.append(back)
        return tuple(self._places[at] for at in (*reversed(fronts), *backs))

    def _go_on(
        self, front: int, nearest: np.ndarray, limit: float, fronts_before: np.ndarray
    ) -> None:
        """Note at [next front, back] that the next device can come there from this front.

        Args:
            nearest: The nearest back after each position that is reached with this front.
        """
        index = np.arange(len(nearest))
        first, second = self._seconds[front, :-1], self._seconds[index, nearest]
        ends = np.flatnonzero((index > front) & (first <= limit))
        begins = np.flatnonzero((nearest < len(nearest)) & (second <= limit))
        allowed = first[ends][:, None] + second[begins] <= limit
        allowed &= ends[:, None] <= begins
        if self._bytes is not None:
            first, second = self._bytes[front, :-1], self._bytes[index, nearest]
            allowed &= first[ends][:, None] + second[begins] <= self._memory_bytes
        rows, columns = np.nonzero(allowed)
        fronts_before[ends[rows], begins[columns]] = front


def _next_true(flags: np.ndarray) -> np.ndarray:
    """Return for each row and position the next position after it that is true, or the length."""
    count = flags.shape[1]
    positions = np.where(flags, np.arange(count), count)
    following = np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([following[:, 1:], np.full((len(flags), 1), count)], axis=1)


def folded(straight: Balance) -> Balance:
    """Return the same cut on half as many devices, the first stage with the last, and so on."""
    half = len(straight.seconds) // 2
    pairs = zip(straight.seconds[:half], reversed(straight.seconds), strict=False)
    return Balance(
        cuts=straight.cuts,
        devices=(*range(half), *reversed(range(half))),
        seconds=tuple(map(sum, pairs)),
    )


def _of_cuts(
    chain: Chain, cuts: Sequence[int], recomputed: Sequence[float] | None = None
) -> Balance:
    stages = chain.stages(cuts)
    again = recomputed or [0.0] * len(stages)
    seconds = tuple(
        stage.seconds + share * stage.forward_seconds
        for stage, share in zip(stages, again, strict=True)
    )
    return Balance(cuts=tuple(cuts), devices=tuple(range(len(seconds))), seconds=seconds)


def _check(chain: Chain, num_stages: int) -> None:
    if num_stages < 1:
        raise NoBalanceError(f"A network is cut into at least 1 stage, got {num_stages}.")
    most = len(chain.layers) - len(chain.shared)
    if num_stages > most:
        why = ""
        if chain.shared:
            names = ", ".join(sorted(set(chain.shared.values())))
            why = f": what shares the variables of {names} must be on one device"
        raise NoBalanceError(
            f"{len(chain.layers)} layers can be cut into at most {most} stages{why}. Got "
            f"{num_stages} stages; use fewer."
        )


def _too_large(num_stages: int, memory_bytes: int | None, least_bytes: float | None) -> str:
    limit = f"{(memory_bytes or 0) / 2**20:,.0f} MiB"
    least = "" if least_bytes is None else f"; the largest needs {least_bytes / 2**20:,.0f} MiB"
    return (
        f"No cut into {num_stages} stages leaves each within {limit}{least}. Use more stages, "
        "fewer samples in a micro-batch, or recompute in training; with schedule = 'gpipe', '1f1b' "
        "keeps fewer micro-batches."
    )
