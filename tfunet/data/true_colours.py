"""Gives normalised pixels the colours of their files again, for pictures. Imports no TensorFlow."""

from collections.abc import Callable

import numpy as np

from tfunet.data.source import DataSource


def true_colours(source: DataSource, index: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes normalised pixels (..., channels) of a case those of its files.

    It leaves them as they are where the case is not shown in colour, and where that fails, whatever
    the reason: a run must not end because of a picture.
    """
    if not source.in_colour:
        return np.asarray
    try:
        restored = source.restore(index)
    except Exception:
        return np.asarray

    def coloured(pixels: np.ndarray) -> np.ndarray:
        try:
            return restored(pixels)
        except Exception:
            return pixels

    return coloured
