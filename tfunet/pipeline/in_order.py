"""Exchanges of a step that follow one another, though nothing else orders them."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import tensorflow as tf

from tfunet.backend import Exchange


@final
class InOrder:
    """Exchanges one after the other."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._graph: Any = None
        self._after: list[tf.Operation] = []

    def last(self) -> list[tf.Operation]:
        """Return the operations of the last exchange of this graph."""
        return self._after if tf.compat.v1.get_default_graph() is self._graph else []

    def __call__(
        self, sent: Mapping[int, tf.Tensor], received: Mapping[int, Sequence[int]], dtype: tf.DType
    ) -> dict[int, tf.Tensor]:
        if tf.executing_eagerly():
            return self._exchange(sent, received, dtype)
        graph = tf.compat.v1.get_default_graph()
        after = self.last()
        before = len(graph.get_operations())
        with tf.control_dependencies(after):
            came = self._exchange(sent, received, dtype)
        self._graph, self._after = graph, graph.get_operations()[before:] or after
        return came
