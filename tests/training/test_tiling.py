"""Steps that take whole samples tile by tile: the gradients of whole samples, in float64."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from fed_tiles import fed_tiles
from keras import layers

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.data.task import Task
from tfunet.exit_codes import CheckFailedError, StoppedError
from tfunet.files.table import read_rows
from tfunet.geometry.grid import grid
from tfunet.geometry.receptive_field import alignment, reach
from tfunet.learning.averaging import Averaging
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.losses import CrossEntropy
from tfunet.learning.own_part import loss_of_tile
from tfunet.loop import run
from tfunet.models import unet
from tfunet.single_device import SingleDevice
from tfunet.swap import LargeModelSupport
from tfunet.training import checkpoint
from tfunet.training.checks import uses_of_samples
from tfunet.training.tile_step import TileStep, UncutNetwork
from tfunet.training.tiling import check_metrics, check_model, look_at_network

CLASSES = 3


def small_unet(shape, **options):
    options = {"filters": 2, "levels": 1, "convolutions": 1, "normalization": "none", **options}
    return unet.build(image_shape=(*shape, 1), num_classes=CLASSES, **options)


def penalised(shape):
    """A network whose weights cost something, with strides and holes."""
    image = keras.Input((*shape, 1))
    penalty = {"kernel_regularizer": keras.regularizers.L2(0.1)}
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="gelu", **penalty)(image)
    x = layers.Conv2D(4, 3, padding="same", dilation_rate=2, activation="relu")(x)
    x = layers.Conv2DTranspose(2, 4, strides=2, padding="same")(x)
    return keras.Model(image, layers.Conv2D(CLASSES, 1)(layers.Concatenate()([x, image])))


def crossentropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def ignoring_a_label():
    loss = crossentropy()
    ignore_in_loss(loss, 2)
    return loss


def sgd():
    return keras.optimizers.SGD(1.0)


def scaled_loss():
    return keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**10)


def compiled(build, shape, *, loss=crossentropy, optimizer=sgd):
    keras.utils.set_random_seed(1)
    model = build(shape)
    model.compile(
        optimizer=optimizer(),
        loss=loss(),
        metrics=["sparse_categorical_accuracy"],
        auto_scale_loss=False,
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)
    batch = np.zeros((1, *shape, 1)), np.zeros((1, *shape), np.uint8)
    model._symbolic_build(data_batch=batch)
    for variable in model.trainable_variables:  # Zero biases would hide mistakes.
        variable.assign(variable + 0.1 * np.random.RandomState(2).normal(size=variable.shape))
    return model


def change(model, step):
    """How much a step of SGD with rate 1 changes the weights, and what it says."""
    before = [variable.numpy() for variable in model.trainable_variables]
    logs = step()["logs"]
    after = [variable.numpy() for variable in model.trainable_variables]
    said = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
    return [new - old for new, old in zip(after, before, strict=True)], said


def stepped(build, cut, rows, **how):
    """A step over tiles by one replica."""
    model = compiled(build, cut.largest_window, **how)
    batches = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    averaging = Averaging(average=list, is_alone=True)
    work = UncutNetwork(
        SingleDevice(Launch()), model, cut, num_local=1, passes=len(rows), averaging=averaging
    )
    step = TileStep(work, passes=len(rows))
    iterator = iter(tf.data.Dataset.from_tensor_slices(batches))
    return change(model, lambda: step(iterator))


def data_of(shape):
    rng = np.random.RandomState(0)
    return rng.normal(size=(2, *shape, 1)), rng.randint(0, CLASSES, (2, *shape)).astype(np.uint8)


def whole_step(build, shape, images, masks, **how):
    model = compiled(build, shape, **how)
    step = tf.function(model.train_step, autograph=False)
    return change(model, lambda: {"logs": step((tf.constant(images), tf.constant(masks)))})


def largest_difference(ours, theirs):
    scale = max(np.abs(value).max() for value in theirs)
    return max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) / scale


def in_3d(shape):
    return small_unet(shape, downsampling="strided")  # TensorFlow pools no volumes in float64.


@pytest.mark.parametrize(
    ("build", "shape", "tilings"),
    [
        # Tiles along one axis only, of uneven sizes, of a network with other layers, in 3D.
        (small_unet, (36, 28), [(1, 3), (4, 3)]),
        (penalised, (44, 32), [(3, 2)]),
        (in_3d, (16, 12, 8), [(2, 2, 1)]),
    ],
)
def test_gradients_losses_and_metrics_are_those_of_whole_samples(float64, build, shape, tilings):
    images, masks = data_of(shape)
    whole = build(shape)
    halo, steps = reach(whole), alignment(whole)
    expected, said = whole_step(build, shape, images, masks)
    for tiling in tilings:
        cut = grid(shape, tiling, halo, steps)
        assert not cut.is_finer_than_halo
        rows = fed_tiles(cut, images, masks)
        gradients, logs = stepped(build, cut, rows)
        assert largest_difference(gradients, expected) <= 1e-12
        assert logs == pytest.approx(said, rel=1e-12)


@pytest.mark.parametrize(
    ("how", "tolerance"),
    [
        # The optimizer of mixed_float16 divides the sum of all tiles by its scale.
        ({"loss": ignoring_a_label, "optimizer": scaled_loss}, 1e-12),
        # The losses of tfunet compute in float32.
        ({"loss": lambda: CrossEntropy([1.0, 2.0, 5.0])}, 1e-6),
    ],
    ids=["ignored label, loss scale", "class weights"],
)
def test_so_are_those_of_other_losses_and_optimizers(float64, how, tolerance):
    shape = (36, 28)
    images, masks = data_of(shape)
    expected, said = whole_step(small_unet, shape, images, masks, **how)
    cut = grid(shape, (3, 1), reach(small_unet(shape)), (2, 2))
    changes, logs = stepped(small_unet, cut, fed_tiles(cut, images, masks), **how)
    assert largest_difference(changes, expected) <= tolerance
    assert logs == pytest.approx(said, rel=tolerance)


def test_replicas_that_share_a_sample_average_to_its_gradient(float64):
    shape = (36, 28)
    images, masks = data_of(shape)
    expected, said = whole_step(small_unet, shape, images, masks)
    cut = grid(shape, (1, 3), reach(small_unet(shape)), (2, 2))
    rows = fed_tiles(cut, images, masks)
    # The second replica has the end of one sample and the begin of the other.
    shares = [rows[at : at + 2] for at in (0, 2, 4)]
    changes, logs = zip(*(stepped(small_unet, cut, share) for share in shares), strict=True)
    mean = [np.mean(each, axis=0) for each in zip(*changes, strict=True)]
    assert largest_difference(mean, expected) <= 1e-12
    assert np.mean([log["loss"] for log in logs]) == pytest.approx(said["loss"], rel=1e-12)


def test_the_halo_is_the_least_that_is_exact(float64):
    shape = (36, 28)
    images, masks = data_of(shape)
    expected, _ = whole_step(small_unet, shape, images, masks)
    halo = reach(small_unet(shape))[0]
    cut = grid(shape, (2, 1), (halo - 2, 0), (2, 2))
    assert (
        largest_difference(stepped(small_unet, cut, fed_tiles(cut, images, masks))[0], expected)
        > 1e-6
    )


def test_with_statistics_of_whole_samples_no_halo_is_exact(float64):
    shape = (36, 28)
    images, masks = data_of(shape)

    def build(spatial):
        return small_unet(spatial, normalization="instance")

    expected, _ = whole_step(build, shape, images, masks)
    cut = grid(shape, (2, 1), (10, 0), (2, 2))
    difference = largest_difference(stepped(build, cut, fed_tiles(cut, images, masks))[0], expected)
    assert difference > 1e-2


@pytest.mark.parametrize("place", [(0, 0), (0, 4), (6, 4)])
def test_a_part_without_own_pixels_has_no_loss_and_no_gradient(place):
    cut = grid((8, 8), (2, 1), (0, 0), (1, 1))
    logits = tf.Variable(np.random.RandomState(0).normal(size=(1, 6, 4, CLASSES)))
    nothing = tf.constant([place])
    batch = {"mask": tf.zeros((1, 6, 4)), "own_start": nothing, "own_stop": nothing}
    with tf.GradientTape() as tape:
        value = loss_of_tile(CrossEntropy(), batch, tf.convert_to_tensor(logits), cut)
    assert float(value) == 0
    assert not np.any(tape.gradient(value, logits))


def test_a_weight_that_the_loss_does_not_reach_stays(float64):
    def build(shape):
        image = keras.Input((*shape, 1))
        lost = keras.ops.stop_gradient(layers.Conv2D(CLASSES, 1, name="lost")(image))
        return keras.Model(image, layers.Conv2D(CLASSES, 1, name="used")(image) + lost)

    cut = grid((8, 8), (2, 1), (0, 0), (1, 1))
    changes, _ = stepped(build, cut, fed_tiles(cut, *data_of((8, 8))))
    for variable, amount in zip(build((8, 8)).trainable_variables, changes, strict=True):
        assert np.any(amount) == ("used" in variable.path)


def task(patch=(64, 48), channels=1, **settings):
    options = {"filters": 2, "levels": 2, "normalization": "none"}
    given = {"model_options": options, "loss": "crossentropy", "tiling": (2, 2), **settings}
    config = RunConfig(**given)
    source = SimpleNamespace(samples=None, channels=channels, num_outputs=2, num_classes=2)
    return Task(config=config, source=source, patch=patch)


def test_a_network_says_how_its_samples_are_cut():
    tiles = look_at_network(task())
    assert tiles.grid.halo == (23, 23)
    assert tiles.window == (56, 48)
    assert tiles.warning() is None
    line = tiles.summary()
    assert line.startswith("Tiles: 2 x 2 of samples of 64 x 48, in windows of 56 x 48 with a halo")
    assert "3.50 pixels" in line
    for normalization, layer in (("instance", "down0_0_normal"), ("batch", "down0_0_normal")):
        options = {"filters": 2, "levels": 1, "normalization": normalization}
        warning = look_at_network(task(model_options=options)).warning()
        assert warning.startswith(f"warning: {layer}")
        assert "With split instead of tiling they are exact." in warning


OWN = """
import keras

def permuted(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    turned = keras.layers.Permute((2, 1, 3), name="turn")(image)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(turned))

def placed(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = keras.layers.LayerNormalization([1, 2])(keras.layers.Conv2D(2, 3, padding="same")(image))
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(x))

def centred(x):
    return x - keras.ops.mean(x, axis=(1, 2), keepdims=True)

def activated(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = keras.layers.Conv2D(2, 3, padding="same", activation=centred, name="conv")(image)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(x))

def regularized(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = keras.layers.ReLU(activity_regularizer="l2", name="cost")(image)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(x))

class Subclass(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.last = keras.layers.Conv2D(num_classes, 1)

    def call(self, image):
        return self.last(image)

def subclassed(*, image_shape, num_classes):
    model = Subclass(num_classes)
    model(keras.ops.zeros((1, *image_shape)))
    return model
"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tiling": (4, 2)},
            r"finer than the network's halo of \[23, 23\].*at most about \[2, 2\]",
        ),
        ({"tiling": (20, 1)}, r"makes too many tiles.*at most \[16, 12\]"),
        ({"split": (57, 1)}, r"57 parts, and a tile's window of shape \(56, 48\) has 56"),
        ({"patch": (66, 48)}, "a multiple of 4"),
        ({"loss": "dice_crossentropy"}, "'dice_crossentropy' of a sample is not the mean over its"),
        ({"loss": "Dice"}, "'dice' cannot be computed for masks with 2 labels and 2 logits"),
        ({"model": "net.keras"}, "'net.keras' does not exist"),
        ({"model": "net.py:permuted", "model_options": {}}, "'turn' of type Permute. Use split"),
        (
            {"model": "net.py:activated", "model_options": {}},
            "layer 'conv' of type Conv2D, whose activation does not treat each pixel alone. Use",
        ),
        ({"model": "net.py:placed", "model_options": {}}, "other variables or another halo"),
        (
            {"model": "net.py:regularized", "model_options": {}},
            "of the layer 'cost' gives .* split",
        ),
        ({"model": "net.py:subclassed", "model_options": {}}, "needs a functional model"),
    ],
)
def test_a_tiling_that_cannot_be_is_refused(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(OWN)
    with pytest.raises(ValueError, match=message):
        look_at_network(task(**settings))


def test_methods_and_metrics_that_would_see_tiles_are_refused():
    own = type("Own", (keras.Model,), {"train_step": lambda self, data: {}})
    image = keras.Input((8, 8, 1))
    logits = layers.Conv2D(2, 1)(image)
    with pytest.raises(ValueError, match="has a train_step of its own"):
        check_model(own(image, logits))
    check_model(keras.Model(image, logits))
    check_metrics([keras.metrics.SparseCategoricalAccuracy()])
    with pytest.raises(ValueError, match="'mine' is not Keras's"):
        check_metrics([type("Mine", (keras.metrics.Mean,), {})(name="mine")])


def test_large_model_support_is_refused_before_the_first_step(tmp_path):
    config = RunConfig(
        data_options={"num_cases": 5, "size": 32},
        model_options={"filters": 2, "levels": 1, "normalization": "none"},
        loss="crossentropy",
        tiling=(2, 1),
        global_batch=1,
        cache_dir=str(tmp_path / "cache"),
    )
    support = LargeModelSupport("1GiB")
    with pytest.raises(ValueError, match="Large-model support is not built for tiles yet"):
        run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=[support])
    assert not (tmp_path / "run/result.json").exists()


def frozen_first(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    x = layers.Conv2D(3, 3, padding="same", activation="tanh", name="encoder")(image)
    return keras.Model(image, layers.Conv2D(num_classes, 3, padding="same")(x))


def test_a_tournament_on_tiles_is_that_of_whole_samples(tmp_path):
    """Also of folds, a layer that is frozen at first, and averaged weights."""
    rule = {"factors": [0.5], "low": 1e-3, "high": 1.0}
    settings = {
        "model": f"{__file__}:frozen_first",
        "data_options": {"num_cases": 10, "size": 32},
        "folds": 5,
        "augmentation": {"brightness": 0.5},
        "loss": "crossentropy",
        "optimizer": "sgd",
        "optimizer_options": {"momentum": 0.9, "use_ema": True},
        "learning_rate": 0.05,
        "encoder_frozen_epochs": 1,
        "global_batch": 2,
        "steps": 4,
        "deterministic": True,
        "cache_dir": str(tmp_path / "cache"),
        "tournament": {
            "trainers": 2,
            "round_steps": 2,
            "wait_seconds": 0.05,
            "mutate": {"augmentation.brightness": rule},
        },
    }
    rounds, epochs, weights = [], [], []
    # The tiles have uneven sizes.
    for name, tiling in (("tiles", (3, 2)), ("whole", ())):
        first, second = (RunConfig(**settings, tiling=tiling, seed=seed) for seed in (0, 1))
        folder = tmp_path / name
        with pytest.raises(StoppedError):
            run(first, SingleDevice(Launch()), folder / "0", stops_after=lambda step: step == 2)
        run(second, SingleDevice(Launch()), folder / "1")
        rounds += read_rows(folder / "1/rounds.csv")
        epochs.append(read_rows(folder / "1/epochs.csv"))
        with np.load(folder / "1" / checkpoint.NAME) as file:
            weights.append([file[key] for key in file.files if key.startswith("variable_")])
    ours, theirs = rounds
    assert ours["reason"] == theirs["reason"] == "the partner's model is better"
    assert ours["augmentation.brightness"] == theirs["augmentation.brightness"] == "0.25"
    for score in ("own_score", "partner_score"):
        assert float(ours[score]) == pytest.approx(float(theirs[score]), abs=1e-6)
    for one, other in zip(*epochs, strict=True):
        for name in ("loss", "val_loss", "dice_cell"):
            assert float(one[name]) == pytest.approx(float(other[name]), abs=2e-6)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_samples_that_were_not_used_whole_are_found():
    # Two samples of three tiles: how often each was used, and in which step.
    uses = np.array([[1, 1, 1, 0, 0, 0], [2, 2, 2, 0, 0, 0]], float)
    np.testing.assert_array_equal(uses_of_samples(uses, 3), [[1, 0], [2, 0]])
    for row, column in ((0, 1), (1, 4)):
        wrong = uses.copy()
        wrong[row, column] += 1
        with pytest.raises(CheckFailedError, match=rf"Samples \[{column // 3}\] were not used who"):
            uses_of_samples(wrong, 3)
