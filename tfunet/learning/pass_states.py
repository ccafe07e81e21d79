"""States that the passes of a step change, such as the vector of a spectral normalization.

One device changes them once a step. So each pass begins with the states of the step before, and
the step ends with the mean of those that its passes leave: exact for what hangs on the weights
only, and for moving means over a batch.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.inside.of_keras import all_layers


def changed_by_passes(operations: Iterable[Any]) -> list[Any]:
    """Return the states of layers, and of those inside them, that a pass may change.

    Batch normalisation is left out: its statistics move with each pass, as the docs say.
    """
    found = states_of(operations)
    kept_apart = {
        id(variable)
        for layer in _with_inner(operations)
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.variables
    }
    return [variable for variable in found if id(variable) not in kept_apart]


def states_of(operations: Iterable[Any]) -> list[Any]:
    """Return the states of layers, and of those inside them, that a step may change."""
    inner = _with_inner(operations)
    found = {id(variable): variable for layer in inner for variable in layer.non_trainable_weights}
    # A layer that does not learn has weights here that no pass changes.
    frozen = {id(variable) for layer in inner if not layer.trainable for variable in layer.weights}
    return [variable for key, variable in found.items() if key not in frozen]


def _with_inner(operations: Iterable[Any]) -> list[Any]:
    layers = [operation for operation in operations if isinstance(operation, keras.layers.Layer)]
    return [inner for layer in layers for inner in all_layers(layer)]


@final
class PassStates:
    """States over the passes of one step on one device."""

    def __init__(self, variables: Iterable[Any]) -> None:
        self._variables = list(variables)
        self.begin()

    def begin(self) -> None:
        """Forget the step before."""
        self._first: list[tf.Tensor] | None = None
        self._after: list[list[tf.Tensor]] = []

    @contextlib.contextmanager
    def one_pass(self) -> Iterator[None]:
        """Begin the pass in the block with the states of the step before."""
        if self._first is None:
            self._first = self._now()
        else:
            self._assign(self._first)
        yield
        self._after.append(self._now())

    def end(self) -> None:
        """Give the states the mean of what the passes left; whole numbers those of the last one."""
        if len(self._after) > 1:
            self._assign(
                [
                    tf.add_n(list(each)) / len(each) if each[0].dtype.is_floating else each[-1]
                    for each in zip(*self._after, strict=True)
                ]
            )
        self.begin()

    def _now(self) -> list[tf.Tensor]:
        return [tf.identity(variable.value) for variable in self._variables]

    def _assign(self, values: Iterable[tf.Tensor]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
