"""Whole networks on parts of a sample against one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import with_encoder
from keras import layers
from split_check import assert_exact, layered
from threads import Threads

from tfunet.learning import LOSSES, losses
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.region_loss import RegionLoss
from tfunet.models import isensee, presets, unet
from tfunet.parallel.losses import split_loss, split_own_methods
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import SplitNetwork
from tfunet.parallel.part import cut


@pytest.mark.parametrize("split", [(3, 1), (2, 2)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization": "batch"},
        {"normalization": "synchronized_batch"},
        {"normalization": "group", "groups": 2},
        {"downsampling": "strided", "upsampling": "nearest"},
        {"downsampling": "average", "upsampling": "linear"},
        {"residual": True, "dropout": 0.3, "bottom_dropout": 0.5},
        {"activation": "gelu", "normalization": "none"},
    ],
    ids=str,
)
def test_unet(options, split):
    keras.utils.set_random_seed(1)
    model = unet.build(image_shape=(32, 16, 2), num_classes=3, filters=4, levels=2, **options)
    assert_exact(model, split, tolerance=1e-9)


def test_unet_on_uneven_parts_that_no_pooling_divides():
    model = unet.build(image_shape=(32, 16, 2), num_classes=3, filters=4, levels=2)
    assert_exact(model, (3, 1), bounds=((0, 7, 18, 32), None), tolerance=1e-9)


def test_unet_in_3d():
    options = {"downsampling": "strided", "filters": 4, "levels": 2}
    model = unet.build(image_shape=(16, 8, 8, 1), num_classes=3, **options)
    assert_exact(model, (2, 2, 1), batch=1, tolerance=1e-9)


def test_more_parts_than_rows_at_the_bottom():
    options = {"filters": 4, "levels": 3, "upsampling": "nearest"}
    model = unet.build(image_shape=(16, 16, 1), num_classes=2, **options)
    assert_exact(model, (4, 1), tolerance=1e-9, gathers={"MaxPooling2D"})


@pytest.mark.parametrize("split", [(3, 1), (4, 2), (5, 1), (8, 3)])
def test_parts_that_layers_without_padding_leave_thin(split):
    model = layered(
        (16, 16, 1),
        layers.Conv2D(4, 3, padding="same", activation="elu"),
        layers.AveragePooling2D(2),
        layers.Conv2D(4, 3),
        layers.Conv2D(4, 3),
        layers.UpSampling2D(),
        layers.ZeroPadding2D(4),
        layers.Conv2D(2, 1),
    )
    gathers = {5: {"Conv2D"}, 8: {"Conv2D"}}.get(split[0], ())  # 4 rows have no 5 parts
    assert_exact(model, split, gathers=gathers)


def test_isensee():
    model = isensee.build(image_shape=(32, 32, 1), num_classes=3, filters=4)
    assert_exact(model, (2, 1), batch=1, tolerance=1e-9)


def test_summit():
    model = presets.summit_5_2(image_shape=(64, 32, 1), num_classes=2, filters=4)
    assert_exact(model, (2, 1), batch=1, tolerance=1e-9)


def test_attention_gate_and_squeeze_excitation():
    image = keras.Input((24, 8, 4))
    gate = layers.Conv2D(4, 1)(layers.MaxPooling2D()(image))
    query = layers.Conv2D(4, 2, strides=2)(image)
    both = layers.ReLU()(layers.Add()([gate, query]))
    attention = layers.UpSampling2D()(layers.Conv2D(1, 1, activation="sigmoid")(both))
    gated = layers.Multiply()([image, attention])
    channels = layers.Dense(4, "sigmoid")(layers.GlobalAveragePooling2D()(gated))
    scaled = layers.Multiply()([gated, layers.Reshape((1, 1, 4))(channels)])
    model = keras.Model(image, layers.Conv2D(3, 3, padding="same")(scaled))
    assert_exact(model, (3, 1))
    assert_exact(model, (5, 2))


def test_operations_and_nested_models():
    inner = layered((24, 8, 4), layers.Conv2D(4, 3, padding="same"), layers.ReLU())
    sequential = keras.Sequential([layers.Conv2D(4, 3, padding="same"), layers.ELU()])
    image = keras.Input((24, 8, 2))
    tensor = keras.ops.relu(image) * 2 + image
    tensor = keras.ops.concatenate([tensor, keras.ops.sigmoid(image)], -1)
    tensor = inner(tensor) - sequential(tensor)
    model = keras.Model(image, layers.Conv2D(3, 3, padding="same")(keras.ops.tanh(tensor)))
    assert_exact(model, (3, 1))


def test_flatten_and_dense_after_convolutions():
    model = layered(
        (16, 16, 16, 2),
        layers.Conv3D(4, 3, strides=2, padding="same"),
        layers.LeakyReLU(),
        layers.Flatten(),
        layers.Dense(8, "relu"),
        layers.Dense(4),
    )
    assert_exact(model, (2, 2, 1), batch=1, gathers={"Flatten"})


@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50"])
def test_backbones_of_keras_applications(name):
    keras.utils.set_random_seed(1)
    make = getattr(keras.applications, name)
    model = make(include_top=False, weights=None, input_shape=(64, 64, 3))
    # Larger weights make a network this deep chaotic.
    assert_exact(model, (2, 1), batch=2, tolerance=1e-9, nudge=0.01)


def test_unet_with_an_encoder():
    encoder = {"encoder": "MobileNetV2", "encoder_options": {"alpha": 0.35}}
    model = unet.build(image_shape=(64, 32, 1), num_classes=3, filters=2, levels=3, **encoder)
    assert_exact(model, (2, 1), tolerance=1e-9, nudge=0.01)


def test_an_encoder_that_is_frozen():
    model = with_encoder.build(image_shape=(16, 8, 2), num_classes=3)
    model.get_layer("encoder").trainable = False
    assert_exact(model, (2, 2))


class Plain(keras.Model):
    """A model of the user's own, whose call only uses layers."""

    def __init__(self):
        super().__init__()
        self.first = layers.Conv2D(4, 3, padding="same", activation="relu")
        self.drop = layers.Dropout(0.5, seed=3)
        self.last = layers.Conv2D(3, 3, padding="same")

    def call(self, inputs, training=False):
        tensor = self.drop(self.first(inputs), training=training)
        return self.last(tensor) + (0.5 if training else 0.0)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_of_the_users_own_class(training):
    x = tf.random.stateless_normal((2, 16, 8, 2), [1, 2], dtype=tf.float64)
    keras.utils.set_random_seed(1)
    model = Plain()
    model(x)
    state = [variable.numpy() for variable in model.variables]
    expected = model(x, training=training)
    mesh, bounds = Mesh(split=(3, 1)), part_bounds((16, 8), (3, 1))

    def device(group):
        twin = Plain()
        twin(x)
        for variable, value in zip(twin.variables, state, strict=True):
            variable.assign(value)
        network = SplitNetwork(model=twin, mesh=mesh, bounds=bounds, group=lambda: group)
        network.install()
        part = twin(cut(group, x, bounds).tensor, training=training)
        np.testing.assert_array_equal(twin(x, training=False), model(x, training=False))
        network.uninstall()
        return part

    made = tf.concat(Threads(mesh).run(device), axis=1)
    np.testing.assert_allclose(made, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (("model", "loss"), ""),
        (("loss",), "does not call the model, so it would run its layers on each part"),
        (("model",), "does not call the compiled loss"),
    ],
)
def test_a_step_that_goes_around_the_model_or_its_loss_is_refused(calls, message):
    mesh, bounds = Mesh(split=(2, 1)), part_bounds((16, 8), (2, 1))
    twins = [layered((16, 8, 1), layers.Conv2D(3, 1)) for _ in range(mesh.parts)]

    def device(group):
        model = twins[group.device]
        network = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: group)
        network.install()
        loss = losses.CrossEntropy()
        split_loss(loss, network)
        image = tf.zeros((1, 8, 8, 1))
        with network.traced_step():
            logits = model(image) if "model" in calls else model.layers[-1](image)
            if "loss" in calls:
                loss.call(tf.zeros((1, 8, 8)), logits)
        if not message:
            network.check_calls()
            return
        with pytest.raises(ValueError, match=message):
            network.check_calls()

    Threads(mesh).run(device)


def test_several_outputs_are_refused():
    model = with_encoder.build(image_shape=(16, 8, 2), num_classes=2, supervised=True)
    mesh, bounds = Mesh(split=(2, 1)), part_bounds((16, 8), (2, 1))
    network = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: None)
    network.install()
    with pytest.raises(ValueError, match="has 2 outputs in training, and split needs one"):
        model(tf.zeros((1, 8, 8, 2)), training=True)


class SquaredError(keras.Loss):
    """A loss of the user's own: one value for each voxel."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.square(y_pred - y_true[..., None]), -1)


class Largest(keras.Loss):
    """A loss of the user's own, of which nobody knows how parts go together."""

    def call(self, y_true, y_pred):
        flat = tf.reshape(y_pred - y_true[..., None], [y_pred.shape[0], -1])
        return tf.reduce_max(flat, axis=1)


def probabilities(y_true, y_pred):
    truth = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), y_pred.shape[-1])
    return keras.ops.softmax(y_pred, axis=-1), keras.ops.cast(truth, y_pred.dtype)


def negative_logs(y_true, y_pred):
    """Return the cross-entropy of each voxel."""
    p, t = probabilities(y_true, y_pred)
    return -keras.ops.sum(keras.ops.log(p + 1e-6) * t, -1)


def dice_of_each_class(y_true, y_pred):
    p, t = probabilities(y_true, y_pred)
    return 1 - 2 * keras.ops.sum(p * t, (1, 2)) / (keras.ops.sum(p, (1, 2)) + 1)


def mean_of_each_row(y_true, y_pred):
    return keras.ops.square(keras.ops.mean(negative_logs(y_true, y_pred), 2))


def more_at_borders(y_true, y_pred):
    _, t = probabilities(y_true, y_pred)
    inside, outside = (
        keras.ops.max_pool(mask, 5, 1, padding="same") for mask in (t[..., 1:], 1 - t[..., 1:])
    )
    return negative_logs(y_true, y_pred) * keras.ops.sum(1 + 4 * (inside + outside), -1)


def balanced(y_true, y_pred):
    _, t = probabilities(y_true, y_pred)
    share = keras.ops.sum(t * keras.ops.mean(t, (1, 2), keepdims=True), -1)
    return negative_logs(y_true, y_pred) / (share + 0.05)


def of_pooled(y_true, y_pred):
    return negative_logs(y_true, keras.ops.average_pool(y_pred, 3, 1, padding="same"))


def unsteady(y_true, y_pred):
    steps = y_pred[:, 1:] - y_pred[:, :-1]
    return keras.ops.pad(keras.ops.abs(steps), [(0, 0), (0, 1), (0, 0), (0, 0)])


def hardest(y_true, y_pred):
    values = negative_logs(y_true, y_pred)
    return values * keras.ops.cast(
        values > keras.ops.mean(values, (1, 2), keepdims=True), "float32"
    )


def with_channel(y_true, y_pred):
    return negative_logs(y_true, y_pred)[..., None]


class Given(keras.Loss):
    """A function as a loss."""

    def __init__(self, function, **options):
        super().__init__(name=function.__name__, reduction="sum_over_batch_size")
        self.function = function

    def call(self, y_true, y_pred):
        return self.function(y_true, y_pred)

    def get_config(self):
        return {"function": self.function}


@keras.saving.register_keras_serializable(package="tests")
class MoreThanDice(losses.DiceCrossEntropy):
    """A loss of tfunet's with a term that its parts know nothing of."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) + keras.ops.max(y_pred, axis=(1, 2, 3))


def of_regions(name):
    return RegionLoss(losses.make(name, {}), [(1, 2), (2,), (1,)], 3, name=f"{name}_of_regions")


@pytest.mark.parametrize(
    ("loss", "gathers", "ignored"),
    [
        # The largest values and the centre lines are those of the whole sample.
        *((losses.make(name, {}), "topk" in name or name == "cldice", None) for name in LOSSES),
        (losses.make("tversky", {"background": True}), False, None),
        (of_regions("dice_crossentropy"), False, None),
        (of_regions("cldice"), True, None),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), False, None),
        (SquaredError(), False, None),
        (Largest(), True, None),
        (MoreThanDice(), True, None),
        (RegionLoss(MoreThanDice(), [(1, 2), (2,), (1,)], 3), True, None),
        (Given(with_channel), False, None),
        (Given(negative_logs), False, 2),
        *(
            (Given(function), True, None)
            for function in (
                *(dice_of_each_class, mean_of_each_row, more_at_borders, balanced, of_pooled),
                *(unsteady, hardest),
            )
        ),
        (losses.make("dice_crossentropy", {"class_weights": [1.0, 2.0, 5.0]}), False, 2),
        (losses.make("topk_crossentropy", {}), True, 2),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), False, 2),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_losses_of_whole_samples(loss, gathers, ignored):
    keras.config.set_floatx("float32")
    logits = tf.random.stateless_normal((2, 17, 8, 3), [1, 2])
    mask = tf.random.stateless_uniform((2, 17, 8), [3, 4], 0, 3, tf.int32)
    kind = type(loss)

    def value_and_gradient(made, given, masks):
        with tf.GradientTape() as tape:
            tape.watch(given)
            value = losses.per_sample(made, masks, given)
        return value, tape.gradient(value, given)

    def ignoring(made):
        if ignored is not None:
            ignore_in_loss(made, ignored)
        return made

    whole = ignoring(kind.from_config(loss.get_config()))
    expected, slope = value_and_gradient(whole, logits, mask)
    mesh, bounds = Mesh(split=(3, 2)), part_bounds((17, 8), (3, 2))
    model = layered((17, 8, 3), layers.Identity())

    def device(group):
        network = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: group)
        own = kind.from_config(loss.get_config())
        split_loss(own, network)
        ignoring(own)
        part = cut(group, mask[..., None], bounds).tensor[..., 0]
        value, back = value_and_gradient(own, cut(group, logits, bounds).tensor, part)
        rows = cut(group, slope, bounds).tensor
        np.testing.assert_allclose(back / mesh.parts, rows, atol=2e-7)
        return value, bool(network.gathered)

    for value, gathered in Threads(mesh).run(device):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert gathered == gathers


def total_variation(model, x, y, y_pred):
    return 3 * keras.ops.mean(keras.ops.abs(y_pred[:, 1:] - y_pred[:, :-1]))


def mean_prediction(model, x, y, y_pred):
    return 5 * keras.ops.mean(keras.ops.square(keras.ops.mean(y_pred, axis=(1, 2))))


def like_the_image(model, x, y, y_pred):
    return keras.ops.square(
        keras.ops.mean(x) - keras.ops.mean(y_pred[..., 0] * keras.ops.cast(y, "float64"))
    )


def as_mirrored(model, x, y, y_pred):
    other = keras.ops.flip(model(keras.ops.flip(x, 1), training=True), 1)
    return keras.ops.mean(keras.ops.square(y_pred - other))


class WithTerm(keras.Model):
    term = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        own = type(self).term(self, x, y, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight) + own

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"rows": keras.ops.cast(keras.ops.shape(y_pred)[1], "float64")}


@pytest.mark.parametrize("set_on_model", [False, True])
@pytest.mark.parametrize("term", [total_variation, mean_prediction, like_the_image, as_mirrored])
def test_a_compute_loss_of_the_models_own_has_whole_samples(term, set_on_model):
    shape, split = (9, 8, 2), (3, 2)
    x = tf.random.stateless_normal((2, *shape), [1, 2], dtype=tf.float64)
    y = tf.random.stateless_uniform((2, *shape[:-1]), [3, 4], 0, 3, tf.int32)

    def build():
        keras.utils.set_random_seed(1)
        image = keras.Input(shape)
        output = layers.Conv2D(3, 3, padding="same", activation="tanh", kernel_regularizer="l2")
        kind = keras.Model if set_on_model else type("Own", (WithTerm,), {"term": term})
        model = kind(image, output(image))
        loss = losses.make("dice_crossentropy", {})
        model.compile("sgd", loss=loss)
        if set_on_model:
            own = model.compute_loss
            model.compute_loss = lambda x, y, y_pred, sample_weight=None, training=True: (
                own(x, y, y_pred) + term(model, x, y, y_pred)
            )
        return model, loss

    def loss_and_gradients(model, x, y):
        with tf.GradientTape() as tape:
            value = model._compute_loss(x=x, y=y, y_pred=model(x, training=True))
        return value, tape.gradient(value, model.trainable_variables)

    expected, slopes = loss_and_gradients(build()[0], x, y)
    mesh, bounds = Mesh(split=split), part_bounds(shape[:-1], split)
    twins = [build() for _ in range(mesh.parts)]

    def device(group):
        model, loss = twins[group.device]
        network = SplitNetwork(model=model, mesh=mesh, bounds=bounds, group=lambda: group)
        network.install()
        split_loss(loss, network)
        split_own_methods(model, network, 2**20)
        own_y = cut(group, y[..., None], bounds).tensor[..., 0]
        own_x = cut(group, x, bounds).tensor
        value, gradients = loss_and_gradients(model, own_x, own_y)
        assert "compute_loss" in network.summary()
        assert network.calls["loss"] >= 1  # It need not call the compiled loss.
        if not set_on_model:
            metrics = model.compute_metrics(own_x, own_y, model(own_x), sample_weight=None)
            assert metrics["rows"] == 9
        return value, [group.sum(gradient) / mesh.parts for gradient in gradients]

    for value, gradients in Threads(mesh).run(device):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        for ours, theirs in zip(gradients, slopes, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


NORMALIZATIONS = {
    "instance": lambda: layers.GroupNormalization(-1),
    "group": lambda: layers.GroupNormalization(2),
    "batch": layers.BatchNormalization,
    "synchronized": lambda: layers.BatchNormalization(synchronized=True),
}


@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_what_a_convolution_needs_of_others_travels_with_the_statistics(kind):
    def count(between):
        model = layered((12, 4), layers.Conv1D(4, 3, padding="same"), *between)
        mesh = Mesh(split=(3,))

        def device(group):
            twin = keras.models.clone_model(model)
            network = SplitNetwork(
                model=twin, mesh=mesh, bounds=((0, 4, 8, 12),), group=lambda: group
            )
            own = cut(group, tf.ones((2, 12, 4), tf.float64), network.bounds)
            with tf.GradientTape() as tape:
                made = network.run(twin, own, group, True).tensor
            tape.gradient(made, twin.trainable_variables)
            return group.traffic.exchanges

        return set(Threads(mesh).run(device))

    following = [layers.LeakyReLU(), layers.Conv1D(4, 5, padding="same")]
    # For each convolution one, and for the second its gradient. None for the normalization.
    assert count(following) == count([NORMALIZATIONS[kind](), *following]) == {3}


@pytest.mark.parametrize("kind", NORMALIZATIONS)
@pytest.mark.parametrize(("rows", "parts"), [(12, 2), (11, 3), (7, 3), (5, 4)])
def test_normalized_margins_are_exact(kind, rows, parts):
    """Also where parts are thinner than what a convolution reads, and where several read."""
    image = keras.Input((rows, 6, 4))
    tensor = layers.Conv2D(4, 3, padding="same")(image)
    tensor = layers.PReLU(shared_axes=[1, 2])(NORMALIZATIONS[kind]()(tensor))
    wide = layers.Conv2D(4, (4, 3), padding="same")(tensor)
    dilated = layers.Conv2D(4, 3, dilation_rate=2, padding="same")(tensor)
    tensor = layers.Add()([wide, dilated, tensor, layers.Conv2D(4, 1)(tensor)])
    tensor = layers.MaxPooling2D((3, 1), strides=1, padding="same")(NORMALIZATIONS[kind]()(tensor))
    assert_exact(keras.Model(image, tensor), (parts, 1))
