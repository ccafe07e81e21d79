"""How Keras layers that pad or crop a sample run on its parts; see `rules`."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import ops

from tfunet.parallel.group import SampleGroup, cut_rows
from tfunet.parallel.mesh import Bounds
from tfunet.parallel.part import Part
from tfunet.parallel.window_inputs import CannotCutError, out_bounds


def _minus(before: int) -> Callable[[int], int]:
    return lambda row: max(row - before, 0)


def _pairs(amount: Any, rank: int) -> list[tuple[int, int]]:
    """Return (before, after) of each spatial axis, of a padding or cropping layer."""
    if rank == 1 and not isinstance(amount[0], tuple | list):
        return [(int(amount[0]), int(amount[1]))]
    return [(int(before), int(after)) for before, after in amount]


def _at_borders(
    group: SampleGroup, part: Part, pairs: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], tuple[Bounds | None, ...]]:
    """Return what this device pads of a padding at the borders, and the bounds of the output."""
    bounds: list[Bounds | None] = []
    widths = []
    for axis, ((before, after), cut_at) in enumerate(zip(pairs, part.bounds, strict=True)):
        if cut_at is None:
            bounds.append(None)
            widths.append((before, after))
            continue
        place, last = group.place[axis], len(cut_at) - 2
        widths.append((before if place == 0 else 0, after if place == last else 0))
        inner = [begin + before for begin in cut_at[1:-1]]
        bounds.append((0, *inner, cut_at[-1] + before + after))
    return widths, tuple(bounds)


def zero_padded(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pad at the borders of the sample; parts keep the rows that they have."""
    widths, bounds = _at_borders(group, part, _pairs(layer.padding, len(part.bounds)))
    return Part(tensor=tf.pad(part.tensor, [(0, 0), *widths, (0, 0)]), bounds=bounds)


def padded(group: SampleGroup, op: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Pad with keras.ops.pad at the borders of the sample, from the rows of the outer parts."""
    widths = [tuple(pair) for pair in op.pad_width]
    if len(widths) != part.tensor.shape.rank or any(map(any, (widths[0], widths[-1]))):
        raise CannotCutError
    if op.mode != "constant":
        for axis in part.cut_axes:
            cut_at = part.bounds[axis] or ()
            first, last = cut_at[1] - cut_at[0], cut_at[-1] - cut_at[-2]
            # A reflection leaves out the outermost row.
            if widths[1 + axis][0] >= first or widths[1 + axis][1] >= last:
                raise CannotCutError
    own, bounds = _at_borders(group, part, widths[1:-1])
    tensor = ops.pad(part.tensor, [(0, 0), *own, (0, 0)], mode=op.mode, **kwargs)
    return Part(tensor=tensor, bounds=bounds)


def cropped(group: SampleGroup, layer: Any, part: Part, kwargs: dict[str, Any]) -> Part:
    """Crop at the borders of the sample; parts keep what is left of their rows."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    bounds: list[Bounds | None] = []
    pairs = _pairs(layer.cropping, len(part.bounds))
    tensor = part.tensor
    for axis, ((before, after), cut_at) in enumerate(zip(pairs, part.bounds, strict=True)):
        extent = part.extents[axis]
        if cut_at is None:
            bounds.append(None)
            tensor = cut_rows(tensor, axis, before, extent - after)
            continue
        out = out_bounds(cut_at, extent - before - after, _minus(before))
        wanted[axis] = [(begin + before, end + before) for begin, end in itertools.pairwise(out)]
        bounds.append(out)
    whole_axes = Part(tensor=tensor, bounds=part.bounds)
    return Part(tensor=whole_axes.with_rows(group, wanted), bounds=tuple(bounds))
