"""A tensor of which each device of a group has a part."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from tfunet.parallel.group import Borders, SampleGroup, cut_rows
from tfunet.parallel.mesh import Bounds


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Margin:
    """Rows of others beside a device's part, along the only axis that is cut.

    Args:
        width: How many rows each device has before and after its own, as far as there are so many.
        before: The rows before its own; None for the first part.
        after: The rows after its own; None for the last part.
    """

    width: int
    before: Any
    after: Any

    def mapped(self, function: Callable[[Any], Any]) -> "Margin":
        """Return what a function makes of the rows, which it treats each alone."""
        return Margin(
            width=self.width,
            before=None if self.before is None else function(self.before),
            after=None if self.after is None else function(self.after),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """What this device has of a tensor (batch, *spatial, channels).

    Args:
        tensor: The part.
        bounds: For each spatial axis the bounds of all parts; None where the axis is whole.
        margin: What it has of others' parts; on all devices or on none.
    """

    tensor: Any
    bounds: tuple[Bounds | None, ...]
    margin: Margin | None = None

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

    def mapped(self, function: Callable[[Any], Any]) -> "Part":
        """Return what a function makes of the tensor, of which it treats each voxel alone."""
        margin = None if self.margin is None else self.margin.mapped(function)
        return Part(tensor=function(self.tensor), bounds=self.bounds, margin=margin)

    def without_margin(self) -> "Part":
        """Return the part alone."""
        return Part(tensor=self.tensor, bounds=self.bounds)

    def rows_within(self, width: int) -> list[tuple[int, int]]:
        """Return the rows [begin, end) of each part with its margin, along the axis that is cut."""
        (axis,) = self.cut_axes
        bounds = self.bounds[axis] or ()
        return [
            (max(0, begin - width), min(bounds[-1], end + width))
            for begin, end in itertools.pairwise(bounds)
        ]

    def borders(self, group: SampleGroup, axis: int, wanted: Sequence[tuple[int, int]]) -> Borders:
        """Return what of the rows [begin, end) that each part wants others have, or the margin."""
        bounds, margin = self.bounds[axis] or (), self.margin
        if margin is None or not all(
            first <= begin and end <= last
            for (begin, end), (first, last) in zip(
                wanted, self.rows_within(margin.width), strict=True
            )
        ):
            return group.borders(self.tensor, axis, bounds, wanted)
        place = group.place[axis]
        first, last = bounds[place], bounds[place + 1]
        begin, end = wanted[place]
        others = []
        if begin < first:
            kept = margin.before.shape[1 + axis]
            others.append(
                cut_rows(margin.before, axis, begin - first + kept, min(end, first) - first + kept)
            )
        num_before = len(others)
        if end > last:
            others.append(cut_rows(margin.after, axis, max(begin, last) - last, end - last))
        return Borders(
            tensor=self.tensor,
            axis=axis,
            own=(max(begin, first) - first, min(end, last) - first),
            own_rows=last - first,
            num_before=num_before,
            others=tuple(others),
        )

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
            borders = replace(self, tensor=tensor).borders(group, axis, rows)
            tensor = borders.joined(borders.tensor, borders.others)
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


def own_tensor(value: Any) -> Any:
    """Return what this device has of a part; anything else as it is."""
    return value.tensor if isinstance(value, Part) else value
