"""What layers add to the loss, where the replicas of a process share the layers."""

import threading
from collections.abc import Iterable
from typing import Any, final

import keras

from tfunet.inside.of_keras import all_layers, keep_losses_in


def keep_terms_apart(model: keras.Model) -> None:
    """Give each replica of this process its own terms of `model.losses`.

    Replicas are traced in threads of their own, in turns: while one waits for an exchange, another
    calls the same layers, and would add its terms to those of the first, or clear them.
    """
    for layer in all_layers(model):
        keep_losses_in(layer, _OfThread())


@final
class _OfThread(threading.local):
    """As a list, with the values of each thread for itself."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def extend(self, values: Iterable[Any]) -> None:
        self._values.extend(values)

    def clear(self) -> None:
        self._values.clear()

    def __getitem__(self, index: slice) -> list[Any]:
        return self._values[index]
