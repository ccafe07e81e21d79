"""Changes the grey values of an image: blur, brightness, contrast, gamma, noise.

Each function takes an image (*spatial, channels) float32 and an amount for each channel
(channels,). Arithmetic is elementwise, and sums have a fixed order, so that the bits do not depend
on the number of threads.
"""

import math
from collections.abc import Callable

import tensorflow as tf


def blur(image: tf.Tensor, sigma: tf.Tensor, greatest: float) -> tf.Tensor:
    """Return the image under a Gaussian filter of `sigma` pixels, at most `greatest`.

    The filter ends at three times `greatest`. The image is mirrored at its border.
    """
    for axis in range(image.shape.rank - 1):
        image = _blur_axis(image, sigma, axis, math.ceil(3 * greatest))
    return image


def _blur_axis(image: tf.Tensor, sigma: tf.Tensor, axis: int, reach: int) -> tf.Tensor:
    length = image.shape[axis]
    reach = min(reach, length - 1)
    # With a sigma of 0 only the middle weight is not 0.
    falloff = -0.5 / tf.maximum(sigma, 1e-3) ** 2
    weights = [tf.exp(falloff * tap**2) for tap in range(reach + 1)]
    total = weights[0] + 2 * sum(weights[1:], tf.zeros_like(sigma))
    widths = [[reach, reach] if other == axis else [0, 0] for other in range(image.shape.rank)]
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

    Values are clipped to the channel's range (batchgenerators' augment_contrast with
    preserve_range, as nnU-Net uses it).
    """
    mean = _mean(image)
    low, high = _of_channels(tf.reduce_min, image), _of_channels(tf.reduce_max, image)
    # Added rather than mean + factor * ..., so that a factor of 1 changes nothing.
    changed = image + (image - mean) * (factor - 1)
    return tf.minimum(tf.maximum(changed, low), high)


def gamma(image: tf.Tensor, exponent: tf.Tensor) -> tf.Tensor:
    """Return the image with each channel scaled to 0..1, raised to `exponent`, and scaled back.

    Mean and standard deviation of each channel stay the same (batchgenerators' augment_gamma with
    retain_stats, as nnU-Net uses it).
    """
    mean, deviation = _mean(image), _deviation(image)
    low = _of_channels(tf.reduce_min, image)
    span = _of_channels(tf.reduce_max, image) - low
    # Not tf.pow, which takes several times as long. exp(exponent * log(0)) is 0.
    unit = (image - low) / (span + 1e-7)
    changed = tf.exp(exponent * tf.math.log(unit)) * span
    changed = changed - _mean(changed)
    return changed * (deviation / (_deviation(changed) + 1e-8)) + mean


def noise(image: tf.Tensor, deviation: tf.Tensor, normal: tf.Tensor) -> tf.Tensor:
    """Return the image with `deviation` times the standard normal numbers added."""
    return image + normal * deviation


def _of_channels(reduction: Callable[..., tf.Tensor], image: tf.Tensor) -> tf.Tensor:
    """Return a reduction over all pixels of each channel, (channels,)."""
    # In two steps: one thread computes each sum of the first step, and the second is too small to
    # be divided. A single sum over all pixels would depend on the number of threads.
    axes = list(range(1, image.shape.rank - 1))
    return reduction(reduction(image, axis=axes), axis=0)


def _mean(image: tf.Tensor) -> tf.Tensor:
    return _of_channels(tf.reduce_mean, image)


def _deviation(image: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(_mean((image - _mean(image)) ** 2))
