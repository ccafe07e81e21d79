"""Random numbers of a training sample, each a function of (seed, epoch, sample) alone.

All ops are stateless: a sample does not depend on the process that makes it, or on the time. Each
choice has its own stream, so that a new choice does not change the others.
"""

from collections.abc import Sequence

import tensorflow as tf

ORDER_STREAM = 0
CROP_STREAM = 1
CENTRED_STREAM = 2
VOXEL_STREAM = 3
# Never change these numbers: a resumed run must see the same samples.
STREAMS = {
    "flips": 16,
    "rotation90": 17,
    "rotation": 18,
    "scale": 19,
    "shear": 20,
    "translation": 21,
    "elastic": 22,
    "blur": 23,
    "brightness": 24,
    "contrast": 25,
    "gamma": 26,
    "noise": 27,
    "elastic_field": 28,
    "noise_field": 29,
}


def stream_seed(seed: int, epoch: tf.Tensor, sample: tf.Tensor | int, stream: int) -> tf.Tensor:
    """Return the seed (2,) of one stream of a sample, for TensorFlow's stateless ops.

    Seeds are distinct for epochs below 2^23, samples below 2^32 and streams below 2^8.
    """
    return tf.stack([tf.constant(seed, tf.int64), (epoch * 2**32 + sample) * 2**8 + stream])


def epoch_order(num_samples: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Return the samples in the order of one epoch, (num_samples,) int64."""
    # Not tf.random.experimental.index_shuffle, which needs no array: with seed=[seed, epoch] its
    # permutations of a few hundred samples are far from uniform (chi-square of the positions 15
    # times what chance gives), and it takes longer than this sort.
    keys = random_bits([num_samples], stream_seed(seed, epoch, 0, ORDER_STREAM))
    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def random_bits(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Return integers that are uniform over all of int32."""
    return tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )


def uniform(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Return float32 numbers that are uniform over 0 to 1."""
    return tf.random.stateless_uniform(shape, seed, alg="philox")


def normal(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """Return float32 numbers of mean 0 and standard deviation 1."""
    return tf.random.stateless_normal(shape, seed, alg="philox")
