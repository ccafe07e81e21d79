"""Dice and IoU from counts of voxels. Imports no TensorFlow."""

import numpy as np


def dice(counts: np.ndarray) -> np.ndarray:
    """Return 2 TP / (2 TP + FP + FN) for counts (..., 3) of TP, FP, FN.

    1 where a region is absent from the mask and from the prediction (Dice 1945).
    """
    return _ratio(2 * counts[..., 0], 2 * counts[..., 0] + counts[..., 1] + counts[..., 2])


def iou(counts: np.ndarray) -> np.ndarray:
    """Return TP / (TP + FP + FN) for counts (..., 3); 1 where both are absent (Jaccard 1912)."""
    return _ratio(counts[..., 0], counts[..., 0] + counts[..., 1] + counts[..., 2])


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    top = np.asarray(top, np.float64)
    return np.divide(top, bottom, out=np.ones_like(top), where=np.asarray(bottom) > 0)
