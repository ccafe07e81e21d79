"""Confusion matrices: how many voxels of each true class were predicted as each. No TensorFlow.

Rows are true classes and columns predicted ones, the background first. Voxels to ignore are in no
row. What is counted of regions follows from them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfunet.files.table import csv_line

BACKGROUND = "0 background"
CONFUSION = "confusion.csv"


def region_table(num_classes: int, regions: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Return (num_classes, regions) bool: whether a label belongs to a region."""
    table = np.zeros((num_classes, len(regions)), bool)
    for column, labels in enumerate(regions.values()):
        table[list(labels), column] = True
    return table


def count_pairs(mask: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return (num_classes, num_classes): the voxels of each true and each predicted label.

    Voxels whose mask has no class are not counted.

    Raises ValueError for a predicted label of no class.
    """
    counted = mask < num_classes
    true, predicted = mask[counted].astype(np.int64), labels[counted]
    if predicted.size and predicted.max() >= num_classes:
        raise ValueError(f"labels must be less than {num_classes}, got {predicted.max()}")
    pairs = np.bincount(true * num_classes + predicted, minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes)


def region_counts(pairs: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return (..., regions, 3) true positives, false positives and false negatives.

    Args:
        pairs: Confusion matrices (..., classes, classes).
        table: As `region_table` returns it.
    """
    members = table.astype(np.float64)
    both = ((pairs @ members) * members).sum(axis=-2)
    predicted, true = pairs.sum(axis=-2) @ members, pairs.sum(axis=-1) @ members
    return np.stack([both, predicted - both, true - both], axis=-1)


def accuracies(pairs: np.ndarray) -> tuple[float, float]:
    """Return the pixel accuracy, and the mean over classes of the share that was found.

    The background counts if a mask has it. NaN without voxels. As in Long et al. 2015
    (arxiv.org/abs/1411.4038), section 5.
    """
    right, totals = np.diagonal(pairs), pairs.sum(axis=1)
    present = totals > 0
    if not present.any():
        return math.nan, math.nan
    return float(right.sum() / totals.sum()), float((right[present] / totals[present]).mean())


def confusion_csv(pairs: np.ndarray, label_names: Iterable[str]) -> str:
    """Return a confusion matrix as a CSV file; `label_names` are those of the labels from 1."""
    names = (BACKGROUND, *label_names)
    lines = [csv_line(["true", *names])]
    for name, counts in zip(names, pairs.tolist(), strict=True):
        lines.append(csv_line([name, *map(int, counts)]))
    return "".join(lines)
