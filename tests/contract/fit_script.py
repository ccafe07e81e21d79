"""A script of the user's own: many small models, each trained in another way by Keras's `fit`.

`fit_script.py FOLDER [CASE ...]` writes what came out in each process to FOLDER/result-<index>.npz,
by the names of the cases. With TFUNET_TEST_DISTRIBUTE, arguments for distribute() as JSON.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from fit_models import Adversaries, Autoencoder
from keras import callbacks, layers
from kill import KillAt

import tfunet

own = tfunet.distribute(**json.loads(os.environ.get("TFUNET_TEST_DISTRIBUTE", "{}")))
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
results = {}
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def keep(model, **values):
    """Keep what came out, and all that training has left in a model and its optimizer."""
    for key, value in values.items():
        parts = getattr(value, "history", value)
        parts = parts if isinstance(parts, dict) else {"": parts}
        results.update({f"{name}/{key}/{part}": each for part, each in parts.items()})
    left = [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
    results.update({f"{name}/left/{index}": each.numpy() for index, each in enumerate(left)})


def of_numbers(*inner, inputs=3):
    return keras.Sequential([keras.Input((inputs,)), *inner])


def numbers(draw, rows):
    x = draw.normal(size=(rows, 3)).astype("float32")
    return x, x.sum(1, keepdims=True)


@case
def rows_left_over(draw):
    """The last batch has one row, and so has that of the validation data."""
    model = of_numbers(layers.Dense(4, "tanh"), layers.Dropout(0.4), layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    x, y = numbers(draw, 17)
    fit = model.fit(x, y, batch_size=4, epochs=2, validation_split=0.23, verbose=2)
    tested = model.evaluate(x, y, batch_size=5, return_dict=True, verbose=0)
    keep(model, fit=fit, tested=tested, predicted=model.predict(x, batch_size=5, verbose=0))


@case
def classes(draw):
    """Weights of classes; layers that are built in fit; and no graph."""
    model = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(3, "softmax")])
    loss, metrics = "sparse_categorical_crossentropy", ["accuracy"]
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, run_eagerly=True)
    x, _ = numbers(draw, 9)
    y = draw.integers(0, 3, 9)
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    keep(model, fit=model.fit(x, y, batch_size=4, class_weight=weights, verbose=0))


@case
def masked(draw):
    """Sequences of a PyDataset with masks and weights, read by threads."""

    class Sequences(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=2)
            self.x = draw.integers(0, 5, (13, 6))
            self.x[:, 0] = 1
            self.y, self.weights = (self.x + 1) % 5, draw.random((13, 6))

        def __len__(self):
            return 3

        def __getitem__(self, index):
            rows = slice(6 * index, 6 * index + 6)
            return self.x[rows], self.y[rows], self.weights[rows]

    words = layers.Embedding(5, 4, mask_zero=True)
    model = keras.Sequential([keras.Input((6,)), words, layers.Dense(5)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss, metrics=["accuracy"], weighted_metrics=["acc"])
    data = Sequences()
    keep(model, fit=model.fit(data, epochs=2, validation_data=data, verbose=0))


@case
def several_steps_in_one(draw):
    """steps_per_execution, accumulated gradients, a schedule, weights, synchronised moments."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    model = of_numbers(
        layers.Dense(4, "tanh", use_bias=False),
        layers.BatchNormalization(synchronized=True),
        layers.Dense(1),
    )
    model.compile(
        keras.optimizers.SGD(rate, gradient_accumulation_steps=2),
        keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        weighted_metrics=["mae"],
        steps_per_execution=2,
    )
    x, y = numbers(draw, 23)
    keep(model, fit=model.fit(x, y, 11, 3, sample_weight=draw.random(23), verbose=0))


@case
def many_ends(draw):
    """Inputs and losses by name, penalties, weights of losses, and metrics with own states."""
    one, other = keras.Input((3,), name="one"), keras.Input((2,), name="other")
    inner = layers.Dense(4, "tanh", kernel_regularizer="l2", activity_regularizer="l1")(one)
    inner = layers.Concatenate()([inner, other])
    ends = {"size": layers.Dense(1)(inner), "kind": layers.Dense(3, "softmax")(inner)}
    model = keras.Model({"one": one, "other": other}, ends)
    model.compile(
        keras.optimizers.SGD(0.1, clipnorm=0.5, weight_decay=0.01),
        {"size": "mse", "kind": "categorical_crossentropy"},
        loss_weights={"size": 0.3, "kind": 2.0},
        metrics={
            "size": ["mae"],
            "kind": [keras.metrics.AUC(), keras.metrics.F1Score(), keras.metrics.OneHotMeanIoU(3)],
        },
    )
    x = {"one": draw.normal(size=(11, 3)), "other": draw.normal(size=(11, 2))}
    y = {"size": draw.normal(size=(11, 1)), "kind": np.eye(3)[draw.integers(0, 3, 11)]}
    weights = {"size": draw.random(11), "kind": draw.random(11)}
    fit = model.fit(x, y, 5, 2, validation_data=(x, y), sample_weight=weights, verbose=0)
    keep(model, fit=fit, predicted=model.predict(x, batch_size=4, verbose=0))


@case
def own_step(draw):
    model = Autoencoder()
    model.compile(keras.optimizers.SGD(0.01))
    x = draw.normal(size=(21, 6)).astype("float32")
    keep(model, fit=model.fit(x, batch_size=10, epochs=2, verbose=0))


@case
def two_optimizers(draw):
    model = Adversaries()
    model.compile()
    samples = draw.normal(size=(20, 4)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(samples).shuffle(100, seed=2).batch(8)
    fit = model.fit(data, epochs=2, verbose=0)
    keep(model, fit=fit, rates=[float(each.learning_rate) for each in model.optimizers])


@case
def endless(draw):
    """Data without an end, and a generator without a length."""
    made = tf.data.Dataset.range(7).map(lambda row: (tf.fill([2], tf.cast(row, "float32")), row))
    model = of_numbers(layers.Dense(1), inputs=2)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    fit = model.fit(made.repeat().batch(5), epochs=2, steps_per_epoch=3, verbose=0)

    def generator():
        while True:
            x = draw.normal(size=(4, 2)).astype("float32")
            yield x, x.sum(1)

    generated = model.fit(generator(), epochs=2, steps_per_epoch=2, verbose=0)
    keep(model, fit=fit, generated=generated)


@case
def predicted_first(draw):
    """A model without weights, which a data set gives it, and a metric of what a step changed."""

    def num_updates(truth, output):
        return tf.zeros_like(output[:, 0]) + tf.cast(model.optimizer.iterations, output.dtype)

    model = keras.Sequential([layers.Dense(2, "tanh"), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[num_updates])
    x, y = numbers(draw, 7)
    predicted = model.predict(x, batch_size=3, verbose=0)
    keep(model, predicted=predicted, fit=model.fit(x, y, batch_size=3, verbose=0))


@case
def batch_by_batch(draw):
    model = of_numbers(layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    x, y = numbers(draw, 7)
    trained = [model.train_on_batch(x[rows], y[rows]) for rows in (slice(0, 4), slice(6, 7))]
    tested = model.test_on_batch(x, y)
    keep(model, trained=trained, tested=tested, predicted=model.predict_on_batch(x[:5]))


@case
def one_mind(draw):
    """Callbacks that stop a fit, change its rate and its weights, and restore the best ones."""

    class Halves(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights([each / 2 for each in self.model.get_weights()])

    model = of_numbers(layers.Dense(4, "tanh"), layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = numbers(draw, 11)
    stops = callbacks.EarlyStopping(patience=2, min_delta=1.0, restore_best_weights=True)
    slows = callbacks.ReduceLROnPlateau(patience=1, min_delta=1.0)
    minds = [Halves(), stops, slows]
    fit = model.fit(x, y, 4, 9, validation_data=(x, y), callbacks=minds, verbose=0)
    assert 0 < stops.stopped_epoch < 8
    keep(model, fit=fit, stopped=stops.stopped_epoch)


@case
def written(draw):
    """Files, which the chief writes; all load what they saved."""
    place = folder / "written"
    model = of_numbers(layers.Dense(4, "tanh"), layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x, y = numbers(draw, 11)
    writers = [
        callbacks.CSVLogger(place / "log.csv"),
        callbacks.ModelCheckpoint(place / "{epoch}.keras"),
        callbacks.ModelCheckpoint(place / "best.weights.h5", "loss", 0, True, True),
        callbacks.TensorBoard(place / "board"),
        callbacks.BackupAndRestore(place / "backup", delete_checkpoint=False),
    ]
    if own.is_chief:
        place.mkdir()
    model.fit(x, y, 4, 2, callbacks=writers, verbose=0)
    model.save(place / "model.keras")
    again = keras.models.load_model(place / "model.keras")
    model.load_weights(place / "best.weights.h5")
    keep(model)
    fit = again.fit(x, y, 4, 1, verbose=0)
    keep(again, again=fit, first=keras.models.load_model(place / "1.keras").predict(x, verbose=0))


@case
def moments_apart(draw):
    """Moments of each replica: not those of one device, but the same in all processes."""
    model = of_numbers(layers.BatchNormalization(), layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    keep(model, fit=model.fit(*numbers(draw, 17), batch_size=8, epochs=2, verbose=0))


def _of_few_bits(draw, policy):
    inner = layers.Dense(4, "tanh", dtype=policy)
    model = of_numbers(inner, layers.Dense(1, dtype=policy), layers.Activation("linear"))
    optimizer = keras.optimizers.SGD(0.01)
    if policy == "mixed_float16":
        # So small that no gradient is too large for float16: one device has other gradients.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2**8)
    model.compile(optimizer, "mse")
    keep(model, fit=model.fit(*numbers(draw, 11), batch_size=4, epochs=2, verbose=0))


@case
def half_precision(draw):
    _of_few_bits(draw, "mixed_float16")


@case
def brain_floats(draw):
    _of_few_bits(draw, "mixed_bfloat16")


@case
def backed_up(draw):
    """Killed at a step of its second epoch where TFUNET_TEST_KILL says so, and then gone on."""
    model = of_numbers(layers.Dense(4, "tanh"), layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    restore = callbacks.BackupAndRestore(folder / "backup")
    x, y = numbers(draw, 11)
    model.fit(x, y, 4, 3, shuffle=False, callbacks=[restore, KillAt(5)], verbose=0)
    keep(model)


@case
def in_batches(draw):
    """TFUNET_TEST_BATCH says the batch and the rate: batch="replica" makes others of them."""
    size, rate = json.loads(os.environ.get("TFUNET_TEST_BATCH", "[4, 0.1]"))
    model = of_numbers(layers.Dense(4, "tanh"), layers.Dense(1))
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    x, y = numbers(draw, 13)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
    keep(model, fit=model.fit(x, y, batch_size=size, verbose=0), data=model.fit(data, verbose=0))


@case
def images(draw):
    """Masks, and labels of whole images, of which the last batch has one."""
    x = draw.normal(size=(7, 16, 8, 2)).astype("float32")
    entry = keras.Input((16, 8, 2))
    fine = layers.Conv2D(3, 3, padding="same", activation="relu")(entry)
    fine = layers.BatchNormalization(synchronized=True)(fine)
    coarse = layers.Conv2D(4, 3, padding="same", activation="tanh")(layers.MaxPooling2D()(fine))
    both = layers.Concatenate()([fine, layers.UpSampling2D()(coarse)])
    of_places = keras.Model(entry, layers.Conv2D(1, 1)(both))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    of_places.compile(keras.optimizers.SGD(0.1), loss, metrics=["mse"])
    masks = (x.sum(-1, keepdims=True) > 0).astype("float32")
    fit = of_places.fit(x, masks, 3, 2, validation_data=(x, masks), verbose=0)
    keep(of_places, fit=fit, predicted=of_places.predict(x, batch_size=4, verbose=0))
    of_images = keras.Sequential(
        [
            keras.Input((16, 8, 2)),
            layers.Conv2D(3, 3, strides=2, activation="tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    of_images.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labelled = of_images.fit(x, np.arange(7) % 3, 3, sample_weight=draw.random(7), verbose=0)
    results["images/labelled/loss"] = np.array(labelled.history["loss"])


for name in sys.argv[2:] or CASES:
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    CASES[name](np.random.default_rng(0))

np.savez(folder / f"result-{own.process_index}.npz", **results)
