"""Counts voxels of predictions against masks, window by window."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf


def region_table(num_classes: int, regions: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Return (num_classes, regions) bool: whether a label belongs to a region."""
    table = np.zeros((num_classes, len(regions)), bool)
    for column, labels in enumerate(regions.values()):
        table[list(labels), column] = True
    return table


def predicted_labels(logits: tf.Tensor) -> tf.Tensor:
    """Return int32 labels (batch, *spatial): the largest logit, or a positive single one."""
    if logits.shape[-1] == 1:
        return tf.cast(logits[..., 0] > 0, tf.int32)
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def count(
    labels: tf.Tensor,
    mask: tf.Tensor,
    table: np.ndarray,
    core_start: tf.Tensor,
    core_stop: tf.Tensor,
    valid: tf.Tensor,
) -> tf.Tensor:
    """Return float64 (batch, regions, 4): true positive, false positive, false negative, voxels.

    Only voxels in core_start <= index < core_stop (batch, rank) of windows with valid > 0 count:
    each voxel of a case lies in the core of exactly one window.
    """
    spatial = mask.shape[1:]
    core = tf.reshape(valid > 0, [-1] + [1] * len(spatial))
    for axis, size in enumerate(spatial):
        index = tf.range(size)[None]
        inside = (index >= core_start[:, axis, None]) & (index < core_stop[:, axis, None])
        shape = [1] * len(spatial)
        shape[axis] = size
        core &= tf.reshape(inside, [-1, *shape])
    core = core[..., None]
    predicted = tf.gather(tf.constant(table), labels) & core
    truth = tf.gather(tf.constant(table), tf.cast(mask, tf.int32)) & core
    every = tf.broadcast_to(core, tf.shape(truth))
    parts = [predicted & truth, predicted & ~truth, ~predicted & truth, every]
    axes = list(range(1, 1 + len(spatial)))
    sums = [tf.reduce_sum(tf.cast(part, tf.int32), axes) for part in parts]
    return tf.cast(tf.stack(sums, axis=-1), tf.float64)
