"""Random choices of a training sample, each a function of (seed, epoch, sample) alone.

Stateless ops only: what a sample looks like depends neither on the process that makes it nor on
when. A choice has a stream of its own, so that adding one leaves the others as they were.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# (image (*patch, channels), mask (*patch), seed (2,)) to the same, of the same shapes and types.
Augmentation = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

ORDER_STREAM = 0
CROP_STREAM = 1
AUGMENTATION_STREAM = 16


def stream_seed(seed: int, epoch: tf.Tensor, sample: tf.Tensor | int, stream: int) -> tf.Tensor:
    """Return the seed (2,) of one stream of a sample, for TensorFlow's stateless ops.

    Distinct for epochs under 2^23, samples under 2^32 and streams under 2^8.
    """
    return tf.stack([tf.constant(seed, tf.int64), (epoch * 2**32 + sample) * 2**8 + stream])


def epoch_order(num_samples: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Return the samples in the order of one epoch, (num_samples,) int64."""
    # Not tf.random.experimental.index_shuffle, which needs no array: with seed=[seed, epoch] its
    # permutations of a few hundred samples are far from uniform (chi-square of the positions 15
    # times what chance gives), and it takes longer than this sort.
    keys = _random_bits([num_samples], stream_seed(seed, epoch, 0, ORDER_STREAM))
    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def crop_start(shape: tf.Tensor, patch: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Return where a random patch of a case of `shape` (rank,) begins, (rank,) int64."""
    room = tf.cast(shape, tf.int64) - np.asarray(patch, np.int64) + 1
    return tf.math.floormod(tf.cast(_random_bits([len(patch)], seed), tf.int64), room)


def random_flips(image: tf.Tensor, mask: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reverse each spatial axis, or not, with equal chances."""
    flips = _random_bits([mask.shape.rank], seed) < 0
    return (
        tf.raw_ops.Reverse(tensor=image, dims=tf.concat([flips, [False]], axis=0)),
        tf.raw_ops.Reverse(tensor=mask, dims=flips),
    )


def augment(
    image: tf.Tensor,
    mask: tf.Tensor,
    augmentations: Sequence[Augmentation],
    *,
    seed: int,
    epoch: tf.Tensor,
    sample: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Apply the augmentations in turn, each with the seed of its own stream."""
    for stream, change in enumerate(augmentations, start=AUGMENTATION_STREAM):
        image, mask = change(image, mask, stream_seed(seed, epoch, sample, stream))
    return image, mask


def _random_bits(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Return integers that are uniform over all of int32."""
    return tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
