"""One small network, trained in the way that --variation names."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

VARIATIONS = (
    "adam",
    "steps_per_execution",
    "run_eagerly",
    "float16",
    "bfloat16",
    "train_on_batch",
    "generator",
    "infinite",
    "jit_compile",
    "sum_of_losses",
    "clipped",
    "own_callback",
)
options = arguments(variation=VARIATIONS)
variation = options.variation
keras.utils.set_random_seed(1)
if variation in ("float16", "bfloat16"):
    keras.mixed_precision.set_global_policy(f"mixed_{variation}")

EPOCHS, BATCH, SAMPLES = 2, 8, 75
rng = np.random.default_rng(1)
x = rng.normal(size=(90, 5)).astype("float32")
y = np.tanh(x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype("float32")
test = x[SAMPLES:], y[SAMPLES:]

model = keras.Sequential(
    [
        keras.Input((5,)),
        layers.Dense(12, activation="tanh"),
        layers.Dense(1, dtype="float32"),
    ]
)
ways = {
    "steps_per_execution": {"steps_per_execution": 4},
    "run_eagerly": {"run_eagerly": True},
    "jit_compile": {"jit_compile": "auto"},
}
optimizers = {
    "adam": keras.optimizers.Adam(0.01),
    "clipped": keras.optimizers.SGD(0.1, global_clipnorm=0.5),
    "sum_of_losses": keras.optimizers.SGD(0.01),
}
model.compile(
    optimizer=optimizers.get(variation, keras.optimizers.SGD(0.1)),
    loss=keras.losses.MeanSquaredError(
        reduction="sum" if variation == "sum_of_losses" else "sum_over_batch_size"
    ),
    metrics=["mae"],
    **ways.get(variation, {}),
)


class Lines(keras.callbacks.Callback):
    """Appends a line to a file after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if self.is_chief:  # All processes have a callback of one's own.
            with (options.out / "lines.txt").open("a") as file:
                file.write(f"{epoch} {logs['loss']:.4f}\n")


def batches():
    """Yield the batches of an epoch."""
    for start in range(0, SAMPLES, BATCH):
        rows = slice(start, min(start + BATCH, SAMPLES))
        yield x[rows], y[rows]


def forever():
    """Yield the batches of one epoch after the other."""
    while True:
        yield from batches()


steps = len(list(batches()))
if variation == "train_on_batch":
    told = {"loss": [], "mae": []}
    for _ in range(EPOCHS):
        for batch in batches():
            for name, value in model.train_on_batch(*batch, return_dict=True).items():
                told[name].append(value)
elif variation == "generator":
    told = model.fit(forever(), steps_per_epoch=steps, epochs=EPOCHS).history
elif variation == "infinite":
    data = tf.data.Dataset.from_tensor_slices((x[:SAMPLES], y[:SAMPLES]))
    data = data.shuffle(SAMPLES, seed=1).repeat().batch(BATCH)
    told = model.fit(data, steps_per_epoch=steps, epochs=EPOCHS).history
else:
    told = model.fit(
        x[:SAMPLES],
        y[:SAMPLES],
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=test,
        callbacks=[Lines()] if variation == "own_callback" else None,
    ).history
record(
    options.out,
    model,
    history=told,
    evaluate=model.evaluate(*test, return_dict=True),
    predict=model.predict(test[0]),
)
