"""Which device owns which elements of a list of variables. Pure: numbers in, numbers out."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

# Parts begin at multiples of so many elements: vector instructions take them as they take all.
UNIT = 16


class Part(NamedTuple):
    """The elements [begin, end) of a flattened variable, by its place among others."""

    at: int
    begin: int
    end: int


def owned_parts(
    sizes: Sequence[int], costs: Sequence[float], count: int, *, is_whole: Sequence[bool]
) -> list[list[Part]]:
    """Return the parts of each of `count` devices: together each element once, evenly by cost.

    Args:
        sizes: Elements of each variable.
        costs: Bytes that an element of each variable costs its owner.
        is_whole: Which variables one device owns whole. Where all are, the largest find owners
            first; otherwise each device has adjacent elements of all variables in a row.
    """
    if all(is_whole):
        return _whole_variables(sizes, costs, count)
    totals = [size * cost for size, cost in zip(sizes, costs, strict=True)]
    ends = list(itertools.accumulate(totals))
    cuts = [(0, 0)]
    for device in range(1, count):
        bound = ends[-1] * device / count
        at = next(i for i, end in enumerate(ends) if bound <= end)
        within = (bound - (ends[at] - totals[at])) / costs[at]
        unit = sizes[at] if is_whole[at] else UNIT
        cuts.append(max(cuts[-1], (at, min(sizes[at], round(within / unit) * unit))))
    cuts.append((len(sizes), 0))
    return [
        [
            Part(index, begin, end)
            for index, size in enumerate(sizes)
            if (begin := first[1] if index == first[0] else 0 if index > first[0] else size)
            < (end := last[1] if index == last[0] else size if index < last[0] else 0)
        ]
        for first, last in itertools.pairwise(cuts)
    ]


def _whole_variables(sizes: Sequence[int], costs: Sequence[float], count: int) -> list[list[Part]]:
    parts: list[list[Part]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for cost, index in sorted(
        ((-size * cost, i) for i, (size, cost) in enumerate(zip(sizes, costs, strict=True)))
    ):
        device = loads.index(min(loads))
        loads[device] -= cost
        parts[device].append(Part(index, 0, sizes[index]))
    return [sorted(each) for each in parts]
