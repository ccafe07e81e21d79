"""Draws where a training sample is cut out of its case: anywhere, or around a foreground voxel."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfunet.data.augmentation import random_streams


def patch_start(
    shape: tf.Tensor,
    patch: Sequence[int],
    *,
    voxel: Callable[[tf.Tensor], tf.Tensor],
    foreground_share: float,
    seed: int,
    epoch: tf.Tensor,
    sample: tf.Tensor | int,
) -> tf.Tensor:
    """Return the first voxel of a sample in its case, (rank,) int64.

    A share of the samples is centred on a foreground voxel, moved inside the image if needed. Each
    label of the case is equally likely (nnU-Net, Isensee et al. 2021). The other samples lie
    anywhere.

    Args:
        voxel: Two random numbers to a foreground voxel, (rank,) int64; negative if there is none.
        foreground_share: Share of the samples to centre, 0 to 1.
    """

    def seed_of(stream: int) -> tf.Tensor:
        return random_streams.stream_seed(seed, epoch, sample, stream)

    anywhere = crop_start(shape, patch, seed_of(random_streams.CROP_STREAM))
    if not foreground_share:
        return anywhere
    bits = tf.cast(random_streams.random_bits([2], seed_of(random_streams.VOXEL_STREAM)), tf.int64)
    middle = voxel(bits)
    size = np.asarray(patch, np.int64)
    centred = tf.clip_by_value(middle - size // 2, 0, shape - size)
    is_centred = (
        random_streams.uniform([], seed_of(random_streams.CENTRED_STREAM)) < foreground_share
    ) & tf.reduce_all(middle >= 0)
    return tf.where(is_centred, centred, anywhere)


def crop_start(shape: tf.Tensor, patch: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Return the first voxel of a uniformly random patch in a case of `shape` (rank,), int64."""
    room = tf.cast(shape, tf.int64) - np.asarray(patch, np.int64) + 1
    return tf.math.floormod(tf.cast(random_streams.random_bits([len(patch)], seed), tf.int64), room)
