"""Pixels before training: resampling to a pixel size and normalisation. Imports no TensorFlow.

Only elementwise arithmetic in a fixed order: the same file gives the same bits in every process,
whatever its threads.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Intensity = str | tuple[float, float] | Mapping[str, tuple[float, float]]

# Part of every fingerprint: raise it when a change here changes pixels.
PREPROCESS_VERSION = 1


def resampled_shape(
    shape: Sequence[int], spacing: Sequence[float], target: Sequence[float]
) -> tuple[int, ...]:
    """Return the spatial shape at `target` pixel size of an image that has `spacing`."""
    return tuple(
        max(1, round(length * now / wanted))
        for length, now, wanted in zip(shape, spacing, target, strict=True)
    )


def resize_linear(image: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Resize float32 (*spatial, channels) to `shape`, linearly, without aliasing.

    Where an axis shrinks, the triangle filter is widened by the factor, as Pillow's BILINEAR
    does. Pixel centres lie at (i + 0.5) / length.
    """
    for axis, length in enumerate(shape):
        if length != image.shape[axis]:
            image = _resize_axis(image, axis, length)
    return image


def resize_nearest(mask: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Resize (*spatial) to `shape`, each pixel from the one its centre falls into."""
    for axis, length in enumerate(shape):
        before = mask.shape[axis]
        if length != before:
            centres = (np.arange(length) * 2 + 1) * before // (2 * length)
            mask = mask.take(centres, axis)
    return mask


def normalise(image: np.ndarray, intensity: Intensity) -> np.ndarray:
    """Return float32 (*spatial, channels) with normalised intensities.

    "zscore": mean 0 and standard deviation 1 over the pixels of each channel of this image; a
    constant channel becomes 0. "none": unchanged. (low, high): low becomes 0 and high 1, and
    what lies beyond is clipped. {"clip": (low, high)}: clipped to these percentiles of each
    channel, then "zscore".
    """
    if isinstance(intensity, Mapping):
        axes = tuple(range(image.ndim - 1))
        bounds = np.percentile(image, intensity["clip"], axis=axes)
        image, intensity = np.clip(image, *bounds.astype(np.float32)), "zscore"
    if intensity == "none":
        return image.astype(np.float32)
    if isinstance(intensity, str):
        axes = tuple(range(image.ndim - 1))
        mean = image.mean(axes, dtype=np.float64)
        deviation = image.std(axes, dtype=np.float64)
        return ((image - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
    low, high = intensity
    return np.clip((image - low) / (high - low), 0, 1).astype(np.float32)


def check_intensity(intensity: str | Sequence[float] | Mapping[str, Sequence[float]]) -> Intensity:
    """Return `intensity` as `normalise` takes it; ValueError for anything else."""
    if isinstance(intensity, str):
        if intensity in ("zscore", "none"):
            return intensity
    elif isinstance(intensity, Mapping):
        clip = intensity.get("clip", ())
        if set(intensity) == {"clip"} and len(clip) == 2 and 0 <= clip[0] < clip[1] <= 100:
            return {"clip": (float(clip[0]), float(clip[1]))}
    elif len(intensity) == 2 and intensity[0] < intensity[1]:
        return float(intensity[0]), float(intensity[1])
    raise ValueError(
        f"Unknown intensity {intensity!r}. Known: 'zscore', 'none', a range [low, high] that "
        "becomes 0 to 1, such as [0, 255], or percentiles to clip at before the z-score, such as "
        "{ clip = [0.5, 99.5] }."
    )


def _resize_axis(image: np.ndarray, axis: int, length: int) -> np.ndarray:
    before = image.shape[axis]
    factor = before / length
    reach = max(1.0, factor)
    centres = (np.arange(length) + 0.5) * factor
    first = np.floor(centres - reach).astype(np.int64)
    taps = first[:, np.newaxis] + np.arange(int(np.ceil(2 * reach)) + 2)
    weights = np.maximum(0, 1 - np.abs(taps + 0.5 - centres[:, np.newaxis]) / reach)
    weights *= (taps >= 0) & (taps < before)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    taps = taps.clip(0, before - 1)
    column = [1] * image.ndim
    column[axis] = length
    # Tap by tap, not as a matrix product, whose rounding depends on the threads of the library.
    resized = np.zeros((*image.shape[:axis], length, *image.shape[axis + 1 :]), np.float32)
    for tap in range(taps.shape[1]):
        if weights[:, tap].any():
            resized += image.take(taps[:, tap], axis) * weights[:, tap].reshape(column)
    return resized
