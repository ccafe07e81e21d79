"""The part of a sample that a tile stands for, and losses that add up over such parts."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfunet.learning.losses import per_sample

# Of the sample on which a loss is tried.
TRIED_ROWS = 8
TRIED_CUT = 3
TOLERANCE = 1e-4


def own_part(batch: Mapping[str, tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    """Return a tile's own part of a tensor (1, *window, ...); without tiles, all of it."""
    if "own_start" not in batch:
        return tensor
    start, stop = batch["own_start"][0], batch["own_stop"][0]
    spatial = range(1, 1 + start.shape[0])
    return tensor[
        tuple(
            slice(start[axis - 1], stop[axis - 1]) if axis in spatial else slice(None)
            for axis in range(tensor.shape.rank)
        )
    ]


def own_pixels(batch: Mapping[str, tf.Tensor], dtype: str) -> tf.Tensor:
    """Return (1,): how many pixels of its sample a tile stands for."""
    return tf.cast(tf.reduce_prod(batch["own_stop"] - batch["own_start"], axis=-1), dtype)


def check_adds_up(loss: keras.Loss, *, rank: int, num_classes: int, num_logits: int) -> None:
    """Raise ValueError for a loss of which the parts of a sample do not give the whole.

    It is tried on a small random sample, whole and in two parts.
    """
    rng = np.random.default_rng(0)
    shape = (1, *[TRIED_ROWS] * rank)
    mask = tf.constant(rng.integers(0, num_classes, shape))
    logits = tf.constant(3 * rng.normal(size=(*shape, num_logits)), tf.float32)
    shares = (TRIED_CUT / TRIED_ROWS, 1 - TRIED_CUT / TRIED_ROWS)
    cuts = (slice(TRIED_CUT), slice(TRIED_CUT, None))
    try:
        whole = per_sample(loss, mask, logits)
        parts = [
            share * per_sample(loss, mask[:, cut], logits[:, cut])
            for share, cut in zip(shares, cuts, strict=True)
        ]
    except Exception as error:
        raise ValueError(
            f"The loss {loss.name!r} cannot be computed for masks with {num_classes} labels and "
            f"{num_logits} logits a pixel: {error}"
        ) from error
    if not np.allclose(sum(parts), whole, rtol=TOLERANCE, atol=TOLERANCE):
        raise ValueError(
            f"The loss {loss.name!r} of a sample is not the mean over its pixels, so that it "
            "cannot be computed tile by tile. With tiling set loss = 'crossentropy', 'focal' or "
            "a Keras loss that has a value for each pixel, or use split, which is exact for every "
            "loss."
        )
