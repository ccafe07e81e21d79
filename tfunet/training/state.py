"""The variables of a run: broadcast, averaged, and kept in checkpoints."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology


def broadcast(backend: Backend, topology: Topology, variables: Sequence[Any]) -> None:
    """Give every process the chief's values, exactly."""
    if topology.process_count == 1:
        return
    for variable in variables:
        value = np.asarray(keras.ops.convert_to_numpy(variable.value))
        # float64 holds every value of the types that Keras has, but 64-bit integers over 2^53.
        wide = value.astype(np.float64) if topology.is_chief else np.zeros(value.shape)
        variable.assign(backend.sum(wide).astype(value.dtype))


def average_statistics(backend: Backend, topology: Topology, model: keras.Model) -> None:
    """Give every process the mean of the moving statistics (of batch normalisation, say).

    Processes see different samples, so that statistics that are not synchronised differ; the
    chief's alone would be saved.
    """
    if topology.process_count == 1:
        return
    for variable in model.non_trainable_variables:
        if "float" in str(variable.dtype):
            value = keras.ops.convert_to_numpy(variable.value).astype(np.float64)
            variable.assign((backend.sum(value) / topology.process_count).astype(variable.dtype))


class MetricState:
    """Sums the state of a model's metrics over all replicas, and gives results from the sum.

    Made before training and used after the first step: Keras makes the variables of compiled
    metrics only then.
    """

    def __init__(self, backend: Backend, model: keras.Model) -> None:
        self._backend = backend
        self._model = model

        def replica_state() -> tf.Tensor:
            values = [tf.convert_to_tensor(one.value) for one in self._variables()]
            return tf.concat([tf.cast(tf.reshape(one, [-1]), tf.float64) for one in values], 0)

        self._read = tf.function(lambda: backend.run(replica_state))

    def total(self, before: np.ndarray | None) -> np.ndarray:
        """Return the state summed over all replicas, `before` of each process added."""
        local = self._read().numpy().sum(axis=0)
        return self._backend.sum(local if before is None else local + before)

    def results(self, total: np.ndarray) -> dict[str, float]:
        """Return every metric's value for a summed state."""
        logs: dict[str, float] = {}
        start = 0
        for metric in self._model.metrics:
            values = []
            for variable in metric.variables:
                size = int(np.prod(variable.shape))
                part = total[start : start + size].reshape(variable.shape)
                values.append(keras.ops.convert_to_tensor(part.astype(variable.dtype)))
                start += size
            result = metric.stateless_result(values)
            named = result if isinstance(result, dict) else {metric.name: result}
            logs.update({key: float(value) for key, value in named.items()})
        return logs

    def _variables(self) -> list[Any]:
        return [one for metric in self._model.metrics for one in metric.variables]
