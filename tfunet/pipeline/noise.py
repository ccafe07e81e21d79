"""Dropout and noise over micro-batches: the numbers that one device draws for the whole batch.

A random layer of Keras draws for a whole batch at once, and counts its draws. So every micro-batch
of a step draws the whole batch's numbers with the same count, and takes its rows of them.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# What these give is the input times a draw, or the input plus a draw.
_FACTORS = (keras.layers.Dropout, keras.layers.GaussianDropout)  # SpatialDropout is a Dropout.
_TERMS = (keras.layers.GaussianNoise,)
_NOISE = (*_FACTORS, *_TERMS, keras.layers.AlphaDropout)


def is_noise(operation: Any) -> bool:
    """Whether an operation is a layer of Keras that draws random numbers for each value."""
    is_keras = type(operation).__module__.split(".")[0] == "keras"
    return is_keras and isinstance(operation, _NOISE)


def draws_otherwise(layer: Any) -> bool:
    """Whether a layer draws random numbers in another way: anew for each micro-batch."""
    return not is_noise(layer) and bool(_generators(layer))


def with_noise_of_batch(layer: Any, value: tf.Tensor, number: int, count: int) -> tf.Tensor:
    """Return what a layer of noise makes of micro-batch `number` of `count`."""
    if count == 1:
        return layer(value, training=True)
    rows = value.shape[0]
    own = slice(number * rows, (number + 1) * rows)
    if isinstance(layer, keras.layers.AlphaDropout):
        width = [(number * rows, (count - 1 - number) * rows), *[(0, 0)] * (value.shape.rank - 1)]
        return layer(tf.pad(value, width), training=True)[own]
    value = tf.cast(value, layer.compute_dtype)
    whole = (count * rows, *value.shape[1:])
    # Only these rows are kept for the gradient.
    if isinstance(layer, _TERMS):
        return value + layer(tf.zeros(whole, value.dtype), training=True)[own]
    return value * layer(tf.ones(whole, value.dtype), training=True)[own]


class Draws:
    """The counts of the random layers of a stage: the same in every micro-batch of a step."""

    def __init__(self, layers: Sequence[Any]) -> None:
        found = [generator.state for layer in layers for generator in _generators(layer)]
        self._states = list({id(state): state for state in found}.values())
        self._first: list[tf.Tensor] = []

    def begin(self) -> None:
        """Begin a step."""
        self._first = []

    def repeat(self, number: int) -> None:
        """Let micro-batch `number` draw what the first one drew."""
        if number == 0:
            self._first = [tf.identity(state.value) for state in self._states]
        for state, value in zip(self._states, self._first, strict=True):
            if number:
                state.assign(value)


def _generators(layer: Any) -> list[Any]:
    if not isinstance(layer, keras.layers.Layer):
        return []
    return [one for inner in layer._flatten_layers() for one in inner._seed_generators]
