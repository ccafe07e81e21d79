"""An LSTM continues a series whose windows come from a PyDataset."""

import math

import keras
import numpy as np
from keras import layers
from recorded import arguments, record

import tfunet

tfunet.distribute()

keras.utils.set_random_seed(1)
options = arguments()
WINDOW = 16


class Windows(keras.utils.PyDataset):
    """Batches of windows, in another order each epoch."""

    def __init__(self, series, batch_size, **settings):
        super().__init__(**settings)
        self.series, self.batch_size = series, batch_size
        self.rng = np.random.default_rng(1)
        self.starts = np.arange(len(series) - WINDOW)

    def __len__(self):
        return math.ceil(len(self.starts) / self.batch_size)

    def __getitem__(self, index):
        starts = self.starts[index * self.batch_size : (index + 1) * self.batch_size]
        windows = self.series[starts[:, None] + np.arange(WINDOW)]
        return windows[..., None], self.series[starts + WINDOW][:, None]

    def on_epoch_end(self):
        self.rng.shuffle(self.starts)


rng = np.random.default_rng(2)
times = np.arange(180)
series = (np.sin(times / 5) + rng.normal(scale=0.1, size=180)).astype("float32")
train, val = Windows(series[:135], 16, workers=2), Windows(series[135:], 8)

model = keras.Sequential([keras.Input((WINDOW, 1)), layers.LSTM(8), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
# No epoch is so much better that either of these is content: the rate falls, and the third epoch
# is the last.
history = model.fit(
    train,
    validation_data=val,
    epochs=6,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping(patience=2, min_delta=10.0, restore_best_weights=True),
    ],
)
record(
    options.out,
    model,
    history=history.history,
    evaluate=model.evaluate(val, return_dict=True),
    predict=model.predict(val),
)
