"""Changes the grey values of an image: blur, brightness, contrast, gamma, noise.

Each takes an image (*spatial, channels) float32 and one amount for each channel, (channels,).
Elementwise arithmetic, and sums in a fixed order: the bits do not depend on the number of threads.
"""

import math
from collections.abc import Callable

import tensorflow as tf


def blur(image: tf.Tensor, sigma: tf.Tensor, greatest: float) -> tf.Tensor:
    """Return the image under a Gaussian filter of `sigma` pixels, at most `greatest`.

    The filter ends at three times `greatest`; beyond the border lies the mirror image.
    """
    for axis in range(image.shape.rank - 1):
        image = _blur_axis(image, sigma, axis, math.ceil(3 * greatest))
    return image


def _blur_axis(image: tf.Tensor, sigma: tf.Tensor, axis: int, reach: int) -> tf.Tensor:
    length = image.shape[axis]
    reach = min(reach, length - 1)
    # A sigma of 0 leaves the middle weight alone.
    falloff = -0.5 / tf.maximum(sigma, 1e-3) ** 2
    weights = [tf.exp(falloff * tap**2) for tap in range(reach + 1)]
    total = weights[0] + 2 * sum(weights[1:], tf.zeros_like(sigma))
    widths = [[reach, reach] if one == axis else [0, 0] for one in range(image.shape.rank)]
    padded = tf.pad(image, widths, mode="REFLECT")
    before = (slice(None),) * axis
    shifted = [padded[(*before, slice(start, start + length))] for start in range(2 * reach + 1)]
    blurred = image * (weights[0] / total)
    for tap in range(1, reach + 1):
        pair = shifted[reach - tap] + shifted[reach + tap]
        blurred += pair * (weights[tap] / total)
    return blurred


def brightness(image: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
    """Return the image with `amount` added to each channel."""
    return image + amount


def contrast(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Return the image with `factor` times the distance from each channel's mean.

    What would leave the channel's range is clipped to it (batchgenerators' augment_contrast with
    preserve_range, as nnU-Net uses it).
    """
    mean = _mean(image)
    low, high = _of_channels(tf.reduce_min, image), _of_channels(tf.reduce_max, image)
    # Added rather than mean + factor * ..., so that a factor of 1 changes nothing.
    changed = image + (image - mean) * (factor - 1)
    return tf.minimum(tf.maximum(changed, low), high)


def gamma(image: tf.Tensor, exponent: tf.Tensor) -> tf.Tensor:
    """Return the image whose channels were taken to 0..1, to this power, and back.

    Mean and standard deviation of each channel stay (batchgenerators' augment_gamma with
    retain_stats, as nnU-Net uses it).
    """
    mean, deviation = _mean(image), _deviation(image)
    low = _of_channels(tf.reduce_min, image)
    span = _of_channels(tf.reduce_max, image) - low
    # Not tf.pow, which takes several times as long; the logarithm of 0 comes back as 0.
    unit = (image - low) / (span + 1e-7)
    changed = tf.exp(exponent * tf.math.log(unit)) * span
    changed = changed - _mean(changed)
    return changed * (deviation / (_deviation(changed) + 1e-8)) + mean


def noise(image: tf.Tensor, deviation: tf.Tensor, normal: tf.Tensor) -> tf.Tensor:
    """Return the image with `deviation` times the standard normal numbers added."""
    return image + normal * deviation


def _of_channels(reduction: Callable[..., tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """Return a reduction over all pixels of each channel, (channels,)."""
    # In two steps: each sum of the first is one thread's, however many there are, and the second
    # is too small to be shared. A single sum over all pixels would depend on their number.
    axes = list(range(1, image.shape.rank - 1))
    return reduction(reduction(image, axis=axes), axis=0)


def _mean(image: tf.Tensor) -> tf.Tensor:
    return _of_channels(tf.reduce_mean, image)


def _deviation(image: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(_mean((image - _mean(image)) ** 2))
