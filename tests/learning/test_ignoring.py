"""Voxels without data: no loss, no gradient and no score depends on them."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import ndimage

from tfunet.config.case_metrics import PLAIN, case_metrics
from tfunet.learning import LOSSES, losses
from tfunet.learning.case_metrics import measure
from tfunet.learning.ignoring import background_where_ignored, ignore_in_loss
from tfunet.learning.outputs import ClassOutputs
from tfunet.learning.scoring import RegionScoring

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
    outputs = ClassOutputs(num_classes=2)
    scoring = RegionScoring(outputs=outputs, num_classes=2, regions={"cell": (1,)}, ignored=IGNORED)
    fed = {
        "mask": tf.constant(MASK),
        "core_start": tf.zeros((2, 2), tf.int32),
        "core_stop": tf.constant([[6, 5]] * 2),
        "valid": tf.ones(2),
    }
    truth, predicted = MASK[~HOLE] == 1, batch(1, 0.0)[~HOLE][:, 0] > 0
    expected = [truth & predicted, ~truth & predicted, truth & ~predicted]
    for elsewhere in (-1.0, 1.0):
        output = tf.constant(batch(1, elsewhere))
        sums = scoring.sums(output, fed).numpy()
        counts = scoring.case_sums(sums).sum(0)[0]
        assert counts.tolist() == [*(int(part.sum()) for part in expected), MASK.size]
        assert scoring.confusion(sums).sum() == (~HOLE).sum()
        assert not scoring.labels(output, fed).numpy()[HOLE].any()


def blobs(shape):
    """Return a prediction and a mask of random blobs, and where the mask is ignored."""
    rng = np.random.default_rng(len(shape))
    truth = ndimage.gaussian_filter(rng.normal(size=shape), 1.7) > 0.02
    predicted = ndimage.gaussian_filter(truth + rng.normal(0, 0.4, shape), 1.2) > 0.5
    hole = np.zeros(shape, bool)
    hole[..., : shape[-1] // 3] = hole[-4:] = True
    return predicted, truth, hole


def measured_without(names, predicted, truth, hole, spacing):
    mask = np.where(hole, np.uint8(IGNORED), truth)
    pair = background_where_ignored(tf.constant(mask), tf.constant(predicted, tf.int32), IGNORED)
    truth, predicted = (labels.numpy() == 1 for labels in pair)
    return measure(case_metrics(names), predicted, truth, spacing)


@pytest.mark.parametrize(
    ("shape", "spacing", "expected"),
    [
        # MedPy 0.5.2 on masks that are empty in the hole, as those of nnU-Net and MONAI.
        ((40, 50), (1.0, 1.0), [7.0, 0.3861544091243095]),
        ((12, 20, 22), (2.5, 1.0, 0.8), [2.5, 0.15374824724624028]),
    ],
)
def test_surfaces_are_those_of_medpy_without_them(shape, spacing, expected):
    found = measured_without(["hd", "assd"], *blobs(shape), spacing)
    assert found == pytest.approx(expected, rel=1e-12)
    predicted, truth, _ = blobs(shape)
    assert measure(case_metrics(["assd"]), predicted, truth, spacing) != found[1:]


@pytest.mark.parametrize("shape", [(40, 50), (12, 20, 22)])
def test_no_metric_of_cases_depends_on_what_is_predicted_there(shape):
    names = (*PLAIN, "nsd@1px")
    predicted, truth, hole = blobs(shape)
    expected = measured_without(names, predicted, truth, hole, None)
    assert np.isfinite(expected).all()
    for elsewhere in (False, True):
        changed = np.where(hole, elsewhere, predicted)
        assert measured_without(names, changed, truth, hole, None) == expected
    # A case that is ignored altogether counts as one without the region that none is predicted in.
    assert measured_without(names, predicted, truth, np.ones_like(hole), None) == [
        *(1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1)
    ]


def test_an_object_that_they_cut_is_two_in_both_masks():
    bar = np.zeros((5, 12), bool)
    bar[2] = True
    cut = np.zeros_like(bar)
    cut[:, 5:7] = True
    names = ["instance_f1", "lesion_f1", "arand", "vi_merge", "hd"]
    assert measured_without(names, bar, bar, cut, None) == [1, 1, 0, 0, 0]
    # One of two is missed.
    half = bar & (np.arange(12) < 5)
    assert measured_without(["instance_recall"], half, bar, cut, None) == [0.5]
