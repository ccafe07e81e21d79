"""A callback that changes the weights at a moment."""

import keras
import numpy as np


class Rounding(keras.callbacks.Callback):
    """Rounds the weights at a moment, and keeps the logs of the epochs.

    Args:
        when: Name of the method of a callback.
        stops_at: The epoch, from 0, that it ends training with.
    """

    def __init__(self, when="", stops_at=None):
        super().__init__()
        self.when, self.stops_at, self.epochs = when, stops_at, []

    def on_test_begin(self, logs=None):
        self._round("on_test_begin")

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))
        self._round("on_epoch_end")
        self.model.stop_training = epoch == self.stops_at

    def on_train_end(self, logs=None):
        assert logs == self.epochs[-1]
        self._round("on_train_end")

    def _round(self, when):
        if when == self.when:
            for weight in self.model.trainable_weights:
                weight.assign(np.round(keras.ops.convert_to_numpy(weight), 1))
