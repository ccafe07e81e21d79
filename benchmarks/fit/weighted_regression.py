"""A regression on arrays whose samples count differently."""

import keras
import numpy as np
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()

rng = np.random.default_rng(1)
x = rng.normal(size=(185, 6)).astype("float32")
y = (x @ rng.normal(size=6) + 0.3 * x[:, 0] ** 2).astype("float32")
weights = rng.uniform(0.1, 3, size=185).astype("float32")

model = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.001)),
        layers.Dense(8, activation="tanh"),
        layers.Dense(1),
    ]
)
rate = keras.optimizers.schedules.ExponentialDecay(0.02, decay_steps=5, decay_rate=0.9)
model.compile(
    optimizer=keras.optimizers.SGD(rate, momentum=0.9, gradient_accumulation_steps=2),
    loss="mse",
    metrics=["mae"],
    weighted_metrics=["mse", keras.metrics.RootMeanSquaredError(name="rmse")],
)
history = model.fit(
    x[:150],
    y[:150],
    sample_weight=weights[:150],
    batch_size=16,
    epochs=3,
    validation_data=(x[150:], y[150:], weights[150:]),
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(x[150:], y[150:], sample_weight=weights[150:], return_dict=True),
    predict=model.predict(x[150:]),
)
