"""Counts voxels of predictions against masks, window by window."""

import tensorflow as tf


def predicted_labels(logits: tf.Tensor) -> tf.Tensor:
    """Return int32 labels (batch, *spatial): the largest logit, or a positive single one."""
    if logits.shape[-1] == 1:
        return tf.cast(logits[..., 0] > 0, tf.int32)
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def count(
    labels: tf.Tensor,
    mask: tf.Tensor,
    num_classes: int,
    core_start: tf.Tensor,
    core_stop: tf.Tensor,
    valid: tf.Tensor,
) -> tf.Tensor:
    """Return float64 (batch, num_classes**2 + 1): voxels of each true and each predicted label.

    The true label is that of the row of a matrix, which is flat here. Last are voxels whose mask
    has no class. Only voxels in core_start <= index < core_stop (batch, rank) of windows with
    valid > 0 count: each voxel of a case lies in the core of exactly one window.
    """
    spatial = mask.shape[1:]
    core = tf.reshape(valid > 0, [-1] + [1] * len(spatial))
    for axis, size in enumerate(spatial):
        index = tf.range(size)[None]
        inside = (index >= core_start[:, axis, None]) & (index < core_stop[:, axis, None])
        shape = [1] * len(spatial)
        shape[axis] = size
        core &= tf.reshape(inside, [-1, *shape])
    places, windows = num_classes**2 + 1, mask.shape[0]
    true = tf.cast(mask, tf.int32)
    place = tf.where(true < num_classes, true * num_classes + labels, places - 1)
    place += places * tf.reshape(tf.range(windows), [-1] + [1] * len(spatial))
    # Not bincount, which is not deterministic on a GPU; what has a negative place is left out.
    place = tf.where(core, place, -1)
    sums = tf.math.unsorted_segment_sum(tf.ones_like(place), place, windows * places)
    return tf.cast(tf.reshape(sums, [windows, places]), tf.float64)
