"""Pixels before training: resampling to a pixel size and normalisation. Imports no TensorFlow.

Only elementwise arithmetic in a fixed order: a file gives the same bits in every process, with
any number of threads.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

Intensity = str | tuple[float, float] | Mapping[str, tuple[float, ...]]
# Mean and standard deviation of each channel; before them the bounds to clip at, or the value
# outside, if any.
Statistics = tuple[np.ndarray, ...]
Box = Callable[[Sequence[int], Sequence[int]], np.ndarray]

STATISTICS_VALUES = 2**20
NONZERO, INSIDE = "zscore_nonzero", "zscore_inside"
# Resampling changes a constant by so much of it.
ROUNDING = 2e-6
GIVEN = {"mean", "deviation"}
BOUNDS = {"low", "high"}

# Part of every fingerprint: increase it when a change here changes pixels.
PREPROCESS_VERSION = 3


def resampled_shape(
    shape: Sequence[int], spacing: Sequence[float], target: Sequence[float]
) -> tuple[int, ...]:
    """Return the spatial shape of an image after resampling from `spacing` to `target`."""
    return tuple(
        max(1, round(length * old / new))
        for length, old, new in zip(shape, spacing, target, strict=True)
    )


def resize_linear(image: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Resize float32 (*spatial, channels) to `shape`, linearly, without aliasing.

    Where an axis shrinks, the triangle filter is widened by the factor, as Pillow's BILINEAR
    does. Pixel centres lie at (i + 0.5) / length.
    """
    return resize_linear_box(
        lambda start, stop: image, image.shape[:-1], shape, [0] * len(shape), shape
    )


def resize_linear_box(
    read: Box,
    before: Sequence[int],
    shape: Sequence[int],
    start: Sequence[int],
    stop: Sequence[int],
) -> np.ndarray:
    """Return the voxels start..stop-1 of `resize_linear`, to the same bits.

    Args:
        read: (start, stop) to that box of the image, float32 (*box, channels); only the needed
            box is read.
        before: Spatial shape of the image.
        shape: Spatial shape of the resized image.
        start: First voxel of the result.
        stop: One past its last voxel.
    """
    axes = [
        _taps(length, wanted, first, last) if length != wanted else None
        for length, wanted, first, last in zip(before, shape, start, stop, strict=True)
    ]
    needed = [
        (first, last) if axis is None else (int(axis[0].min()), int(axis[0].max()) + 1)
        for axis, first, last in zip(axes, start, stop, strict=True)
    ]
    image = read([first for first, _ in needed], [last for _, last in needed])
    for index, axis in enumerate(axes):
        if axis is not None:
            image = _resize_axis(image, index, axis[0] - needed[index][0], axis[1])
    return image


def resize_nearest(mask: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Resize (*spatial) to `shape`; each pixel takes the value at its centre."""
    for axis, length in enumerate(shape):
        if length != mask.shape[axis]:
            mask = mask.take(nearest(mask.shape[axis], length), axis)
    return mask


def resize_with_gaps(image: np.ndarray, shape: Sequence[int], fill: float | None) -> np.ndarray:
    """Resize as `resize_linear`; pixels without data (NaN) stay so, and count as `fill` for their
    neighbours."""
    gaps = None if fill is None else np.isnan(image)
    if gaps is None or not gaps.any():
        return resize_linear(image, shape)
    resized = resize_linear(np.where(gaps, np.float32(fill), image), shape)
    resized[resize_nearest(gaps, shape)] = np.nan
    return resized


def nearest(before: int, length: int) -> np.ndarray:
    """Return which of `before` pixels the centre of each of `length` pixels falls into."""
    return (np.arange(length) * 2 + 1) * before // (2 * length)


def channel_statistics(parts: Iterable[np.ndarray]) -> Statistics:
    """Return mean and standard deviation of each channel (channels,) float64.

    `parts` are (rows, ..., channels), the image cut along its first axis. The result has the same
    bits wherever it is cut, because each row is summed first, and then the sums of the rows. NaN
    does not count.
    """
    sums, squares, counts, count = [], [], [], 0
    for part in parts:
        step = max(1, STATISTICS_VALUES // max(part[:1].size, 1))
        for first in range(0, len(part), step):
            rows = part[first : first + step].astype(np.float64, order="C")
            rows = rows.reshape(len(rows), -1, part.shape[-1])
            gaps = np.isnan(rows)
            count = rows.shape[1]
            counts.append(count - gaps.sum(1))
            rows[gaps] = 0
            total = rows.sum(1)
            sums.append(total)
            rows -= total[:, np.newaxis] / np.maximum(counts[-1], 1)[:, np.newaxis]
            rows[gaps] = 0
            squares.append(np.square(rows, out=rows).sum(1))
    row_sums, row_squares, row_counts = map(np.concatenate, (sums, squares, counts))
    if (row_counts == count).all():
        mean = row_sums.sum(0) / (len(row_sums) * count)
        between = count * np.square(row_sums / count - mean).sum(0)
        return mean, np.sqrt((row_squares.sum(0) + between) / (len(row_sums) * count))
    total_count = np.maximum(row_counts.sum(0), 1)
    mean = row_sums.sum(0) / total_count
    apart = np.square(row_sums / np.maximum(row_counts, 1) - mean)
    return mean, np.sqrt((row_squares.sum(0) + (row_counts * apart).sum(0)) / total_count)


def pooled_statistics(
    pixels: Sequence[int], means: Sequence[Sequence[float]], deviations: Sequence[Sequence[float]]
) -> Statistics:
    """Return mean and standard deviation of each channel over all pixels of several images.

    Each image has its number of pixels, and mean and deviation of each channel.
    """
    counts = np.array(pixels, float)[:, np.newaxis]
    mean = (counts * means).sum(0) / counts.sum()
    variance = counts * (np.square(deviations) + np.square(means - mean))
    return mean, np.sqrt(variance.sum(0) / counts.sum())


def statistics_for(intensity: Intensity, parts: Iterable[np.ndarray]) -> Statistics | None:
    """Return the statistics that `normalise` needs of an image in parts; None if it needs none.

    Percentiles need the whole image in memory at once.
    """
    if isinstance(intensity, Mapping):
        if "clip" in intensity:
            return _clipped_statistics(np.concatenate(list(parts)), intensity["clip"])
        return recorded_statistics([intensity[name] for name in _names_given(intensity)])
    if intensity in (NONZERO, INSIDE):
        return _statistics_inside(parts, has_value=intensity == INSIDE)
    return channel_statistics(parts) if intensity == "zscore" else None


def recorded_statistics(values: Sequence[Sequence[float]]) -> Statistics:
    """Return the arrays of `statistics_for` from lists of their values."""
    arrays = [np.array(array) for array in values]
    # Bounds, if any, come before mean and deviation, and have the type of images.
    return (*(array.astype(np.float32) for array in arrays[:-2]), *arrays[-2:])


def normalise(
    image: np.ndarray,
    intensity: Intensity,
    statistics: Statistics | None = None,
    fill: float | None = None,
) -> np.ndarray:
    """Return float32 (*spatial, channels) with normalised intensities.

    `image` may be a part of an image; then `statistics` are those of the whole image. Pixels
    without data (NaN) are not in the statistics, and then take the value `fill`.

    - "zscore": each channel gets mean 0 and standard deviation 1; a constant channel becomes 0.
    - "zscore_nonzero": the same, by the pixels that are not 0 in all channels; the others stay 0.
    - "zscore_inside": the same, by the pixels that are not as the image's first pixel with data in
      all channels; the others become 0.
    - "none": unchanged.
    - (low, high): low becomes 0 and high 1; values beyond are clipped.
    - {"clip": (low, high)}: clipped to these percentiles of each channel, then "zscore".
    - {"mean": ..., "deviation": ...}: less this mean, over this deviation, both (channels,), the
      same for all images; with "low" and "high", (channels,), clipped to them before.
    """
    if statistics is None:
        statistics = statistics_for(intensity, [image])
    if fill is not None:
        image = np.where(np.isnan(image), np.float32(fill), image)
    if isinstance(intensity, tuple):
        low, high = intensity
        return np.clip((image - low) / (high - low), 0, 1).astype(np.float32)
    if statistics is None:
        return image.astype(np.float32)
    *bounds, mean, deviation = statistics
    if intensity in (NONZERO, INSIDE):
        standardised = _standardised(image, mean, deviation)
        standardised[_outside(image, *bounds)] = 0
        return standardised
    return _standardised(np.clip(image, *bounds) if bounds else image, mean, deviation)


def unnormalised(
    image: np.ndarray, intensity: Intensity, statistics: Statistics | None
) -> np.ndarray:
    """Return float32 intensities before `normalise`, but for what it clipped, to rounding."""
    if statistics is None:
        if isinstance(intensity, tuple):
            low, high = intensity
            return (image * (high - low) + low).astype(np.float32)
        return image
    mean, deviation = statistics[-2:]
    restored = image * np.where(deviation > 0, deviation, 1) + mean
    if intensity in (NONZERO, INSIDE):
        restored[_outside(image)] = statistics[0] if intensity == INSIDE else 0
    return restored.astype(np.float32)


def _outside(image: np.ndarray, value: Any = 0) -> np.ndarray:
    """Return where all channels have their value, as around a brain without its skull."""
    return (np.abs(image - value) <= ROUNDING * np.abs(value)).all(-1)


def _statistics_inside(parts: Iterable[np.ndarray], *, has_value: bool) -> Statistics:
    """Return mean and deviation of the pixels inside; before them the first pixel's value."""
    rest, read = iter(parts), []
    outside: Any = 0
    for part in rest if has_value else ():
        read.append(part)
        pixels = part.reshape(-1, part.shape[-1])
        has_data = ~np.isnan(pixels).any(-1)
        if has_data.any():
            outside = pixels[has_data.argmax()]
            break
    inside = (
        np.where(_outside(part, outside)[..., np.newaxis], np.float32(np.nan), part)
        for part in itertools.chain(read, rest)
    )
    statistics = channel_statistics(inside)
    return (outside, *statistics) if has_value else statistics


def _clipped_statistics(image: np.ndarray, percentiles: Sequence[float]) -> Statistics:
    axes = tuple(range(image.ndim - 1))
    percentile = np.nanpercentile if np.isnan(image).any() else np.percentile
    bounds = percentile(image, percentiles, axis=axes).astype(np.float32)
    return (*bounds, *channel_statistics([np.clip(image, *bounds)]))


def _standardised(image: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return (image - mean) / deviation of each channel, computed in float64, as float32."""
    # Row by row: a tenth of the time of NumPy's loops over few channels. The bits are the same.
    *rows, columns, channels = image.shape
    lines = image.reshape(*rows, columns * channels)
    standardised: np.ndarray = lines - np.tile(np.asarray(mean, np.float64), columns)
    standardised /= np.tile(np.where(deviation > 0, deviation, 1.0), columns)
    return standardised.astype(np.float32).reshape(image.shape)


def check_intensity(intensity: str | Sequence[float] | Mapping[str, Sequence[float]]) -> Intensity:
    """Return `intensity` in the form that `normalise` takes; ValueError if it is unknown."""
    if isinstance(intensity, str):
        if intensity in ("zscore", NONZERO, INSIDE, "none"):
            return intensity
    elif isinstance(intensity, Mapping):
        clip = intensity.get("clip", ())
        if set(intensity) == {"clip"} and len(clip) == 2 and 0 <= clip[0] < clip[1] <= 100:
            return {"clip": (float(clip[0]), float(clip[1]))}
        if _are_given(intensity):
            return {name: tuple(map(float, intensity[name])) for name in _names_given(intensity)}
    elif len(intensity) == 2 and -np.inf < intensity[0] < intensity[1] < np.inf:
        return float(intensity[0]), float(intensity[1])
    raise ValueError(
        f"Unknown intensity {intensity!r}. Known: 'zscore', 'zscore_nonzero', 'zscore_inside', "
        "'none', a range [low, high] that becomes 0 to 1, such as [0, 255], percentiles to clip at "
        "before the z-score, such as { clip = [0.5, 99.5] }, or the same statistics for all "
        "images, a number for each channel: { mean = [90.5], deviation = [31.2] }, with values to "
        "clip at before, if you like: low = [-160], high = [240]."
    )


def check_channels(intensity: Intensity, channels: int) -> None:
    """Raise ValueError if statistics are given for another number of channels."""
    if not isinstance(intensity, Mapping) or "clip" in intensity:
        return
    for name, values in intensity.items():
        if len(values) != channels:
            raise ValueError(
                f"intensity gives {name} for {len(values)} channels, and the images have "
                f"{channels}. Give a number for each channel."
            )


def needs_pixels(intensity: Intensity) -> bool:
    """Return whether each image has statistics of its own, which must be computed."""
    return intensity in ("zscore", NONZERO, INSIDE) or needs_whole_image(intensity)


def needs_whole_image(intensity: Intensity) -> bool:
    """Return whether statistics need all of an image at once, as percentiles do."""
    return isinstance(intensity, Mapping) and "clip" in intensity


def _names_given(intensity: Mapping[str, Any]) -> list[str]:
    """Return the names of given statistics in the order of `Statistics`."""
    return [name for name in ("low", "high", "mean", "deviation") if name in intensity]


def _are_given(intensity: Mapping[str, Any]) -> bool:
    """Whether a table holds statistics that can be used: of as many channels, and in order."""
    names = set(intensity)
    if not GIVEN <= names <= GIVEN | BOUNDS or len(names & BOUNDS) == 1:
        return False
    values = [np.array(intensity[name], float) for name in _names_given(intensity)]
    if not all(
        value.shape == values[0].shape and value.ndim == 1 and value.size for value in values
    ):
        return False
    is_finite = all(np.isfinite(value).all() for value in values)
    in_order = len(values) == 2 or bool((values[0] < values[1]).all())
    return is_finite and in_order and bool((values[-1] > 0).all())


@lru_cache(maxsize=64)
def _taps(before: int, length: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the source pixels and their weights for pixels start..stop-1 of `length`."""
    taps, weights = _triangles(before, length, start, stop)
    weights *= (taps >= 0) & (taps < before)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return taps.clip(0, before - 1), weights


def _triangles(before: int, length: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return source pixels, also beyond the ends, and their weights in the triangle filter."""
    factor = before / length
    reach = max(1.0, factor)
    centres = (np.arange(start, stop) + 0.5) * factor
    first = np.floor(centres - reach).astype(np.int64)
    taps = first[:, np.newaxis] + np.arange(int(np.ceil(2 * reach)) + 2)
    return taps, np.maximum(0, 1 - np.abs(taps + 0.5 - centres[:, np.newaxis]) / reach)


@lru_cache(maxsize=64)
def share_inside(before: int, length: int) -> np.ndarray:
    """Return which share of its filter `resize_linear` has in the image, (length,) float32."""
    taps, weights = _triangles(before, length, 0, length)
    inside = np.where((taps >= 0) & (taps < before), weights, 0)
    return (inside.sum(1) / weights.sum(1)).astype(np.float32)


def _resize_axis(image: np.ndarray, axis: int, taps: np.ndarray, weights: np.ndarray) -> np.ndarray:
    lines = np.ascontiguousarray(np.moveaxis(image, axis, 0))
    shape = (len(taps), *lines.shape[1:])
    # Arrays are reused: new pages would take longer than all of the arithmetic.
    resized, part = np.zeros(shape, np.float32), np.empty(shape, np.float32)
    column = (-1, *[1] * (image.ndim - 1))
    # Tap by tap: the rounding of a matrix product depends on the library's threads.
    for tap in range(taps.shape[1]):
        if weights[:, tap].any():
            np.take(lines, taps[:, tap], 0, out=part, mode="clip")
            part *= weights[:, tap].reshape(column)
            resized += part
    return np.moveaxis(resized, 0, axis)
