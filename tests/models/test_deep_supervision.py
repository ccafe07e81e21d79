"""Deep supervision: the loss of nnU-Net, and nothing of it where a network is used."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfunet.arguments import from_dict
from tfunet.learning import losses
from tfunet.models import presets, trained_options, unet
from tfunet.models.deep_supervision import level_weights

OPTIONS = {"filters": 2, "levels": 4, "convolutions": 1, "downsampling": "strided"}


@pytest.fixture
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


def nearest(mask, factor):
    """Resample each mask as PyTorch's nearest-exact: voxel i is that at (i + 1/2) * factor."""
    for axis in range(1, mask.ndim):
        places = [math.floor((i + 0.5) * factor) for i in range(mask.shape[axis] // factor)]
        mask = np.take(mask, places, axis)
    return mask


def crossentropy(mask, logits):
    """Return the mean over samples and voxels."""
    flat = logits.reshape(-1, logits.shape[-1])
    chosen = flat[np.arange(len(flat)), mask.ravel()]
    return float((np.log(np.exp(flat).sum(-1)) - chosen).mean())


def soft_dice(mask, logits):
    """Return the mean over samples of 1 - Dice of the classes above 0, with one voxel added."""
    power = np.exp(logits)
    shares = power / power.sum(-1, keepdims=True)
    of_samples = []
    for labels, share in zip(mask, shares, strict=True):
        dice = [
            (2 * share[labels == label, label].sum() + 2)
            / (share[..., label].sum() + (labels == label).sum() + 2)
            for label in range(1, logits.shape[-1])
        ]
        of_samples.append(1 - np.mean(dice))
    return float(np.mean(of_samples))


@pytest.mark.parametrize("shape", [(32, 48, 1), (16, 16, 32, 1)], ids=["2D", "3D"])
def test_the_loss_is_the_weighted_mean_of_all_resolutions(shape, float64):
    keras.utils.set_random_seed(3)
    model = unet.build(image_shape=shape, num_classes=3, **OPTIONS, deep_supervision=True)
    generator = np.random.default_rng(1)
    image = generator.normal(size=(2, *shape))
    mask = generator.integers(0, 3, (2, *shape[:-1]))
    logits = [level.numpy() for level in model(image, training=True)]
    # Four levels on the way up, of which nnU-Net leaves out the lowest.
    assert [level.shape[1:-1] for level in logits] == [
        tuple(size // factor for size in shape[:-1]) for factor in (1, 2, 4)
    ]
    masks = [mask, nearest(mask, 2), nearest(mask, 4)]
    weights = [4 / 7, 2 / 7, 1 / 7]
    pairs = list(zip(masks, logits, strict=True))

    def of(loss):
        model.compile(loss=loss)
        return float(model.compute_loss(image, tf.constant(mask), list(map(tf.constant, logits))))

    of_level = [crossentropy(*pair) for pair in pairs]
    expected = sum(weight * value for weight, value in zip(weights, of_level, strict=True))
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert of(sparse) == pytest.approx(expected, rel=1e-13)
    both = [value + soft_dice(*pair) for value, pair in zip(of_level, pairs, strict=True)]
    expected = sum(weight * value for weight, value in zip(weights, both, strict=True))
    assert of(losses.DiceCrossEntropy()) == pytest.approx(expected, rel=1e-6)  # Ours is in float32.


def test_weights_are_those_of_nnunet():
    for levels in range(3, 9):
        published = np.array([1 / 2**level for level in range(levels)])
        published[-1] = 0
        np.testing.assert_allclose(level_weights(levels - 1), (published / published.sum())[:-1])


def test_a_step_trains_every_head_and_scores_the_full_resolution(tmp_path):
    settings = {"image_shape": (16, 16, 1), "num_classes": 2, **OPTIONS, "levels": 3}
    keras.utils.set_random_seed(0)
    plain = presets.nnunet2d(**settings)
    keras.utils.set_random_seed(0)
    model = presets.nnunet2d(**settings, deep_supervision=True)
    extra = [weight for weight in model.weights if weight.path.startswith("logits1/")]
    assert len(model.weights) == len(plain.weights) + len(extra) == len(plain.weights) + 2
    by_path = {weight.path: weight for weight in model.weights}
    for weight in plain.weights:
        np.testing.assert_array_equal(weight, by_path[weight.path])
    image = np.random.default_rng(0).normal(size=(2, 16, 16, 1)).astype("float32")
    mask = (image[..., 0] > 0).astype("int32")
    np.testing.assert_array_equal(model(image), plain(image))

    before = [weight.numpy() for weight in extra]
    model.compile(
        "sgd",
        losses.DiceCrossEntropy(),
        metrics=["sparse_categorical_accuracy"],
        jit_compile=False,
    )
    logs = model.train_on_batch(image, mask, return_dict=True)
    assert 0 < logs["sparse_categorical_accuracy"] < 1
    for weight, value in zip(extra, before, strict=True):
        assert np.abs(weight.numpy() - value).max() > 0
    logits = model(image)
    validated = float(model.compute_loss(image, tf.constant(mask), logits, training=False))
    alone = losses.per_sample(losses.DiceCrossEntropy(), mask, logits)
    assert validated == pytest.approx(float(np.mean(alone)), rel=1e-6)

    # What files hold loads in plain Keras, and where a trained network is built anew.
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(plain)
    np.testing.assert_array_equal(loaded(image), logits)
    built = presets.nnunet2d(**trained_options("nnunet2d", {**settings, "deep_supervision": True}))
    for name in ("model.keras", "model.weights.h5"):
        built.set_weights([np.zeros(weight.shape) for weight in built.weights])
        built.load_weights(tmp_path / name)
        for ours, theirs in zip(built.weights, loaded.weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_too_few_levels_are_refused():
    with pytest.raises(ValueError, match="deep_supervision needs levels of at least 3, got 2"):
        unet.build(image_shape=(32, 32, 1), num_classes=2, levels=2, deep_supervision=True)
    with pytest.raises(ValueError, match="deep_supervision must be true or false"):
        unet.build(image_shape=(32, 32, 1), num_classes=2, deep_supervision="no")


@pytest.mark.parametrize(
    ("key", "value"),
    [("split", [2, 1]), ("stages", 2), ("tiling", [2, 1])],
    ids=["split", "stages", "tiling"],
)
def test_parts_of_samples_and_networks_are_refused_by_name(key, value):
    settings = {"model_options": {"deep_supervision": True}, "backend": "multiworker", key: value}
    with pytest.raises(ValueError, match=rf"model_options.deep_supervision .* {key} = "):
        from_dict(settings)
    # An option of a user's own model may mean something else.
    from_dict({**settings, "model": "mine.py:build"})
    from_dict({**settings, "model_options": {"deep_supervision": False}})
