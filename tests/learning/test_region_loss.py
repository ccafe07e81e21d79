"""The loss of regions is the mean over regions of the loss of one logit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.learning import LOSSES, losses
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.own_part import check_adds_up
from tfunet.learning.region_loss import RegionLoss
from tfunet.models import unet

REGIONS = ((1, 2, 3), (2, 3), (3,))
RANDOM = np.random.default_rng(0)
MASK = RANDOM.integers(0, 4, (3, 5, 4, 6)).astype(np.uint8)
LOGITS = RANDOM.normal(size=(*MASK.shape, 3)).astype(np.float32)


def of_regions(loss="dice_crossentropy", regions=REGIONS, **options):
    each = losses.make(loss, options) if isinstance(loss, str) else loss
    return RegionLoss(each, regions, num_classes=4)


class OfVoxels(keras.Loss):
    """A loss of the user's own with a value for each voxel."""

    def call(self, y_true, y_pred):
        return tf.square(tf.sigmoid(y_pred[..., 0]) - y_true)


def formula(mask, logits):
    """Dice and binary cross-entropy of regions, as nnU-Net adds them up, and their gradient."""
    inside = np.stack([np.isin(mask, labels) for labels in REGIONS], -1).astype(np.float64)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    axes = (1, 2, 3)
    voxels = np.prod(mask.shape[1:])
    crossentropy = -(inside * np.log(p) + (1 - inside) * np.log(1 - p)).mean(axes)
    top = 2 * (p * inside).sum(axes) + 2
    bottom = p.sum(axes) + inside.sum(axes) + 2
    value = (1 - top / bottom + crossentropy).mean(-1)

    def wide(numbers):
        return numbers[:, None, None, None, :]

    of_dice = -(2 * inside * wide(bottom) - wide(top)) / wide(bottom) ** 2 * p * (1 - p)
    of_crossentropy = (p - inside) / voxels
    return value, (of_dice + of_crossentropy) / len(REGIONS)


def value_and_gradient(loss, mask, logits):
    given = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(given)
        value = losses.per_sample(loss, mask, given)
    return value.numpy(), tape.gradient(value, given).numpy()


def test_it_is_dice_and_binary_crossentropy():
    value, gradient = value_and_gradient(of_regions(), MASK, LOGITS)
    wanted, slope = formula(MASK, LOGITS)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=1e-8)


@pytest.mark.parametrize(
    "loss",
    [
        *LOSSES,
        keras.losses.BinaryCrossentropy(from_logits=True),
        OfVoxels(name="own"),
    ],
    ids=[*LOSSES, "of Keras", "of the user"],
)
def test_every_loss_is_the_mean_of_its_values_for_the_regions(loss):
    each = losses.make(loss, {}) if isinstance(loss, str) else loss
    masks = [np.isin(MASK, labels).astype(np.uint8) for labels in REGIONS]
    alone = [
        losses.per_sample(each, mask, LOGITS[..., [channel]]) for channel, mask in enumerate(masks)
    ]
    together = of_regions(loss)
    np.testing.assert_allclose(
        losses.per_sample(together, MASK, LOGITS), np.mean(alone, 0), rtol=1e-6
    )
    # As Keras calls it; in a graph whose batch is not known before.
    graph = tf.function(
        together,
        input_signature=[
            tf.TensorSpec((None, *MASK.shape[1:]), tf.uint8),
            tf.TensorSpec((None, *LOGITS.shape[1:])),
        ],
    )
    assert float(graph(MASK, LOGITS)) == pytest.approx(np.mean(alone), rel=1e-6)


def test_ignored_voxels_cost_nothing_in_any_region():
    mask = np.where(RANDOM.random(MASK.shape) < 0.3, 255, MASK).astype(np.uint8)
    hole = mask == 255
    found = []
    for elsewhere in (-30.0, 50.0):
        loss = of_regions()
        ignore_in_loss(loss, 255, of_regions=True)
        logits = np.where(hole[..., None], np.float32(elsewhere), LOGITS)
        found.append(value_and_gradient(loss, mask, logits))
        assert not found[-1][1][hole].any()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    # As if the network were certain that they are outside of every region.
    sure = np.where(hole[..., None], np.float32(-1e4), LOGITS)
    np.testing.assert_array_equal(
        found[0][0], losses.per_sample(of_regions(), np.where(hole, 0, MASK), sure)
    )


def test_it_is_saved_with_the_model(tmp_path):
    image = keras.Input((4, 4, 1))
    model = keras.Model(image, keras.layers.Conv2D(3, 1)(image))
    model.compile(loss=of_regions("tversky", alpha=0.2))
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").loss
    assert (loaded.each.alpha, loaded.regions, loaded.num_classes) == (0.2, REGIONS, 4)
    assert float(loaded(MASK, LOGITS)) == float(model.loss(MASK, LOGITS))


def test_a_tile_may_have_any_size():
    loss = of_regions("crossentropy")
    graph = tf.function(
        lambda mask, logits: losses.per_sample(loss, mask, logits),
        input_signature=[
            tf.TensorSpec((1, None, None, None), tf.uint8),
            tf.TensorSpec((1, None, None, None, 3)),
        ],
    )
    alone = losses.per_sample(loss, MASK[:1], LOGITS[:1])
    np.testing.assert_allclose(graph(MASK[:1], LOGITS[:1]), alone, rtol=1e-6)


def test_deep_supervision_compares_regions_at_every_resolution():
    options = {"filters": 1, "levels": 3, "normalization": "none", "deep_supervision": True}
    model = unet.build(image_shape=(8, 8, 1), num_classes=3, **options)
    model.compile(loss=of_regions())
    mask = tf.constant(RANDOM.integers(0, 4, (2, 8, 8)))
    sizes = [(8, 8), (4, 4)]
    logits = [tf.constant(RANDOM.normal(size=(2, *size, 3)), tf.float32) for size in sizes]
    masks = [mask, mask[:, 1::2, 1::2]]
    each = [of_regions()(*pair) for pair in zip(masks, logits, strict=True)]
    loss = model.compute_loss(None, mask, logits)
    assert float(loss) == pytest.approx(float(each[0] * 2 + each[1]) / 3, rel=1e-6)


def test_tiles_take_losses_that_add_up():
    check_adds_up(of_regions("focal"), rank=2, num_classes=4, num_logits=3)
    with pytest.raises(ValueError, match="is not the mean over its pixels"):
        check_adds_up(of_regions("dice"), rank=2, num_classes=4, num_logits=3)
