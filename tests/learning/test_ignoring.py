"""Voxels without data: no loss, no gradient and no score depends on them."""

import numpy as np
import pytest
import tensorflow as tf

from tfunet.learning import LOSSES, losses
from tfunet.learning.counting import count, predicted_labels, region_table
from tfunet.learning.ignoring import background_where_ignored, ignore_in_loss

IGNORED = 255
RANDOM = np.random.default_rng(0)
MASK = RANDOM.integers(0, 2, (2, 6, 5)).astype(np.uint8)
MASK[:, :2, 1:4] = IGNORED
HOLE = MASK == IGNORED


def batch(channels, elsewhere):
    logits = np.random.default_rng(1).normal(size=(*MASK.shape, channels)).astype(np.float32)
    return np.where(HOLE[..., None], np.float32(elsewhere), logits)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in LOSSES),
        ("focal", {"gamma": 0.5}),
        ("SparseCategoricalCrossentropy", {"from_logits": True}),
    ],
)
def test_neither_loss_nor_gradient_depends_on_them(name, options, channels):
    if name[0] == "S" and channels == 1:
        name = "BinaryCrossentropy"
    loss = losses.make(name, options)
    ignore_in_loss(loss, IGNORED)
    mask = MASK[..., None] if name[0] == "B" else MASK
    found = []
    for elsewhere in (-3.0, 40.0):
        logits = tf.constant(batch(channels, elsewhere))
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = tf.reduce_sum(losses.per_sample(loss, mask, logits))
        gradient = tape.gradient(value, logits).numpy()
        assert not gradient[HOLE].any()
        assert np.isfinite(gradient).all()
        assert gradient[~HOLE].any()
        found.append((float(value), gradient[~HOLE]))
    assert found[0][0] == found[1][0] > 0
    np.testing.assert_array_equal(found[0][1], found[1][1])
    # A right prediction of the others costs what it would without the hole.
    plain = losses.make(name, options)
    if name in ("crossentropy", "focal"):
        each = losses.per_sample(plain, np.where(HOLE, 0, MASK), batch(channels, 0.0))
        without = np.where(np.arange(channels) == 0, 1e4, 0.0) if channels > 1 else [-1e4]
        sure = np.where(HOLE[..., None], np.float32(without), batch(channels, 0.0))
        assert float(sum(losses.per_sample(plain, np.where(HOLE, 0, MASK), sure))) == (
            pytest.approx(found[0][0], rel=1e-5)
        )
        assert float(sum(each)) > found[0][0]


def test_no_score_counts_them():
    table = region_table(2, {"cell": (1,)})
    start, stop, valid = tf.zeros((2, 2), tf.int32), tf.constant([[6, 5]] * 2), tf.ones(2)
    for elsewhere in (-1.0, 1.0):
        labels = predicted_labels(tf.constant(batch(1, elsewhere)))
        mask, labels = background_where_ignored(tf.constant(MASK), labels, IGNORED)
        counts = count(labels, mask, table, start, stop, valid).numpy().sum(0)[0]
        truth, predicted = MASK[~HOLE] == 1, batch(1, 0.0)[~HOLE][:, 0] > 0
        expected = [truth & predicted, ~truth & predicted, truth & ~predicted]
        assert counts.tolist() == [*(int(part.sum()) for part in expected), MASK.size]
