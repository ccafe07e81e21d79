"""Reads parts of cases, places and numbers in them, as ops of TensorFlow."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfunet.data.arrays import ArraySamples
from tfunet.data.cached_cases import CachedCases
from tfunet.data.read_failure import noting_failures

Reader = Callable[..., dict[str, tf.Tensor]]


def part_reader(cases: CachedCases, extents: Sequence[int], *, among: Sequence[int] = ()) -> Reader:
    """Return the function (case, start, begin) to a part of a case.

    The part begins at `begin` (0 by default) of the patch that begins at `start`. It has its image
    (*extents, channels), its mask (*extents), where the case has one, or its target, and the case:
    the next one in `among` where this one turns out to be of no use, or -1 if there is none.
    """
    if cases.samples is not None:
        return _array_reader(cases.samples, extents)
    patch = tuple(extents)
    among = tuple(among)
    table = np.asarray(cases.targets, np.float32) if cases.targets else None

    @noting_failures
    def read(case: Any, start: Any, begin: Any) -> tuple[np.ndarray, np.ndarray, np.int64]:
        image, mask, taken = cases.read_or_next(
            int(case), start.tolist(), begin.tolist(), patch, among
        )
        return image, mask, np.int64(taken)

    def part(
        case: tf.Tensor, start: tf.Tensor, begin: tf.Tensor | Sequence[int] | None = None
    ) -> dict[str, tf.Tensor]:
        offset = [0] * len(patch) if begin is None else begin
        image, mask, taken = tf.numpy_function(
            read,
            [case, tf.cast(start, tf.int64), tf.cast(offset, tf.int64)],
            [tf.float32, tf.uint8, tf.int64],
            stateful=False,
        )
        image.set_shape((*patch, cases.channels))
        mask.set_shape(patch)
        taken.set_shape(())
        target = {} if table is None else {"target": tf.gather(table, tf.maximum(taken, 0))}
        return {"image": image, "mask": mask, "case": taken, **target}

    return part


def _array_reader(samples: ArraySamples, extents: Sequence[int]) -> Reader:
    x, y = _variables(samples)

    def part(
        case: tf.Tensor, start: tf.Tensor, begin: tf.Tensor | Sequence[int] | None = None
    ) -> dict[str, tf.Tensor]:
        image = tf.gather(x, case)
        if tuple(extents) != samples.x.shape[1:-1]:
            start = start if begin is None else start + tf.cast(begin, start.dtype)
            image = tf.slice(image, [*tf.unstack(start), 0], [*extents, image.shape[-1]])
        return {"image": image, "target": tf.gather(y, case), "case": case}

    return part


@functools.lru_cache(maxsize=2)
def _variables(samples: ArraySamples) -> tuple[tf.Variable, tf.Variable]:
    """Return x and y for all pipelines: tf.data would copy tensors that it captures."""
    with tf.device("CPU:0"):
        x, y = (tf.Variable(array, trainable=False) for array in (samples.x, samples.y))
    return x, y


def voxel_reader(cases: CachedCases) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return the function (case, two random numbers) to a foreground voxel of the case, (rank,)
    int64; -1 along each axis where the case has none.
    """

    @noting_failures
    def read(case: Any, bits: Any) -> np.ndarray:
        return np.asarray(cases.foreground_voxel(int(case), bits.tolist()), np.int64)

    def voxel(case: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
        place = tf.numpy_function(read, [case, bits], tf.int64, stateful=False)
        place.set_shape((len(cases.patch),))
        return place

    return voxel
