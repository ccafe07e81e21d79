"""Tensors whose shape is not known when the step is traced are kept, and said once."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from faulty import batches
from keras import layers
from small_fits import fitted, support

from tfunet.swap import LargeModelSupport


class Chosen(layers.Layer):
    """Scales by what it finds at some of the pixels: how many, only the step knows."""

    def call(self, x):
        kept = tf.boolean_mask(x, x[..., 0] > 0)
        return x * tf.reduce_mean(tf.nn.softplus(kept) ** 2)


def with_unknown(kind):
    """Return a model, and a data set whose batches have a size that no trace knows, or do."""
    keras.utils.set_random_seed(1)
    image = keras.Input((None, None, 1) if kind == "shape" else (32, 32, 1))
    x = image
    for activation in ("relu", "tanh"):
        x = layers.Conv2D(8, 3, padding="same", activation=activation)(x)
        x = Chosen()(x) if kind == "mask" else x
    model = keras.Model(image, layers.Conv2D(2, 1)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, jit_compile=False)
    image, mask = batches(7 if kind == "batch" else 8)
    data = tf.data.Dataset.from_tensor_slices((image, mask))
    data = data.batch(2, drop_remainder=kind == "mask")
    if kind == "shape":
        shapes = (tf.TensorSpec((None, None, None, 1)), tf.TensorSpec((None, None, None), tf.int32))
        data = tf.data.Dataset.from_generator(lambda: iter(list(data_)), output_signature=shapes)
        data_ = [(image[at : at + 2], mask[at : at + 2]) for at in range(0, 8, 2)]
    return model, data


class Told(layers.Layer):
    """Multiplies by what a function in Python says, of which no trace knows even the rank."""

    def call(self, x):
        return x * tf.reshape(tf.numpy_function(lambda: np.float32(2), [], tf.float32), ())


def test_tensor_of_unknown_rank_is_in_nobodys_way():
    losses = []
    for callbacks in ([LargeModelSupport(0, weights="none", threshold_bytes=256, verbose=0)], []):
        keras.utils.set_random_seed(1)
        image = keras.Input((32, 32, 1))
        x = Told()(layers.Conv2D(8, 3, padding="same", activation="tanh")(image))
        model = keras.Model(image, layers.Conv2D(2, 1)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="sgd", loss=loss, jit_compile=False)
        history = model.fit(*batches(4), batch_size=2, verbose=0, callbacks=callbacks)
        losses += history.history["loss"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("threshold_bytes", [0, 256])
@pytest.mark.parametrize("kind", ["shape", "batch", "mask"])
def test_tensor_of_unknown_shape_is_kept_and_said_once(kind, threshold_bytes, capsys, tmp_path):
    both = []
    callback = LargeModelSupport(
        0 if kind == "mask" else "64MiB",
        weights="none",
        host=0,
        disk=tmp_path,
        threshold_bytes=threshold_bytes,
    )
    for callbacks in ([callback], []):
        model, data = with_unknown(kind)
        with _quiet():
            history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        both.append((history.history["loss"], model.get_weights()))
    (losses, weights), (plain_losses, plain_weights) = both
    assert len(losses) == 2
    assert losses == plain_losses
    for a, b in zip(weights, plain_weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert bool(callback.plans[-1].decisions) == (kind == "mask")
    shown = capsys.readouterr().out
    assert shown.count("have a shape that is not known when the step is traced") == 1
    assert shown.count("all of known size fits") == (kind != "mask")


def test_of_several_traces_of_a_training_one_says_what_is_not_known(capsys):
    model, data = with_unknown("mask")
    image, mask = next(iter(data.unbatch().batch(8)))
    callback = support(threshold_bytes=256, verbose=1)
    for times in (1, 2):
        with callback.on(model):
            for samples in (2, 3):
                model.train_on_batch(image[:samples], mask[:samples])
        assert len(callback.plans) == 2
        assert capsys.readouterr().out.count("shape that is not known") == 1, times


def test_where_all_shapes_are_known_nothing_is_said_of_them(capsys):
    fitted([support(verbose=1)])
    assert "not known" not in capsys.readouterr().out


@contextlib.contextmanager
def _quiet():
    """Without Keras's warning that a data set of unknown length has ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", ["shape", "batch", "mask"])
def test_weights_leave_where_shapes_are_unknown(kind):
    both = []
    for callbacks in ([LargeModelSupport(0, weights="weights", threshold_bytes=0, verbose=0)], []):
        model, data = with_unknown(kind)
        with _quiet():
            both.append(model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history["loss"])
    np.testing.assert_allclose(*both, rtol=1e-6)
