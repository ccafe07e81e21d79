"""Reads boxes of decoded cases, places and numbers in them, as ops of TensorFlow."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfunet.data.arrays import ArraySamples
from tfunet.data.cached_cases import CachedCases
from tfunet.data.memory_map import mapped

Reader = Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


def part_reader(cases: CachedCases, extents: Sequence[int], *, row_by_row: bool = False) -> Reader:
    """Return the function (case, start) to a part of a case: its image (*extents, channels), and
    its mask (*extents), where it has one, or its target.

    `row_by_row` is as `window_reader` reads.
    """
    if cases.samples is not None:
        return _array_reader(cases.samples, extents)
    read = (window_reader if row_by_row else patch_reader)(cases, extents)
    table = np.asarray(cases.targets, np.float32) if cases.targets else None

    def part(case: tf.Tensor, start: tf.Tensor) -> dict[str, tf.Tensor]:
        image, mask = read(case, start)
        target = {} if table is None else {"target": tf.gather(table, case)}
        return {"image": image, "mask": mask, **target}

    return part


def _array_reader(samples: ArraySamples, extents: Sequence[int]) -> Reader:
    x, y = _variables(samples)

    def part(case: tf.Tensor, start: tf.Tensor) -> dict[str, tf.Tensor]:
        image = tf.gather(x, case)
        if extents != samples.x.shape[1:-1]:
            image = tf.slice(image, [*tf.unstack(start), 0], [*extents, image.shape[-1]])
        return {"image": image, "target": tf.gather(y, case)}

    return part


@functools.lru_cache(maxsize=2)
def _variables(samples: ArraySamples) -> tuple[tf.Variable, tf.Variable]:
    """Return x and y for all pipelines: tf.data would copy tensors that it captures."""
    with tf.device("CPU:0"):
        x, y = (tf.Variable(array, trainable=False) for array in (samples.x, samples.y))
    return x, y


def place_reader(
    cases: CachedCases,
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return the function (case, index of a label, number) -> place of that foreground voxel."""
    if not cases.num_foreground:
        return lambda case, label, number: tf.constant(0, tf.int64)
    counts = np.asarray(cases.foreground_counts, np.int64)
    firsts = np.cumsum(counts).reshape(counts.shape) - counts
    places = mapped(cases.foreground_path, "<i8")

    def place_of(case: tf.Tensor, label: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        first = tf.gather_nd(firsts, tf.stack([case, label]))
        # For a case without the label the result is arbitrary; `crop` does not use it.
        return tf.slice(places, [tf.minimum(first + number, cases.num_foreground - 1)], [1])[0]

    return place_of


def patch_reader(
    cases: CachedCases, extents: Sequence[int]
) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return the function (case, start) -> (image (*extents, channels), mask (*extents))."""
    patch, channels = tuple(extents), cases.channels
    shapes = np.asarray(cases.shapes, np.int64)
    offsets = np.asarray(cases.offsets, np.int64)
    images, masks = mapped(cases.image_path, "<f4"), mapped(cases.mask_path, "u1")

    def read(case: tf.Tensor, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # First the needed range of the first axis, which is contiguous, then the patch in it.
        across = tf.gather(shapes, case)[1:]
        row = tf.reduce_prod(across)
        first = tf.gather(offsets, case) + start[0] * row
        size = patch[0] * row
        image = tf.slice(images, [first * channels], [size * channels])
        image = tf.reshape(image, tf.concat([patch[:1], across, [channels]], axis=0))
        mask = tf.slice(masks, [first], [size])
        mask = tf.reshape(mask, tf.concat([patch[:1], across], axis=0))
        corner = tf.concat([[0], start[1:]], axis=0)
        return (
            tf.slice(image, tf.concat([corner, [0]], axis=0), [*patch, channels]),
            tf.slice(mask, corner, patch),
        )

    return read


def window_reader(
    cases: CachedCases, extents: Sequence[int]
) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return the same as `patch_reader`, for windows that are much narrower than their case.

    A window is read row by row, so that a row of the case is never copied as a whole. That takes
    longer for small windows.
    """
    first_rows, channels = extents[0], cases.channels
    shapes = np.asarray(cases.shapes, np.int64)
    offsets = np.asarray(cases.offsets, np.int64)
    images, masks = mapped(cases.image_path, "<f4"), mapped(cases.mask_path, "u1")

    def read(case: tf.Tensor, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # At each index of the first axis, the needed range of the second is contiguous.
        across = tf.gather(shapes, case)[1:]
        row, inner = tf.reduce_prod(across), tf.reduce_prod(across[1:])
        first = tf.gather(offsets, case) + start[0] * row + start[1] * inner
        size = extents[1] * inner

        def row_of(at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return (
                tf.slice(images, [at * channels], [size * channels]),
                tf.slice(masks, [at], [size]),
            )

        image, mask = tf.map_fn(
            row_of,
            first + tf.range(first_rows, dtype=tf.int64) * row,
            fn_output_signature=(tf.float32, tf.uint8),
        )
        shape = tf.concat([[first_rows, extents[1]], across[1:]], axis=0)
        corner = tf.concat([[0, 0], start[2:]], axis=0)
        image = tf.reshape(image, tf.concat([shape, [channels]], axis=0))
        return (
            tf.slice(image, tf.concat([corner, [0]], axis=0), [*extents, channels]),
            tf.slice(tf.reshape(mask, shape), corner, extents),
        )

    return read
