"""Moves the pixels of an image and its mask together: turns, affine maps, elastic deformation.

An affine map goes backwards, from a position in the result to the one in the image that it shows,
both in pixels from the centre. Pure functions of tensors with static shapes: they run in a data
pipeline and on the device, with XLA or without.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations, permutations, product

import numpy as np
import tensorflow as tf


def planes(axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs of axes."""
    return list(combinations(axes, 2))


def rotation_matrix(
    degrees: Sequence[tf.Tensor], turned: Sequence[tuple[int, int]], rank: int
) -> tf.Tensor:
    """Return the map (rank, rank) that rotates by an angle in each plane, one after the other.

    A positive angle rotates the first axis of a plane towards the second, as numpy.rot90 does.
    """
    matrices = []
    for angle, (first, second) in zip(degrees, turned, strict=True):
        radians = angle * (math.pi / 180)
        across = _unit(first, second, rank) - _unit(second, first, rank)
        along = _unit(first, first, rank) + _unit(second, second, rank)
        eye = np.eye(rank, dtype=np.float32)
        matrices.append(eye + (tf.cos(radians) - 1) * along + tf.sin(radians) * across)
    return reduce(compose, reversed(matrices), tf.eye(rank))


def shear_matrix(
    degrees: Sequence[tf.Tensor], leaning: Sequence[tuple[int, int]], rank: int
) -> tf.Tensor:
    """Return the map (rank, rank) by which the second axis of each plane leans to the first."""
    slopes = (
        tf.tan(angle * (-math.pi / 180)) * _unit(first, second, rank)
        for angle, (first, second) in zip(degrees, leaning, strict=True)
    )
    return sum(slopes, tf.eye(rank))


def scale_matrix(factor: tf.Tensor, axes: Sequence[int], rank: int) -> tf.Tensor:
    """Return the map (rank, rank) that enlarges by `factor` along the axes."""
    chosen = np.isin(np.arange(rank), axes)
    return tf.linalg.diag(tf.where(chosen, 1 / factor, 1.0))


def compose(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return the product of two maps (rank, rank)."""
    # Not tf.matmul, which on a GPU rounds its factors to 10 bits: one pixel in a long patch.
    return tf.reduce_sum(first[:, :, tf.newaxis] * second[tf.newaxis], axis=1)


def displacement(
    noise: tf.Tensor, deviation: tf.Tensor, shape: Sequence[int], sigma: float
) -> tf.Tensor:
    """Return smooth random displacements in pixels, (fields, *shape).

    Simard et al. 2003: uniform noise under a Gaussian filter of `sigma` pixels, scaled. The noise
    is drawn at knots `sigma` apart, whose filtered sum has the same correlation to 1e-4 for a
    fraction of the work. Unlike their alpha, the scale is the standard deviation in pixels.

    Args:
        noise: Uniform over 0 to 1, (fields, *knots_shape(shape, sigma)).
        deviation: Standard deviation of the displacement, in pixels.
        shape: Shape of the image.
        sigma: Sigma of the filter, in pixels.
    """
    # Uniform over -sqrt(3) to sqrt(3) has the standard deviation 1; so has the weighted sum.
    field = (noise * 2 - 1) * (math.sqrt(3) * deviation)
    for length in shape:
        # Replaces the first spatial axis by the filtered one, behind the others.
        field = tf.tensordot(field, _filter_weights(length, sigma), [[1], [1]])
    return field


def knots_shape(shape: Sequence[int], sigma: float) -> list[int]:
    """Return how many knots `displacement` needs along each axis."""
    return [math.ceil((length - 1) / sigma) + 7 for length in shape]


def _filter_weights(length: int, sigma: float) -> np.ndarray:
    """Return the weights (length, knots) of a Gaussian filter; those of a pixel have the norm 1."""
    (count,) = knots_shape([length], sigma)
    distance = np.arange(length)[:, np.newaxis] - (np.arange(count) - 3) * sigma
    weights = np.exp(-((distance / sigma) ** 2) / 2)
    return (weights / np.linalg.norm(weights, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class QuarterTurn:
    """A turn by multiples of 90 degrees: the axes in another order, then some of them reversed."""

    order: tuple[int, ...]
    reverse: tuple[bool, ...]


def quarter_turns(axes: Sequence[int], rank: int) -> list[QuarterTurn]:
    """Return all turns in the planes of these axes: 4 of two axes, 24 of three."""
    turns = []
    for moved in permutations(axes):
        order = list(range(rank))
        for axis, other in zip(axes, moved, strict=True):
            order[axis] = other
        swaps = sum(first > second for first, second in combinations(order, 2))
        for bits in product((False, True), repeat=len(axes)):
            # An odd number of swaps and reversals would be a mirror image.
            if (swaps + sum(bits)) % 2 == 0:
                reversed_axes = {axis for axis, bit in zip(axes, bits, strict=True) if bit}
                reverse = tuple(axis in reversed_axes for axis in range(rank))
                turns.append(QuarterTurn(tuple(order), reverse))
    return turns


def reorder(
    image: tf.Tensor, mask: tf.Tensor, orders: Sequence[tuple[int, ...]], chosen: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return image (*shape, channels) and mask (*shape) with the axes in the chosen order."""

    def reordered(order: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.transpose(image, [*order, len(order)]), tf.transpose(mask, order)

    # Not tf.transpose by a tensor: XLA needs the order when it compiles.
    return tf.switch_case(chosen, [partial(reordered, order) for order in orders])


def flip(image: tf.Tensor, mask: tf.Tensor, reverse: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return image (*shape, channels) and mask (*shape), reversed along some axes (rank,)."""
    # Not tf.reverse along axes in a tensor: XLA needs them when it compiles.
    for axis in range(mask.shape.rank):
        image, mask = _flip_axis(image, mask, reverse[axis], axis)
    return image, mask


def _flip_axis(
    image: tf.Tensor, mask: tf.Tensor, is_on: tf.Tensor, axis: int
) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cond(
        is_on,
        lambda: (tf.reverse(image, [axis]), tf.reverse(mask, [axis])),
        lambda: (image, mask),
    )


def resample(
    image: tf.Tensor,
    mask: tf.Tensor,
    matrix: tf.Tensor,
    shift: tf.Tensor,
    moved: Mapping[int, tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return image and mask under one map: the image linearly, the mask from the nearest pixel.

    The image is mirrored at its border; the border pixel is not doubled.

    Args:
        image: (*shape, channels) float32.
        mask: (*shape), of integers.
        matrix: Backward map (rank, rank), in pixels from the centre.
        shift: Forward translation (rank,) in pixels.
        moved: Array axis to a further displacement (*shape) along it, in pixels.
    """
    shape = mask.shape.as_list()
    places = _places(shape, matrix, shift)
    for axis, field in moved.items():
        places[axis] += field
    places = [_mirrored(place, length) for place, length in zip(places, shape, strict=True)]
    nearest = _flat_indices([place + 0.5 for place in places], shape)
    labels = tf.gather_nd(tf.reshape(mask, [-1]), nearest[:, tf.newaxis])
    return _linear(image, places), tf.reshape(labels, shape)


def _places(shape: Sequence[int], matrix: tf.Tensor, shift: tf.Tensor) -> list[tf.Tensor]:
    """Return for each array axis the position in the image that each pixel shows."""
    offset = -tf.reduce_sum(matrix * shift, axis=1)
    places = []
    for axis, length in enumerate(shape):
        # Small sums first: only the last one is over all pixels.
        place = offset[axis] + np.float32((length - 1) / 2)
        for other, size in enumerate(shape):
            line = np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)
            place = place + tf.reshape(matrix[axis, other] * line, _column(size, other, len(shape)))
        places.append(place)
    return places


def _mirrored(place: tf.Tensor, length: int) -> tf.Tensor:
    """Return positions mirrored at both ends into 0..length-1; those within stay the same."""
    if length == 1:
        return tf.zeros_like(place)
    period = 2.0 * (length - 1)
    return tf.abs(place - period * tf.round(place * (1 / period)))


def _linear(image: tf.Tensor, places: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the image (*shape, channels) interpolated at these positions, each (*shape)."""
    *shape, channels = image.shape.as_list()
    # One more pixel along each axis, so that the last pixel has a neighbour too.
    wide = [length + 1 for length in shape]
    pixels = tf.pad(image, [*[[0, 1]] * len(shape), [0, 0]], mode="SYMMETRIC")
    # A single channel needs no axis: gather_nd then takes half the time.
    inner = [] if channels == 1 else [channels]
    pixels = tf.reshape(pixels, [-1, *inner])
    lows = [tf.floor(place) for place in places]
    low_index = _flat_indices(lows, wide)
    # Corner by corner: one array for all would not fit into the processor's cache.
    corners = [sum(steps) for steps in product(*((0, step) for step in _strides(wide)))]
    values = [tf.gather_nd(pixels, (low_index + step)[:, tf.newaxis]) for step in corners]
    for place, low in zip(places, lows, strict=True):
        share = tf.reshape(place - low, [-1, *[1] * len(inner)])
        # The corners with the low end of the first axis come first. Each round removes one axis.
        half = len(values) // 2
        pairs = zip(values[:half], values[half:], strict=True)
        values = [near + (far - near) * share for near, far in pairs]
    return tf.reshape(values[0], image.shape)


def _flat_indices(places: Sequence[tf.Tensor], shape: Sequence[int]) -> tf.Tensor:
    """Return the indices of pixels in the flattened image, (pixels,) int32; fractions are cut."""
    steps = (
        tf.cast(place, tf.int32) * step for place, step in zip(places, _strides(shape), strict=True)
    )
    return tf.reshape(reduce(tf.add, steps), [-1])


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _column(length: int, axis: int, rank: int) -> list[int]:
    return [length if other == axis else 1 for other in range(rank)]


def _unit(row: int, column: int, rank: int) -> np.ndarray:
    matrix = np.zeros((rank, rank), np.float32)
    matrix[row, column] = 1
    return matrix
