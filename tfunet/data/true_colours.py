"""Gives normalised pixels the colours of their files again, for pictures. Imports no TensorFlow."""

import math
from collections.abc import Callable

import numpy as np

from tfunet.data.check import raw_case
from tfunet.data.preprocess import check_intensity, statistics_for, unnormalised
from tfunet.data.source import DataSource

# A larger image is not read once more for a picture.
MOST_BYTES = 256 * 2**20


def true_colours(source: DataSource, index: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes normalised pixels (..., channels) of a case those of its files.

    It leaves them as they are where the case is not shown in colour, where nobody knows how it was
    normalised, and where its files are too large or cannot be read again.
    """
    prepared = source.preparation
    if not source.in_colour or prepared is None:
        return lambda pixels: pixels
    intensity = check_intensity(prepared["intensity"])
    shape = source.shapes[index] if source.shapes else ()
    if math.prod(shape) * source.channels * 4 >= MOST_BYTES:
        return lambda pixels: pixels
    try:
        statistics = statistics_for(intensity, [raw_case(source, index).image])
    except (ValueError, OSError):
        return lambda pixels: pixels
    return lambda pixels: unnormalised(pixels, intensity, statistics)
