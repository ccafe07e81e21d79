"""The part of a sample that a tile stands for, and losses that add up over such parts."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet.geometry.grid import Grid
from tfunet.geometry.pointwise import as_samples, tried_samples
from tfunet.learning.losses import per_sample

Batch = Mapping[str, tf.Tensor]

# Rows along each axis of the samples on which a loss is tried.
TRIED_ROWS = 9
TOLERANCE = 1e-4


def own_part(batch: Batch, tensor: tf.Tensor) -> tf.Tensor:
    """Return a tile's own part of a tensor (1, *window, ...); without tiles, all of it.

    A device that shares a tile with others may have nothing of its own part. It gets some other
    pixels then, of which a loss is a number, and `own_pixels` is 0.
    """
    if "own_start" not in batch:
        return tensor
    rank = batch["own_start"].shape[1]
    start = tf.minimum(batch["own_start"][0], [rows - 1 for rows in tensor.shape[1 : 1 + rank]])
    stop = tf.maximum(batch["own_stop"][0], start + 1)
    own = (slice(start[axis], stop[axis]) for axis in range(rank))
    return tensor[(slice(None), *own)]


def own_pixels(batch: Batch, dtype: Any) -> tf.Tensor:
    """Return (1,): how many pixels of its sample a tile stands for."""
    return tf.cast(tf.reduce_prod(batch["own_stop"] - batch["own_start"], axis=-1), dtype)


def as_pixels(batch: Batch, tensor: tf.Tensor) -> tf.Tensor:
    """Return (pixels, ...): a tile's own part of a tensor (1, *window, ...), each as a sample."""
    own, rank = own_part(batch, tensor), batch["own_start"].shape[1]
    flat = tf.reshape(own, [-1, *tensor.shape[1 + rank :]])
    return flat[: own_pixels(batch, tf.int32)[0]]


def loss_of_tile(
    loss: Callable[[Any, Any], tf.Tensor],
    batch: Batch,
    output: tf.Tensor,
    cut: Grid,
    whole: Callable[[tf.Tensor], tf.Tensor] = lambda value: value,
) -> tf.Tensor:
    """Return the loss of a tile, of which the mean over all tiles is the mean over all pixels.

    Args:
        loss: A mean over pixels.
        batch: A tile with its mask, or a device's part of it.
        cut: The tiles of a sample.
        whole: Returns the sum over all devices that share the tile.
    """
    value = loss(own_part(batch, batch["mask"]), own_part(batch, output))
    share = cut.num_tiles / math.prod(cut.image)
    return whole(value * own_pixels(batch, value.dtype)[0] * share)


def check_adds_up(loss: keras.Loss, *, rank: int, num_classes: int, num_logits: int) -> None:
    """Raise ValueError for a loss of which the parts of a sample do not give the whole.

    It is tried on small random samples, whole and pixel by pixel.
    """
    rows = (TRIED_ROWS,) * rank
    try:
        adds_up = all(
            np.allclose(
                np.mean(np.reshape(_values(loss, *each), (len(mask), -1)), axis=1),
                _values(loss, mask, logits),
                rtol=TOLERANCE,
                atol=TOLERANCE,
            )
            for mask, logits in tried_samples(rows, num_classes, (num_logits,))
            for each in [[as_samples(array, rank) for array in (mask, logits)]]
        )
    except Exception as error:
        raise ValueError(
            f"The loss {loss.name!r} cannot be computed for masks with {num_classes} labels and "
            f"{num_logits} logits a pixel: {error}"
        ) from error
    if not adds_up:
        raise ValueError(
            f"The loss {loss.name!r} of a sample is not the mean over its pixels, so that it "
            "cannot be computed tile by tile. With tiling set loss = 'crossentropy', 'focal' or "
            "a Keras loss that has a value for each pixel, or use split, which is exact for every "
            "loss."
        )


def _values(loss: keras.Loss, mask: np.ndarray, logits: np.ndarray) -> np.ndarray:
    values = per_sample(loss, tf.constant(mask), tf.constant(logits, tf.float32))
    return keras.ops.convert_to_numpy(values)
