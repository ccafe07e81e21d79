"""Which device has which part of which sample. Imports no TensorFlow."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tfunet.geometry.parts import check_split

# The first row of each part along an axis, and the number of rows of all parts.
Bounds = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The devices of a run: `groups` of them, each of which works on samples of its own.

    The devices of a group share a sample. Each has a stage of the network, and in it a part of the
    sample: `split[a]` of them along spatial axis `a`. Devices are numbered group by group, in a
    group stage by stage, in a stage part by part, the last axis first, as in a C array.

    Args:
        groups: How many samples are worked on at once (num_replicas of a configuration).
        split: Parts of a sample along each spatial axis; () leaves samples whole.
        stages: Consecutive parts of the network.

    Two groups, two stages, split = (2, 1):

                    stage 1   stage 2       members of 6: 6, 7   exchange borders and statistics
        upper part  0 | 4     2 | 6         column of 6: 4, 6    exchanges what crosses stages
        lower part  1 | 5     3 | 7         holders of stage 2: 2, 3, 6, 7   average gradients
    """

    groups: int = 1
    split: tuple[int, ...] = ()
    stages: int = 1

    @property
    def sample_parts(self) -> int:
        """Parts of a sample."""
        return math.prod(self.split)

    @property
    def parts(self) -> int:
        """Devices that share a sample."""
        return self.sample_parts * self.stages

    @property
    def num_devices(self) -> int:
        """Devices of all groups."""
        return self.groups * self.parts

    @property
    def is_split(self) -> bool:
        """Whether a sample is cut into parts."""
        return self.sample_parts > 1

    @cached_property
    def _places(self) -> tuple[tuple[int, ...], ...]:
        return tuple(itertools.product(*(range(parts) for parts in self.split)))

    def group_of(self, device: int) -> int:
        """Return the group of a device."""
        return device // self.parts

    def part_of(self, device: int) -> int:
        """Return the number of the part of its sample that a device has."""
        return device % self.sample_parts

    def place_of(self, device: int) -> tuple[int, ...]:
        """Return which part of its sample a device has, along each axis of `split`."""
        return self._places[self.part_of(device)]

    def stage_of(self, device: int) -> int:
        """Return which stage of the network a device has."""
        return device % self.parts // self.sample_parts

    def is_first(self, device: int) -> bool:
        """Whether a device is the first of its group, which speaks for the group's sample."""
        return device % self.parts == 0

    def members(self, device: int) -> list[int]:
        """Return the devices with all parts of a device's sample, in its stage; in order."""
        first = device - self.part_of(device)
        return list(range(first, first + self.sample_parts))

    def column(self, device: int) -> list[int]:
        """Return the device of each stage that has the same part of the same sample."""
        first = self.group_of(device) * self.parts + self.part_of(device)
        return list(range(first, first + self.parts, self.sample_parts))

    def holders(self, stage: int) -> list[int]:
        """Return the devices that have the variables of a stage, in order."""
        return [device for device in range(self.num_devices) if self.stage_of(device) == stage]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of devices that exchange something in a step, each once; in order."""
        met: set[tuple[int, int]] = set()
        for device in range(self.num_devices):
            # The members of its group are among the holders of its stage.
            others = {*self.column(device), *self.holders(self.stage_of(device))}
            met |= {(device, other) for other in others if device < other}
        return sorted(met)

    def line(self, device: int, axis: int) -> list[int]:
        """Return the devices that have the parts along `axis` of what a device has, in order."""
        own = self.place_of(device)
        return [
            member
            for member in self.members(device)
            if all(
                place == own[other]
                for other, place in enumerate(self.place_of(member))
                if other != axis
            )
        ]

    def groups_of(self, devices: range) -> range:
        """Return the groups of adjacent devices."""
        return range(self.group_of(devices.start), self.group_of(devices.stop - 1) + 1)


def even_bounds(extent: int, parts: int) -> Bounds:
    """Return the bounds of parts of nearly equal size, the larger ones first.

    They lie at multiples of as large a power of two as balance allows. Networks halve images, so
    that most of their tensors are then cut at the same place, and need no exchange to be joined.

    Raises ValueError for more parts than rows.
    """
    if parts > extent:
        raise ValueError(f"{extent} rows cannot be cut into {parts} parts. Choose fewer parts.")
    most = -(-extent // parts)
    unit = 1
    # Each part has a unit, or it would have no row.
    while (
        extent % (2 * unit) == 0
        and extent // (2 * unit) >= parts
        and -(-extent // (2 * unit) // parts) * 2 * unit == most
    ):
        unit *= 2
    units, left = divmod(extent // unit, parts)
    sizes = [(units + (part < left)) * unit for part in range(parts)]
    return (0, *itertools.accumulate(sizes))


def part_bounds(patch: Sequence[int], split: Sequence[int]) -> tuple[Bounds | None, ...]:
    """Return the bounds of the parts of a sample along each of its axes; None where it is whole.

    Raises ValueError for a split that does not fit the patch.
    """
    if not split:
        return (None,) * len(patch)
    check_split(split, patch)
    return tuple(
        even_bounds(extent, parts) if parts > 1 else None
        for extent, parts in zip(patch, split, strict=True)
    )


def part_rows(mesh: Mesh, device: int, patch: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the rows [begin, end) of a sample that a device has, along each axis."""
    if not mesh.split:
        return tuple((0, length) for length in patch)
    return tuple(
        (0, length) if edges is None else (edges[place], edges[place + 1])
        for length, edges, place in zip(
            patch, part_bounds(patch, mesh.split), mesh.place_of(device), strict=True
        )
    )
