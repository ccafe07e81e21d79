"""Variables of a run that are broadcast and averaged, and the state of its metrics."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.graph.traced import traced
from tfunet.inside.of_keras import compiled_metrics, mode_of_metric


def broadcast(backend: Backend, topology: Topology, variables: Sequence[Any]) -> None:
    """Give every process the chief's values, exactly."""
    if topology.process_count == 1:
        return
    for variable in variables:
        value = np.asarray(keras.ops.convert_to_numpy(variable.value))
        # float64 holds every value of Keras's types, except for integers beyond 2^53.
        wide = value.astype(np.float64) if topology.is_chief else np.zeros(value.shape)
        variable.assign(backend.sum(wide).astype(value.dtype))


def average_statistics(backend: Backend, topology: Topology, model: keras.Model) -> None:
    """Give every replica the mean of moving statistics, such as those of batch normalisation.

    Replicas see different samples, so their statistics differ unless the layers synchronise them.
    Without this, only the first one's would be saved.
    """
    if topology.num_replicas == 1:
        return
    statistics = [
        variable for variable in model.non_trainable_variables if "float" in str(variable.dtype)
    ]
    if not statistics:
        return

    def own() -> list[tf.Tensor]:
        return [tf.identity(variable.value) for variable in statistics]

    of_replicas = traced(lambda: backend.run(own))()
    for variable, values in zip(statistics, of_replicas, strict=True):
        total = backend.sum(values.numpy().astype(np.float64).sum(axis=0))
        variable.assign((total / topology.num_replicas).astype(variable.dtype))


class MetricState:
    """Sums the state of a model's metrics over all replicas, and gives results from the sum.

    Use it after the first step only: before, Keras has not made all variables of the metrics.

    Args:
        is_shared: Whether the replicas of a process update the same metrics.
    """

    def __init__(self, backend: Backend, model: keras.Model, *, is_shared: bool = False) -> None:
        self._backend = backend
        self._model = model
        self._is_shared = is_shared

        def replica_state() -> tf.Tensor:
            values = [
                tf.convert_to_tensor(variable.value)
                for metric in model.metrics
                for variable in metric.variables
            ]
            flat = [tf.cast(tf.reshape(value, [-1]), tf.float64) for value in values]
            return tf.concat(flat, 0)

        self._read = traced(lambda: backend.run(replica_state))

    def total(self, before: np.ndarray | None) -> np.ndarray:
        """Return the state summed over all replicas, plus each process's `before`."""
        of_replicas = self._read().numpy()
        local = of_replicas[0] if self._is_shared else of_replicas.sum(axis=0)
        return self._backend.sum(local if before is None else local + before)

    def names(self) -> list[str]:
        """Return the names of what `results` gives, but for the loss."""
        sizes = [v.shape for metric in self._model.metrics for v in metric.variables]
        nothing = np.zeros(sum(map(math.prod, sizes)))
        return [name for name in self.results(nothing) if name != "loss"]

    def results(self, total: np.ndarray) -> dict[str, float]:
        """Return the value of every metric for a summed state."""
        return results_of(self._model.metrics, total)


def results_of(metrics: Iterable[keras.Metric], total: np.ndarray) -> dict[str, float]:
    """Return the value of every metric for the summed state of all, one after the other.

    Raises ValueError for a result that is no number.
    """
    logs: dict[str, float] = {}
    start = 0
    for metric in metrics:
        values = []
        for variable in metric.variables:
            size = int(np.prod(variable.shape))
            part = total[start : start + size].reshape(variable.shape)
            values.append(keras.ops.convert_to_tensor(part.astype(variable.dtype)))
            start += size
        result = metric.stateless_result(values)
        named = result if isinstance(result, dict) else {metric.name: result}
        for key, value in named.items():
            # Tensors of one number, not tables and arrays.
            if isinstance(value, dict) or np.size(value) != 1:
                raise ValueError(
                    f"The metric {metric.name!r} has a result of {type(value).__name__}, shape "
                    f"{np.shape(value)}. Let result() return a number, or a dict of numbers."
                )
            logs[key] = float(np.reshape(value, ()))
    return logs


@final
class ValidationMetrics:
    """The metrics of a model over all validation samples, exactly: what batches add is summed.

    The state that they have in training stays as it is.
    """

    def __init__(self, model: keras.Model) -> None:
        compiled = compiled_metrics(model)
        self._metrics = [] if compiled is None else [compiled]
        self._variables = [one for metric in self._metrics for one in metric.variables]

    @property
    def size(self) -> int:
        """Numbers of the state."""
        return sum(math.prod(variable.shape) for variable in self._variables)

    def added(self, truth: tf.Tensor, output: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
        """Return what the valid samples of a batch add to the state, (1, size) in float64."""
        chosen = [tf.boolean_mask(each, valid > 0) for each in (truth, output)]
        parts: list[tf.Tensor] = [tf.zeros(0, tf.float64)]
        for metric in self._metrics:
            nothing = [tf.zeros(each.shape, each.dtype) for each in metric.variables]
            for value in metric.stateless_update_state(nothing, *chosen):
                parts.append(tf.cast(tf.reshape(value, [-1]), tf.float64))
        state = tf.concat(parts, 0)
        # A metric of an empty batch need not be a number.
        return tf.where(tf.reduce_any(valid > 0), state, tf.zeros_like(state))[tf.newaxis]

    def results(self, total: np.ndarray) -> dict[str, float]:
        """Return the value of every metric for a summed state."""
        return results_of(self._metrics, total)

    def names(self) -> list[str]:
        """Return the names of what callbacks see."""
        return [f"val_{name}" for name in self.results(np.zeros(self.size))]

    def modes(self) -> dict[str, str | None]:
        """Return "max" or "min" for what is better of each of these; None if it is not known."""
        known = {
            f"val_{metric.name}": mode_of_metric(metric)
            for compiled in self._metrics
            for metric in compiled.metrics
        }
        return {name: known.get(name) for name in self.names()}
