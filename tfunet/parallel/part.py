"""A tensor of which each device of a group has a part."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from tfunet.parallel.group import SampleGroup, cut_rows
from tfunet.parallel.mesh import Bounds


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """What this device has of a tensor (batch, *spatial, channels).

    Args:
        tensor: The part.
        bounds: For each spatial axis the bounds of all parts; None where the axis is whole.
    """

    tensor: Any
    bounds: tuple[Bounds | None, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The spatial shape of the whole tensor."""
        own = self.tensor.shape[1:-1]
        return tuple(
            rows if bounds is None else bounds[-1]
            for rows, bounds in zip(own, self.bounds, strict=True)
        )

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return (self.tensor.shape[0], *self.extents, self.tensor.shape[-1])

    @property
    def cut_axes(self) -> tuple[int, ...]:
        """The spatial axes along which the tensor is cut."""
        return tuple(axis for axis, bounds in enumerate(self.bounds) if bounds is not None)

    @property
    def voxel_shares(self) -> tuple[float, ...]:
        """The share of the voxels that each device of the group has, in order of the devices."""
        shares = [1.0]
        for bounds, extent in zip(self.bounds, self.extents, strict=True):
            if bounds is None:
                continue
            rows = [end - begin for begin, end in itertools.pairwise(bounds)]
            shares = [share * count / extent for share in shares for count in rows]
        return tuple(shares)

    def own_rows(self, group: SampleGroup, axis: int) -> tuple[int, int]:
        """Return the rows of the whole tensor that this device has along an axis."""
        bounds = self.bounds[axis]
        if bounds is None:
            return 0, self.tensor.shape[1 + axis]
        place = group.place[axis]
        return bounds[place], bounds[place + 1]

    def with_rows(self, group: SampleGroup, wanted: Mapping[int, Sequence[tuple[int, int]]]) -> Any:
        """Return the tensor with other rows.

        Args:
            group: The devices of the parts.
            wanted: For each axis that is cut the rows [begin, end) that each part wants, within
                the tensor.
        """
        tensor = self.tensor
        for axis, rows in wanted.items():
            # Corners come along: the rows of the axes before were joined already.
            tensor = group.rows(tensor, axis, self.bounds[axis] or (), rows)
        return tensor

    def whole(self, group: SampleGroup) -> Any:
        """Return the whole tensor, on every device of the group."""
        return self.with_rows(
            group,
            {
                axis: [(0, self.extents[axis])] * (len(self.bounds[axis] or ()) - 1)
                for axis in self.cut_axes
            },
        )

    def aligned(self, group: SampleGroup, bounds: tuple[Bounds | None, ...]) -> "Part":
        """Return the same tensor, cut at other bounds along the same axes."""
        wanted = {
            axis: list(itertools.pairwise(new))
            for axis, new in enumerate(bounds)
            if new is not None and new != self.bounds[axis]
        }
        return self if not wanted else Part(tensor=self.with_rows(group, wanted), bounds=bounds)


def cut(group: SampleGroup, tensor: Any, bounds: tuple[Bounds | None, ...]) -> Part:
    """Return this device's part of a tensor that every device of the group has."""
    for axis, of_axis in enumerate(bounds):
        if of_axis is not None:
            place = group.place[axis]
            tensor = cut_rows(tensor, axis, of_axis[place], of_axis[place + 1])
    return Part(tensor=tensor, bounds=bounds)
