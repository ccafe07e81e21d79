"""Networks of keras.applications as encoders: their weights, their preparation, what is refused."""

import inspect

import h5py
import keras
import numpy as np
import pytest
from keras.src.legacy.saving import legacy_h5_format

from tfunet.models import encoders, unet
from tfunet.models.symbolic import build_symbolic

SMALL = {"encoder": "MobileNetV2", "encoder_options": {"alpha": 0.35}, "filters": 2}
SHAPE = (64, 32, 3)


@pytest.fixture(scope="module")
def application():
    """MobileNetV2 with statistics and weights that are not those of a new one."""
    keras.utils.set_random_seed(7)
    made = keras.applications.MobileNetV2(
        input_shape=SHAPE, alpha=0.35, include_top=False, weights=None
    )
    generator = np.random.default_rng(0)
    for variable in made.weights:
        if len(variable.shape) == 1:
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    return made


@pytest.fixture(scope="module")
def files(application, tmp_path_factory):
    """Its weights as Keras 3 writes them, and as Keras 2 did (the files that Keras offers)."""
    folder = tmp_path_factory.mktemp("weights")
    application.save_weights(folder / "new.weights.h5")
    with h5py.File(folder / "old_notop.h5", "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, application)
    return folder


def build(**changes):
    shape = changes.pop("image_shape", SHAPE)
    return unet.build(**{"image_shape": shape, "num_classes": 2, **SMALL, **changes})


def test_the_encoder_computes_what_the_network_of_the_file_does(application, files, tmp_path):
    model = build(encoder_weights=str(files / "new.weights.h5"), encoder_intensity="unit")
    image = np.random.default_rng(1).uniform(0, 1, (2, *SHAPE)).astype("float32")
    scaled = keras.Model(model.input, model.get_layer("encoder_scaling").output)(image)
    expected = keras.applications.mobilenet_v2.preprocess_input(255 * image)
    np.testing.assert_allclose(scaled, expected, atol=1e-5)
    *_, bottom = model.get_layer("encoder")(scaled)
    np.testing.assert_allclose(bottom, application(expected), rtol=1e-4, atol=1e-5)
    assert bottom.shape == (2, 2, 1, 1280)
    logits = model(image)
    assert logits.shape == (2, *SHAPE[:-1], 2)
    # The file of the whole loads without tfunet.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(image), logits)


def test_files_of_keras_2_are_read(application, files):
    made = keras.applications.MobileNetV2(
        input_shape=SHAPE, alpha=0.35, include_top=False, weights=None
    )
    encoders.load_weights(made, str(files / "old_notop.h5"), "MobileNetV2")
    for ours, theirs in zip(made.weights, application.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_statistics_of_the_encoder_are_those_of_all_replicas():
    def synchronized(**changes):
        model = build_symbolic(lambda: build(**changes), precision="float32")
        layers = model.get_layer("encoder").layers
        kinds = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        assert len(kinds) == 52
        return {kind.synchronized for kind in kinds}

    assert synchronized() == {True}
    assert synchronized(encoder_synchronized=False) == {False}


@pytest.mark.parametrize("name", encoders.names())
def test_images_are_prepared_as_keras_does(name):
    module = inspect.getmodule(getattr(keras.applications, name))
    pixels = np.random.default_rng(0).uniform(0, 255, (4, 4, 3))
    expected = module.preprocess_input(pixels.copy())
    values = {
        "bytes": pixels,
        "unit": pixels / 255,
        "zscore": (pixels - encoders.MEAN) / encoders.DEVIATION,
    }
    for intensity, image in values.items():
        scale, offset, is_reversed = encoders.preparation(name, intensity)
        prepared = image * scale + offset
        prepared = prepared[..., ::-1] if is_reversed else prepared
        np.testing.assert_allclose(prepared, expected, atol=2e-4)


def test_colours_are_reversed_where_the_network_has_blue_first():
    model = build_symbolic(
        lambda: build(encoder="ResNet50", encoder_options={}, encoder_intensity="bytes"),
        precision="float32",
    )
    assert any(type(operation).__name__ == "Flip" for operation in model.operations)
    assert model.get_layer("encoder_scaling").offset == pytest.approx([-123.68, -116.779, -103.939])


def test_efficientnets_divide_by_the_deviation_of_imagenet(tmp_path):
    """Keras's files have deviations as variances, and a layer that only a download adds."""

    def network():
        image = keras.Input((8, 8, 3))
        tensor = keras.layers.Rescaling(1 / 255)(image)
        return keras.Model(image, keras.layers.Normalization(axis=-1)(tensor))

    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    published, own = network(), network()
    published.layers[-1].set_weights([mean, deviation, np.array(0)])
    published.save_weights(tmp_path / "imagenet.weights.h5")
    own.layers[-1].set_weights([mean, deviation**2, np.array(0)])
    own.save_weights(tmp_path / "own.weights.h5")
    image = np.random.default_rng(0).uniform(0, 255, (1, 8, 8, 3))
    for name in ("imagenet", "own"):
        made = network()
        encoders.load_weights(made, str(tmp_path / f"{name}.weights.h5"), "EfficientNetB0")
        np.testing.assert_allclose(made(image), (image / 255 - mean) / deviation, rtol=1e-4)


@pytest.mark.parametrize(
    ("channels", "inside"), [(1, 3), (3, 3), (5, 5)], ids=["grey", "colours", "others"]
)
def test_any_number_of_channels(channels, inside):
    model = build_symbolic(lambda: build(image_shape=(32, 32, channels)), precision="float32")
    assert model.get_layer("encoder").input_shape == (None, 32, 32, inside)
    scale = model.get_layer("encoder_scaling").scale
    assert np.mean(scale) == pytest.approx(encoders.DEVIATION.mean() / 127.5)
    assert np.shape(scale) == ((3,) if inside == 3 else ())


@pytest.mark.parametrize(
    ("name", "levels", "skips"),
    # The image itself has the size of level 0; ConvNeXt halves it twice at once.
    [("MobileNetV3Small", None, [3, 16, 72, 96, 288]), ("ConvNeXtTiny", 4, [3, None, 96, 192])],
)
def test_each_level_takes_the_last_tensor_of_its_size(name, levels, skips):
    options = {"encoder": name, "encoder_options": {}, "levels": levels}
    model = build_symbolic(lambda: build(**options), precision="float32")
    found = []
    for level in range(len(skips)):
        layers = [layer for layer in model.layers if layer.name == f"up{level}_concatenation"]
        found.append(layers[0].input[0].shape[-1] if layers else None)
    assert found == skips


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "EficientNetB0"}, "Unknown encoder 'EficientNetB0'. Did you mean 'Effi"),
        ({"image_shape": (32, 32, 32, 3)}, "two dimensions, and these have 3"),
        ({"image_shape": (48, 32, 3)}, r"multiple of 32 \(5 halvings, levels=5\), got 48"),
        ({"image_shape": (16, 16, 3), "levels": 4}, "at least 32 pixels along each axis, got 16"),
        (
            {"levels": 6, "image_shape": (64, 64, 3)},
            "halves an image 5 times at most, got levels=6",
        ),
        ({"image_shape": (None, 32, 3)}, "needs the size of each dimension"),
        ({"encoder_options": {"alfa": 1}}, "no option 'alfa'. Did you mean 'alpha'"),
        ({"encoder_options": {"alpha": "small"}}, "'MobileNetV2' cannot be built"),
        ({"encoder_options": {"weights": "imagenet"}}, "no option 'weights'"),
        ({"encoder_intensity": "bits"}, "Unknown encoder_intensity 'bits'"),
        ({"encoder_synchronized": "no"}, "encoder_synchronized must be true or false"),
        ({"encoder_filters": [[2]] * 6}, "encoder_filters is of the way down, whose place"),
        ({"downsampling": "strided"}, "downsampling is of the way down, whose place"),
        ({"encoder": None}, "encoder_options has an effect only with an encoder"),
        (
            {"image_shape": (32, 32, 4), "encoder_weights": "a.h5"},
            "for 3 channels, and the images have 4",
        ),
        ({"encoder_weights": "nowhere.h5"}, "encoder_weights='nowhere.h5' is no file of weights"),
    ],
)
def test_what_cannot_be_an_encoder_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_a_network_whose_sizes_are_no_halves_is_refused():
    options = {"encoder": "InceptionV3", "encoder_options": {}, "image_shape": (96, 96, 3)}
    with pytest.raises(ValueError, match=r"it has no tensor of 1/4 of their size, but 96 x 96, 47"):
        build_symbolic(lambda: build(**options), precision="float32")


def test_a_file_of_another_network_is_refused_with_what_differs(files, tmp_path):
    with pytest.raises(
        ValueError, match=r"not among the 260 in the file, such as block_\d+_.*/kern"
    ):
        build(encoder_weights=str(files / "new.weights.h5"), encoder_options={"alpha": 0.5})
    whole = (files / "new.weights.h5").read_bytes()
    for name, content in (("cut.weights.h5", whole[:5000]), ("text.h5", b"no weights at all")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}' cannot be loaded into MobileNetV2"):
            build(encoder_weights=str(tmp_path / name))


def test_an_unknown_encoder_is_refused_with_the_near_match():
    with pytest.raises(ValueError, match=r"Unknown encoder 'MobilNetV2'\. Did you mean 'MobileNet"):
        unet.build(image_shape=(64, 64, 3), num_classes=2, encoder="MobilNetV2")
