import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.learning import LOSSES, losses
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.region_loss import RegionLoss

ALL = list(LOSSES)
WEIGHTED = [name for name in ALL if "crossentropy" in name or name == "focal"]


def batch(num_classes, channels, *, seed=0, size=(4, 5)):
    random = np.random.default_rng(seed)
    mask = random.integers(0, num_classes, (3, *size))
    return mask, random.normal(size=(3, *size, channels)).astype("float32")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("num_classes", "channels"), [(4, 4), (2, 1), (2, 2)])
def test_loss_of_a_batch_is_the_mean_of_its_samples(name, num_classes, channels):
    # What makes the loss of a batch independent of how it is divided among replicas.
    mask, logits = batch(num_classes, channels)
    loss = losses.make(name, {})
    alone = [float(loss(mask[i : i + 1], logits[i : i + 1])) for i in range(3)]
    assert float(loss(mask, logits)) == pytest.approx(np.mean(alone), abs=1e-6)
    weighted = float(loss(mask, logits, sample_weight=np.array([1.0, 0.0, 0.0])))
    assert 3 * weighted == pytest.approx(alone[0], abs=1e-6)


@pytest.mark.parametrize("name", [*ALL, "SparseCategoricalCrossentropy"])
def test_loss_per_sample_averages_to_the_loss(name):
    mask, logits = batch(3, 3)
    options = {"from_logits": True} if name[0] == "S" else {}
    loss = losses.make(name, options)
    each = losses.per_sample(loss, mask, logits)
    assert each.shape == (3,)
    assert float(np.mean(each)) == pytest.approx(float(loss(mask, logits)), abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_one_channel_of_logits_equals_two_with_a_zero(name):
    mask, logits = batch(2, 1)
    both = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    loss = losses.make(name, {})
    assert float(loss(mask, logits)) == pytest.approx(float(loss(mask, both)), abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_right_prediction_costs_nothing_and_wrong_one_much(name):
    mask, _ = batch(3, 3)
    right = np.where(np.arange(3) == mask[..., None], 20.0, -20.0).astype("float32")
    loss = losses.make(name, {})
    assert float(loss(mask, right)) < 1e-4
    assert float(loss(mask, -right)) > 0.5


def test_dice_is_the_formula_per_sample_and_class():
    mask, logits = batch(3, 3)
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = []
    for sample in range(3):
        for label in (1, 2):
            truth = mask[sample] == label
            p = probability[sample, ..., label]
            wanted.append(1 - (2 * (p * truth).sum() + 2) / (p.sum() + truth.sum() + 2))
    assert float(losses.make("dice", {})(mask, logits)) == pytest.approx(np.mean(wanted), abs=1e-6)


def test_focal_without_gamma_is_the_crossentropy():
    mask, logits = batch(3, 3)
    plain = float(losses.make("crossentropy", {})(mask, logits))
    assert float(losses.make("focal", {"gamma": 0.0})(mask, logits)) == pytest.approx(plain)
    keras_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert plain == pytest.approx(float(keras_loss(mask, logits)), abs=1e-6)


@pytest.mark.parametrize("name", WEIGHTED)
def test_class_weights_multiply_the_crossentropy_of_their_voxels(name):
    mask, logits = batch(3, 3)
    weights = [0.5, 2.0, 0.0]
    shifted = logits - logits.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    each = -np.take_along_axis(logs, mask[..., None], -1)[..., 0]
    if name == "focal":
        each = (1 - np.exp(-each)) ** 2 * each
    each = np.sort((each * np.array(weights)[mask]).reshape(3, -1))
    wanted = (each[:, -2:] if "topk" in name else each).mean()
    if name.startswith("dice_"):
        wanted += float(losses.make("dice", {})(mask, logits))
    loss = losses.make(name, {"class_weights": weights})
    assert float(loss(mask, logits)) == pytest.approx(wanted, abs=1e-6)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert float(again(mask, logits)) == pytest.approx(wanted, abs=1e-6)
    equal = losses.make(name, {"class_weights": [1.0, 1.0, 1.0]})
    plain = float(losses.make(name, {})(mask, logits))
    assert float(equal(mask, logits)) == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("crossentropy", {"class_weights": [1.0, 2.0]}, "has 2 numbers, and there are 3 classes"),
        ("focal", {"class_weights": [1.0, -2.0, 0.0]}, "must not be negative"),
        ("dice_crossentropy", {"class_weights": [0.0, 0.0, 0.0]}, "nor all 0"),
        ("topk_crossentropy", {"share": 0.0}, "share must be above 0"),
        ("cldice", {"iterations": 0}, "iterations must be at least 1"),
        ("cldice", {"share": 2.0}, "share must lie between 0 and 1"),
    ],
)
def test_options_that_cannot_be_are_refused(name, options, message):
    mask, logits = batch(3, 3)
    with pytest.raises(ValueError, match=message):
        losses.make(name, options)(mask, logits)


def test_all_voxels_are_the_plain_crossentropy():
    mask, logits = batch(3, 3)
    plain = float(losses.make("crossentropy", {})(mask, logits))
    whole = losses.make("topk_crossentropy", {"share": 1.0})
    assert float(whole(mask, logits)) == pytest.approx(plain, abs=1e-6)


def skeleton_by_hand(region, iterations):
    """Algorithm 1 of Shit et al. 2021."""
    from scipy import ndimage

    cross = ndimage.generate_binary_structure(region.ndim, 1)
    least = {"footprint": cross, "mode": "constant", "cval": np.inf}
    most = {"size": 3, "mode": "constant", "cval": -np.inf}

    def ridge(values):
        opened = ndimage.maximum_filter(ndimage.minimum_filter(values, **least), **most)
        return np.maximum(values - opened, 0)

    skeleton = ridge(region)
    for _ in range(iterations):
        region = ndimage.minimum_filter(region, **least)
        skeleton = skeleton + (1 - skeleton) * ridge(region)
    return skeleton


@pytest.mark.parametrize("size", [(9, 12), (6, 7, 8)])
def test_cldice_is_its_algorithm(size):
    mask, logits = batch(3, 3, size=size)
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    lines = []
    for sample in range(3):
        for label in (1, 2):
            truth, p = (mask[sample] == label).astype(float), probability[sample, ..., label]
            of_p, of_truth = skeleton_by_hand(p, 2), skeleton_by_hand(truth, 2)
            precision = ((of_p * truth).sum() + 1) / (of_p.sum() + 1)
            recall = ((of_truth * p).sum() + 1) / (of_truth.sum() + 1)
            lines.append(1 - 2 * precision * recall / (precision + recall))
    dice = float(losses.make("dice", {})(mask, logits))
    loss = losses.make("cldice", {"iterations": 2, "share": 0.25})
    wanted = 0.75 * dice + 0.25 * np.mean(lines)
    assert float(loss(mask, logits)) == pytest.approx(wanted, abs=1e-5)


def test_a_gap_in_a_line_costs_more_than_a_voxel_beside_it():
    mask = np.zeros((1, 15, 15), int)
    mask[0, 6:9, 2:13] = 1
    gap, bump = (np.where(mask[..., None] == np.arange(2), 12.0, -12.0) for _ in range(2))
    gap[0, 6:9, 7] *= -1
    bump[0, 5, 6:9] *= -1
    loss = losses.make("cldice", {"share": 1.0})
    assert float(loss(mask, gap)) > 2 * float(loss(mask, bump))


def test_class_that_is_absent_from_sample_and_prediction_costs_nothing():
    mask = np.zeros((1, 4, 4), int)
    logits = np.full((1, 4, 4, 2), [30.0, -30.0], "float32")
    assert float(losses.make("dice", {})(mask, logits)) == pytest.approx(0, abs=1e-5)


def test_losses_survive_saving():
    for name in ALL:
        loss = losses.make(name, {})
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
        assert again.get_config() == loss.get_config()


class Squares(keras.losses.Loss):
    """Gives values of a type of its own, for each sample or for each pixel."""

    def __init__(self, gives="float32", each="pixel", dtype=None):
        super().__init__(dtype=dtype)
        self.gives, self.each = gives, each

    def call(self, y_true, y_pred):
        mask = keras.ops.reshape(y_true, y_pred.shape[:-1])
        values = keras.ops.square(y_pred[..., 0] - keras.ops.cast(mask, y_pred.dtype))
        values = keras.ops.cast(values, self.gives)
        return values if self.each == "pixel" else keras.ops.mean(values, axis=(1, 2))


@pytest.mark.parametrize("each", ["sample", "pixel"])
@pytest.mark.parametrize("with_more", [False, True])
@pytest.mark.parametrize(
    ("gives", "dtype"),
    [("float16", None), ("bfloat16", None), ("float64", None), ("float16", "float64")],
)
def test_values_of_any_type_are_those_of_the_loss(gives, dtype, with_more, each):
    """As Keras casts what `call` returns when a loss is called; also with what is put around it."""

    def made(**options):
        loss = losses.make(f"{__file__}:Squares", {"each": each, **options})
        if not with_more:
            return loss
        of_regions = RegionLoss(loss, [[1]], 2)
        ignore_in_loss(of_regions, 255, of_regions=True)
        return of_regions

    mask, logits = batch(2, 1)
    loss, expected = made(gives=gives, dtype=dtype), made()
    with tf.GradientTape() as tape:
        given = tf.constant(logits)
        tape.watch(given)
        found = losses.per_sample(loss, mask, given)
    assert loss.call(mask, given).dtype == (dtype or "float32")
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, losses.per_sample(expected, mask, logits), rtol=0.01)
    assert float(loss(mask, logits)) == pytest.approx(float(np.mean(found)), rel=0.01)
    slope = 2 * (logits - mask[..., None]) / mask[0].size
    np.testing.assert_allclose(tape.gradient(found, given), slope, atol=0.01)


def function_of_masks(y_true, y_pred, weight=1.0):
    return weight * keras.ops.mean(y_pred, axis=(1, 2, 3))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dyce", {}, "Did you mean 'dice'"),
        ("dice", {"smoth": 1}, "Did you mean 'smooth'"),
        ("tversky", {"alpha": -1.0}, "must not be negative"),
        ("focal", {"gamma": -1.0}, "must not be negative"),
        (f"{__file__}:function_of_masks", {}, "is a function of masks and logits. Name a class"),
    ],
)
def test_bad_loss_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        losses.make(name, options)
