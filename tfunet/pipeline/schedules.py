"""In which order each device works on the micro-batches of a step. Pure.

Four micro-batches on three devices; digits are forward passes, letters backward ones:

    gpipe  0123....abcd    1f1b  012..a3b.c.d    v  0123.0a1b2c.a3db.c.d
           .0123..abcd.          .01.a2b3c.d.       .012031a2b.a3cbdc.d.
           ..0123abcd..          ..0a1b2c3d..       ..001122a3a3bbccdd..

With `v` a device has two chunks, each half as long: the first with the last, the second with the
last but one, and so on. In a U-Net a skip joins the two.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from tfunet.config.placement_keys import SCHEDULES

Pass = Literal["forward", "backward"]


class StagePass(NamedTuple):
    """One pass of a micro-batch through a chunk of the network."""

    kind: Pass
    chunk: int
    micro_batch: int


# What each device does, one after the other.
Orders = tuple[tuple[StagePass, ...], ...]


def check_schedule(schedule: str, micro_batches: int) -> None:
    """Refuse a schedule that is not known, and fewer than one micro-batch."""
    if schedule not in SCHEDULES:
        raise ValueError(f"Unknown schedule {schedule!r}. Known: {', '.join(SCHEDULES)}.")
    if micro_batches < 1:
        raise ValueError(f"A step has at least 1 micro-batch, got micro_batches {micro_batches}.")


def gpipe(num_stages: int, micro_batches: int) -> Orders:
    """All forward passes, then all backward passes (Huang et al. 2019)."""
    return _after_warm_up(num_stages, micro_batches, lambda stage: micro_batches)


def one_f_one_b(num_stages: int, micro_batches: int) -> Orders:
    """Backward passes as early as possible, so that few micro-batches wait (Narayanan 2019)."""
    return _after_warm_up(
        num_stages, micro_batches, lambda stage: min(micro_batches, num_stages - 1 - stage)
    )


def _after_warm_up(num_stages: int, micro_batches: int, warm_up: Callable[[int], int]) -> Orders:
    """So many forward passes first, then one of each kind in turn, then what is left.

    Both passes take the micro-batches in order: gradients are the same sums in every schedule.
    """
    orders = []
    for stage in range(num_stages):
        forward = [StagePass("forward", stage, number) for number in range(micro_batches)]
        backward = [StagePass("backward", stage, number) for number in range(micro_batches)]
        first = warm_up(stage)
        turns = [action for pair in zip(forward[first:], backward, strict=False) for action in pair]
        orders.append((*forward[:first], *turns, *backward[micro_batches - first :]))
    return tuple(orders)


def forward_half(orders: Orders, micro_batches: int) -> Orders:
    """Return the forward passes of the first micro-batches of a step: an evaluation."""
    return tuple(
        tuple(
            action
            for action in order
            if action.kind == "forward" and action.micro_batch < micro_batches
        )
        for order in orders
    )


def homes(schedule: str, num_devices: int) -> tuple[int, ...]:
    """Return the device of each chunk."""
    devices = range(num_devices)
    return (*devices, *reversed(devices)) if schedule == "v" else tuple(devices)


def waiting(orders: Orders) -> dict[int, frozenset[int]]:
    """Return for each chunk the micro-batches between whose passes its device makes others.

    Only these are recomputed: where the backward pass follows at once, nothing would be gained.
    """
    found: dict[int, set[int]] = {}
    for order in orders:
        for action, following in pairwise(order):
            kind, chunk, number = action
            if kind == "forward" and following != StagePass("backward", chunk, number):
                found.setdefault(chunk, set()).add(number)
    return {chunk: frozenset(numbers) for chunk, numbers in found.items()}


def most_live(schedule: str, num_stages: int, micro_batches: int) -> list[int]:
    """Return how many micro-batches each stage keeps at most between their two passes."""
    if schedule == "gpipe":
        return [micro_batches] * num_stages
    return [min(micro_batches, num_stages - stage) for stage in range(num_stages)]


def in_order(actions: Sequence[StagePass], num_devices: int, devices: Mapping[int, int]) -> Orders:
    """Return the order of each device, from all actions as they begin; `devices` by chunk."""
    return tuple(
        tuple(action for action in actions if devices[action.chunk] == device)
        for device in range(num_devices)
    )
