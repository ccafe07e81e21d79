"""Convolution of a device's part of a sample, corrected by what the rows of others add to it.

A convolution is linear: that of a part with the rows of others around it is that of the part alone,
plus, in its outermost rows, that of the others' rows. So nothing as large as the part is copied to
stand beside them, and the part is convolved while they are on their way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import layers, ops

from tfunet.geometry.kinds import kind_of
from tfunet.parallel.group import Borders, cut_rows, with_added
from tfunet.parallel.part import Part
from tfunet.parallel.window_inputs import Windows

# Their calls go through `convolution_op`.
KINDS = (layers.Conv2D, layers.Conv3D)


def can_be_corrected(layer: Any, part: Part) -> bool:
    """Whether outputs lie where inputs do, and only the outermost rows need rows of others."""
    if kind_of(layer) not in KINDS or layer.padding != "same" or set(layer.strides) != {1}:
        return False
    return all(
        part.tensor.shape[1 + axis] >= (layer.kernel_size[axis] - 1) * layer.dilation_rate[axis]
        for axis in part.cut_axes
    )


def corrected_convolution(
    layer: Any, windows: Windows, borders: Sequence[Borders], own: Any, kernel: Any
) -> Any:
    """Return the convolution of a device's part and the rows of others around it.

    Args:
        layer: For which `can_be_corrected`.
        windows: What it reads.
        borders: Borders along each axis that is cut, in order; later ones have the corners.
        own: The part.
        kernel: (*spatial, channels, filters).
    """
    kernel = tf.convert_to_tensor(kernel)

    def convolve(tensor: Any, taps: Any, padding: str) -> Any:
        return ops.conv(
            tensor,
            taps,
            padding=padding,
            dilation_rate=layer.dilation_rate,
            data_format="channels_last",
        )

    rank, terms = len(layer.kernel_size), []
    for at, border in enumerate(borders):
        axis, rows = border.axis, own.shape[1 + border.axis]
        cut_before = [other.axis for other in borders[:at]]
        for is_before, others in (
            (True, border.others[: border.num_before]),
            (False, border.others[border.num_before :]),
        ):
            if not others:
                continue
            slab = others[0] if len(others) == 1 else tf.concat(others, axis + 1)
            size, step = layer.kernel_size[axis], layer.dilation_rate[axis]
            first = (size - 1) // 2
            count = first if is_before else size - 1 - first
            width = count * step
            # Parts at the border of the sample may be thinner than the kernel reaches, and the
            # outermost output of the others' rows lies so far from them.
            missing, beyond = width - slab.shape[1 + axis], width - step
            sides = [_same_padding(layer, other) for other in range(rank)]
            for other in cut_before:
                sides[other] = windows.padding[other]
            sides[axis] = (missing, beyond) if is_before else (beyond, missing)
            slab = tf.pad(slab, [(0, 0), *sides, (0, 0)])
            begin = 0 if is_before else first + 1
            taps = cut_rows(kernel, axis - 1, begin, begin + count)
            span = (0, width) if is_before else (rows - width, rows)
            terms.append((axis, *span, convolve(slab, taps, "valid")))
    # Tensors with the borders of the axes before: nobody reads them here, but their devices wait
    # for their gradients.
    waited_for = [border.tensor for border in borders[1:] if border.is_asked]
    return _plus(convolve(own, kernel, "same"), terms, waited_for)


def _same_padding(layer: Any, axis: int) -> tuple[int, int]:
    reach = (layer.kernel_size[axis] - 1) * layer.dilation_rate[axis]
    before = (layer.kernel_size[axis] - 1) // 2 * layer.dilation_rate[axis]
    return before, reach - before


def _plus(
    tensor: Any, terms: Sequence[tuple[int, int, int, Any]], waited_for: Sequence[Any]
) -> Any:
    """Return a tensor to whose rows others are added: (axis, begin, end, tensor) of each.

    The gradient of the tensor is the one that comes: TensorFlow would put it together from pieces.
    What is waited for has gradient 0.
    """
    if not terms and not waited_for:
        return tensor

    @tf.custom_gradient
    def plus(tensor: Any, *values: Any) -> tuple[Any, Callable[[Any], list[Any]]]:
        for axis in dict.fromkeys(axis for axis, *_ in terms):
            added = [
                (begin, end, value)
                for (of_axis, begin, end, _), value in zip(terms, values, strict=False)
                if of_axis == axis
            ]
            tensor = with_added(tensor, added, axis)

        def gradient(given: Any) -> list[Any]:
            zeros = [tf.zeros(value.shape, value.dtype) for value in waited_for]
            return [given, *(cut_rows(given, axis, *span) for axis, *span, _ in terms), *zeros]

        return tensor, gradient

    return plus(tensor, *(value for *_, value in terms), *waited_for)
