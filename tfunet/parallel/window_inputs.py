"""Which rows of others a device needs to run a layer with windows on its part of a sample."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfunet.geometry.receptive_field import window_reach
from tfunet.parallel.group import SampleGroup
from tfunet.parallel.mesh import Bounds, even_bounds
from tfunet.parallel.part import Part


class CannotCutError(ValueError):
    """An output, or a step on the way to it, has no rows for one of the devices."""


def out_bounds(bounds: Bounds, extent: int, row_of: Callable[[int], int]) -> Bounds:
    """Return bounds of an output: those that follow from the input's, if each part gets rows."""
    out = (*(min(row_of(begin), extent) for begin in bounds[:-1]), extent)
    if all(begin < end for begin, end in itertools.pairwise(out)):
        return out
    if extent < len(bounds) - 1:
        raise CannotCutError
    return even_bounds(extent, len(bounds) - 1)


def ceil_by(stride: int) -> Callable[[int], int]:
    """Return the function that divides a row by a stride and rounds up."""
    return lambda row: -(-row // stride)


@contextlib.contextmanager
def without_padding(layer: Any) -> Iterator[None]:
    """Run a layer with `valid` padding in the block."""
    # Replicas of a process are traced one after the other, so that this is never seen by two.
    padding = layer.padding
    layer.padding = "valid"
    try:
        yield
    finally:
        layer.padding = padding


@dataclass(frozen=True, kw_only=True)
class Windows:
    """What a layer with windows reads for a device's part of its output.

    Args:
        rows: For each axis that is cut the rows of the input that each part wants.
        bounds: Bounds of the output's parts.
        padding: Rows before and after the input, on each spatial axis.
    """

    rows: dict[int, list[tuple[int, int]]]
    bounds: tuple[Bounds | None, ...]
    padding: list[tuple[int, int]]

    def padded(self, tensor: Any, fill: Any = 0) -> Any:
        """Return the rows with the padding around them."""
        if not any(map(any, self.padding)):
            return tensor
        fill = tf.constant(fill, tensor.dtype)
        return tf.pad(tensor, [(0, 0), *self.padding, (0, 0)], constant_values=fill)


def windows_of(group: SampleGroup, layer: Any, part: Part, sizes: Sequence[int]) -> Windows:
    """Return what a layer with windows of these sizes reads of a tensor."""
    out_extents = layer.compute_output_shape(part.whole_shape)[1:-1]
    wanted: dict[int, list[tuple[int, int]]] = {}
    bounds: list[Bounds | None] = []
    widths: list[tuple[int, int]] = []
    for axis, (extent, made) in enumerate(zip(part.extents, out_extents, strict=True)):
        reach = window_reach(layer, axis, sizes, extent)
        cut_at = part.bounds[axis]
        if cut_at is None:
            rows = (0, made)
            bounds.append(None)
        else:
            out = out_bounds(cut_at, made, ceil_by(reach.stride))
            wanted[axis] = [
                reach.inside(begin, end, extent) for begin, end in itertools.pairwise(out)
            ]
            place = group.place[axis]
            rows = (out[place], out[place + 1])
            bounds.append(out)
        # A whole axis may have rows at its end that no window reaches: they need no padding.
        widths.append(reach.padding(*rows, extent))
    return Windows(rows=wanted, bounds=tuple(bounds), padding=widths)
