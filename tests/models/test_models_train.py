"""The models learn, are the same for the same seed, and survive a file and a precision policy."""

import zipfile

import keras
import numpy as np
import pytest

from tfunet.config.refs import resolve
from tfunet.models import MODELS, isensee, presets, unet
from tfunet.models.symbolic import build_symbolic

SMALL = {
    "unet 2D": (unet.build, (16, 16, 1), {"filters": 4, "levels": 2}),
    "unet 3D": (
        unet.build,
        (8, 8, 8, 2),
        {
            "filters": 4,
            "levels": 1,
            "normalization": "group",
            "groups": 2,
            "residual": True,
            "upsampling": "linear",
            "downsampling": "strided",
        },
    ),
    "isensee 2D": (
        isensee.build,
        (16, 16, 1),
        {"filters": 4, "depth": 3, "segmentation_levels": 2, "dropout": 0.1},
    ),
    "isensee 3D": (
        presets.isensee_3dunetcnn,
        (8, 8, 8, 1),
        {"filters": 4, "depth": 2, "segmentation_levels": 1, "dropout": 0.1},
    ),
    "cicek3d": (presets.cicek3d, (8, 8, 8, 1), {"filters": 2, "levels": 1}),
}
NUM_CLASSES = 3


def _build(name: str) -> keras.Model:
    build, shape, options = SMALL[name]
    return build(image_shape=shape, num_classes=NUM_CLASSES, **options)


def _task(shape, cases=4):
    """Images whose class is how bright a smooth noise is: learnable, and different per case."""
    generator = np.random.default_rng(3)
    images = generator.normal(size=(cases, *shape)).astype("float32")
    for axis in range(1, len(shape)):
        images = images + np.roll(images, 1, axis)
    masks = np.digitize(images[..., 0], np.quantile(images[..., 0], [0.33, 0.66]))
    return images, masks


@pytest.mark.parametrize("name", SMALL)
def test_loss_falls_and_the_saved_model_gives_the_same_logits(name, tmp_path):
    keras.utils.set_random_seed(1)
    model = _build(name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Tracing so small a step takes longer than these steps do.
    model.compile(keras.optimizers.Adam(0.02), loss, run_eagerly=True)
    images, masks = _task(SMALL[name][1])
    losses = [float(model.train_on_batch(images, masks)) for _ in range(7)]
    assert np.mean(losses[-2:]) < 0.92 * losses[0]

    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path, safe_mode=True)
    np.testing.assert_array_equal(loaded(images), model(images))
    # Anybody can load it: nothing in it is a class of ours.
    assert b"tfunet" not in zipfile.ZipFile(path).read("config.json")


@pytest.mark.parametrize("name", ["unet 2D", "isensee 3D"])
def test_same_seed_gives_the_same_weights_and_another_seed_others(name):
    weights = []
    for seed in (5, 5, 6):
        keras.utils.set_random_seed(seed)
        weights.append(_build(name).get_weights())
    kernels = [index for index, weight in enumerate(weights[0]) if weight.ndim > 1]
    for index in kernels:
        np.testing.assert_array_equal(weights[0][index], weights[1][index])
        assert not np.array_equal(weights[0][index], weights[2][index])


def test_no_two_kernels_start_equal():
    # One initializer object for several layers would give each the same values.
    kernels = [weight.numpy() for weight in _build("unet 2D").weights if len(weight.shape) > 1]
    for index, kernel in enumerate(kernels):
        for other in kernels[:index]:
            assert kernel.shape != other.shape or not np.array_equal(kernel, other)


def test_kernels_start_with_the_deviation_of_he():
    model = unet.build(image_shape=(16, 16, 32), num_classes=2, filters=64, levels=1)
    kernel = model.get_layer("down0_0_convolution").kernel.numpy()
    assert kernel.std() == pytest.approx(np.sqrt(2 / (3 * 3 * 32)), rel=0.03)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_classes", [1, 4])
def test_logits_are_float32_under_mixed_precision_and_have_one_channel_a_class(name, num_classes):
    shape = (256, 256, 2) if "2d" in name or "summit" in name else (64, 64, 64, 2)
    shape = (128, 128, 128, 2) if "cosmoflow" in name else shape
    build = resolve("model", name, MODELS)
    model = build_symbolic(
        lambda: build(image_shape=shape, num_classes=num_classes), precision="mixed_bfloat16"
    )
    assert model.output.dtype == "float32"
    spatial = () if "cosmoflow" in name else shape[:-1]
    assert model.output.shape == (None, *spatial, num_classes)
    assert any(layer.compute_dtype == "bfloat16" for layer in model.layers)


@pytest.mark.parametrize("build", [unet.build, isensee.build])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_sizes_may_stay_open_until_the_model_runs(build, dimensions):
    small = {"levels": 1} if build is unet.build else {"depth": 2, "segmentation_levels": 1}
    model = build(image_shape=(*[None] * dimensions, 1), num_classes=2, filters=2, **small)
    for size in (4, 6):
        images = np.ones((1, *[size] * dimensions, 1), "float32")
        assert model(images).shape == (1, *[size] * dimensions, 2)


def test_deep_supervision_sums_the_levels():
    options = {"image_shape": (16, 16, 1), "num_classes": 2, "filters": 2, "depth": 4}
    model = isensee.build(segmentation_levels=3, **options)
    finest = keras.Model(
        model.input, [model.get_layer(f"segmentation{i}").output for i in range(3)]
    )
    images, _ = _task((16, 16, 1))
    logits = [output.numpy() for output in finest(images)]
    doubled = logits[2].repeat(2, 1).repeat(2, 2) + logits[1]
    expected = doubled.repeat(2, 1).repeat(2, 2) + logits[0]
    np.testing.assert_allclose(model(images), expected, atol=1e-6)


def test_building_without_weights_leaves_the_caller_as_it_was():
    def dense():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    def draws(between):
        """Two layers made from one seed, and their names, with something else between them."""
        keras.utils.clear_session()
        keras.utils.set_random_seed(2)
        first = dense()
        between()
        second = dense()
        return [*first.get_weights(), *second.get_weights()], second.layers[0].name

    policy = keras.config.dtype_policy().name
    expected, expected_name = draws(lambda: None)
    built, built_name = draws(
        lambda: build_symbolic(lambda: _build("unet 2D"), precision="mixed_bfloat16")
    )
    assert keras.config.dtype_policy().name == policy
    assert built_name == expected_name == "dense_1"
    for weights, same in zip(built, expected, strict=True):
        np.testing.assert_array_equal(weights, same)
