"""Where a training sample lies in its case: anywhere, or about a voxel of the foreground."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfunet.data.augmentation.random_streams import (
    CENTRED_STREAM,
    CROP_STREAM,
    VOXEL_STREAM,
    crop_start,
    random_bits,
    stream_seed,
    uniform,
)


def patch_start(
    shape: tf.Tensor,
    patch: Sequence[int],
    *,
    counts: tf.Tensor,
    place: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    foreground_share: float,
    seed: int,
    epoch: tf.Tensor,
    sample: tf.Tensor | int,
) -> tf.Tensor:
    """Return where a sample begins in its case, (rank,) int64.

    A share of the samples is centred on a foreground voxel, as far as the image reaches: of the
    labels that the case has, each is equally likely (nnU-Net, Isensee et al. 2021). The others
    lie anywhere.

    Args:
        shape: Of the case, (rank,) int64.
        patch: Spatial shape of the sample.
        counts: Known voxels of each label from 1 on, (labels,) int64.
        place: (index of a label, number of its voxel) to the place in the flattened case.
        foreground_share: 0 to 1.
        seed: Of the run.
        epoch: From 0.
        sample: Counted over all training samples.
    """

    def of(stream: int) -> tf.Tensor:
        return stream_seed(seed, epoch, sample, stream)

    anywhere = crop_start(shape, patch, of(CROP_STREAM))
    if not foreground_share:
        return anywhere
    bits = tf.cast(random_bits([2], of(VOXEL_STREAM)), tf.int64)
    present = tf.math.count_nonzero(counts, dtype=tf.int64)
    labels = tf.argsort(tf.cast(counts == 0, tf.int32), stable=True)
    label = tf.gather(labels, tf.math.floormod(bits[0], tf.maximum(present, 1)))
    number = tf.math.floormod(bits[1], tf.maximum(tf.gather(counts, label), 1))
    voxel = tf.unravel_index(place(tf.cast(label, tf.int64), number), shape)
    size = np.asarray(patch, np.int64)
    about = tf.clip_by_value(voxel - size // 2, 0, shape - size)
    is_centred = (uniform([], of(CENTRED_STREAM)) < foreground_share) & (present > 0)
    return tf.where(is_centred, about, anywhere)
