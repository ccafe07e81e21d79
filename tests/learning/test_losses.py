import keras
import numpy as np
import pytest

from tfunet.learning import losses

ALL = ["crossentropy", "dice", "dice_crossentropy", "tversky", "focal"]


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


def test_class_that_is_absent_from_sample_and_prediction_costs_nothing():
    mask = np.zeros((1, 4, 4), int)
    logits = np.full((1, 4, 4, 2), [30.0, -30.0], "float32")
    assert float(losses.make("dice", {})(mask, logits)) == pytest.approx(0, abs=1e-5)


def test_losses_survive_saving():
    for name in ALL:
        loss = losses.make(name, {})
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
        assert again.get_config() == loss.get_config()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dyce", {}, "Did you mean 'dice'"),
        ("dice", {"smoth": 1}, "Did you mean 'smooth'"),
        ("tversky", {"alpha": -1.0}, "must not be negative"),
        ("focal", {"gamma": -1.0}, "must not be negative"),
    ],
)
def test_bad_loss_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        losses.make(name, options)
