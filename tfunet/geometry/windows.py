"""Windows that cover an image so that each voxel is counted once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple


class AxisPart(NamedTuple):
    """A window [begin, end) along one axis of an image, and its own part of it: [start, stop)."""

    begin: int
    start: int
    stop: int
    end: int


@dataclass(frozen=True)
class Window:
    """One patch of an image; its voxels [core_start, core_stop) count, in its own coordinates.

    `start` is its first voxel in the image; negative where the image is smaller than the patch.
    """

    start: tuple[int, ...]
    core_start: tuple[int, ...]
    core_stop: tuple[int, ...]


def plan_windows(extent: Sequence[int], patch: Sequence[int], halo: int = 0) -> list[Window]:
    """Return windows of the size of `patch` whose cores cover each voxel of `extent` once.

    A core has at least `halo` voxels of its window around it, except at a border of the image.
    The last window of an axis is shifted inward. An axis shorter than the patch has one window,
    with the image in its middle.
    """
    if len(extent) != len(patch):
        raise ValueError(f"An image of shape {tuple(extent)} has no patches of {tuple(patch)}.")
    axes = [
        [(begin, start - begin, stop - begin) for begin, start, stop, _ in parts]
        for parts in map(axis_parts, extent, patch, [halo] * len(extent))
    ]
    # Not zip: a sample without spatial axes is a window, too.
    return [
        Window(*(tuple(part[at] for part in corner) for at in range(3)))
        for corner in product(*axes)
    ]


def padding_before(extent: Sequence[int], patch: Sequence[int]) -> tuple[int, ...]:
    """Return the voxels of padding in front of an image that is centred in at least `patch`."""
    return tuple(max(size - length, 0) // 2 for length, size in zip(extent, patch, strict=True))


def axis_parts(length: int, window: int, halo: int, alignment: int = 1) -> list[AxisPart]:
    """Return the windows of one axis, as `plan_windows` places them.

    They begin at multiples of `alignment` if `length` and `window` are.
    """
    if length <= window:
        (before,) = padding_before((length,), (window,))
        return [AxisPart(-before, 0, length, window - before)]
    stride = (window - 2 * halo) // alignment * alignment
    if stride < 1:
        raise ValueError(
            f"evaluation_halo={halo} leaves nothing of a window of {window} voxels; it must be "
            f"at most {(window - 1) // 2}. Choose a smaller halo or a larger patch."
        )
    starts = [*range(0, length - window, stride), length - window]
    stops = [start + window - halo for start in starts[:-1]] + [length]
    return [
        AxisPart(begin, start, stop, begin + window)
        for begin, start, stop in zip(starts, [0, *stops[:-1]], stops, strict=True)
    ]
