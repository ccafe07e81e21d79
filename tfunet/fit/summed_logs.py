"""What a step tells of itself, and what it counts, of the rows of all replicas.

Each replica counts its rows in its own metrics. After the step their states are added up, once in a
step, with all else that must be the same on all replicas, in one reduction:

    metrics       the sum of their states          moving statistics     their mean
    other logs    their mean over rows             fingerprints          all the same, or an error
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.fit.replica import current_rows, summed
from tfunet.fit.shares import Rows
from tfunet.inside.of_fit import function_of
from tfunet.inside.of_tensorflow import updating_alone
from tfunet.inside.replacing import replacing
from tfunet.learning.pass_states import states_of

# Metrics that are given numbers, not labels and predictions.
UPDATES = (keras.metrics.Mean.update_state, keras.metrics.Sum.update_state)
OTHER_BATCHES = (
    "The processes read different batches. All must read the same data in the same order, of which "
    "each takes its part: give shuffle() and random generators a seed, sort lists of files, and "
    "leave out deterministic=False and any sharding of your own."
)


@final
@dataclass(frozen=True, kw_only=True)
class Device:
    """One of all devices: a replica, or one of several that share its samples."""

    index: int
    count: int


@final
class Reduction:
    """Numbers of this replica that are added up over all replicas in one operation."""

    def __init__(self) -> None:
        self._parts: list[tf.Tensor] = []
        self._total: list[tf.Tensor] | None = None

    def add(self, value: Any) -> int:
        """Return where the sum of a tensor will be."""
        self._parts.append(tf.cast(value, tf.float64))
        return len(self._parts) - 1

    def run(self) -> None:
        """Add up what came."""
        flat = tf.concat([tf.reshape(part, [-1]) for part in self._parts], 0)
        sizes = [tf.size(part) for part in self._parts]
        parts = tf.split(summed(flat), sizes, num=len(sizes))
        self._total = [
            tf.reshape(total, tf.shape(part))
            for total, part in zip(parts, self._parts, strict=True)
        ]

    def total(self, place: int) -> tf.Tensor:
        """Return a sum, as float64."""
        if self._total is None:
            raise ValueError("Nothing was added up yet: call run() first.")
        return self._total[place]


@final
class Results:
    """Which results of metrics the logs of a step are."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, str | None, Any]] = {}

    @contextlib.contextmanager
    def noting(self, model: keras.Model) -> Iterator[None]:
        """Note each result that a metric of a model gives in the block."""
        metrics = _with_inner(model.metrics)
        of_means = [metric for metric in metrics if type(metric).update_state in UPDATES]
        with contextlib.ExitStack() as stack:
            for metric in metrics:
                stack.enter_context(replacing(metric, result=self._noted(metric)))
            for metric in of_means:
                by_rows = _by_rows(metric.update_state)
                stack.enter_context(replacing(metric, update_state=by_rows))
            yield

    def _noted(self, metric: Any) -> Any:
        original = metric.result

        def result() -> Any:
            values = original()
            named = values.items() if isinstance(values, dict) else ((None, values),)
            for key, value in named:
                # The value is kept, so that nothing else gets its id.
                self._found[id(value)] = (metric, key, value)
            return values

        return result

    def metric_of(self, value: Any) -> tuple[Any, str | None] | None:
        """Return the metric that gave a value, and its name where it gives several."""
        found = self._found.get(id(value))
        return None if found is None else found[:2]


@final
class SummedLogs:
    """The metrics of a model over a step of one replica, whose rows are those of `rows`."""

    def __init__(self, model: keras.Model, rows: Rows, results: Results, device: Device) -> None:
        self._model, self._rows, self._results, self._device = model, rows, results, device

    @property
    def come_first(self) -> bool:
        """Whether they may be summed before the weights change, while a step goes backward.

        Only metrics of Keras, in its own steps, are sure not to see that the weights changed.
        """
        kind, of_keras = type(self._model), keras.Model
        return (
            kind.train_step is of_keras.train_step
            and kind.compute_metrics is of_keras.compute_metrics
            and all(map(_is_of_keras, _with_inner(self._model.metrics)))
        )

    def begin(self) -> None:
        """Before the step: the first replica alone goes on from what all have counted."""
        if self._device.index == 0:
            return
        for variable in self._states():
            if not _is_distributed(variable):
                variable.assign(tf.zeros(variable.shape, variable.dtype))

    def end(self, logs: Any, fingerprint: tf.Tensor) -> Any:
        """After the step: return its logs for the rows of all replicas, in their structure."""
        rows, reduction = self._rows, Reduction()
        counts = tf.convert_to_tensor(rows.count) > 0
        states = self._states()
        places = [
            reduction.add(tf.where(counts, tf.cast(state.value, tf.float64), self._before(state)))
            for state in states
        ]
        statistics = [
            state for state in states_of([self._model]) if tf.as_dtype(state.dtype).is_floating
        ]
        weight = rows.weight(tf.float64) / self._device.count
        of_statistics = [
            reduction.add(tf.cast(each.value, tf.float64) * weight) for each in statistics
        ]
        flat = tf.nest.flatten(logs)
        others = {
            at: reduction.add(tf.cast(value, tf.float64) * weight)
            for at, value in enumerate(flat)
            if self._results.metric_of(value) is None and _is_number(value)
        }
        of_fingerprint = reduction.add(fingerprint)
        reduction.run()
        same = reduction.total(of_fingerprint)
        tf.debugging.assert_equal(same, fingerprint * self._device.count, OTHER_BATCHES)
        totals = [reduction.total(place) for place in places]
        for state, total in zip(states, totals, strict=True):
            is_elsewhere = _is_distributed(state) and self._device.index > 0
            state.assign(tf.cast(tf.zeros_like(total) if is_elsewhere else total, state.dtype))
        with updating_alone():
            for variable, place in zip(statistics, of_statistics, strict=True):
                variable.assign(tf.cast(reduction.total(place), variable.dtype))
        known = {id(state): total for state, total in zip(states, totals, strict=True)}
        told = [
            tf.cast(reduction.total(others[at]), tf.convert_to_tensor(value).dtype)
            if at in others
            else self._result(value, known)
            for at, value in enumerate(flat)
        ]
        return tf.nest.pack_sequence_as(logs, told)

    def _result(self, value: Any, known: dict[int, tf.Tensor]) -> Any:
        """Return what a metric says for the states of all replicas, instead of a log of one."""
        found = self._results.metric_of(value)
        if found is None:
            return tf.convert_to_tensor(value)
        metric, key = found
        states = [tf.cast(known[id(variable)], variable.dtype) for variable in metric.variables]
        result = metric.stateless_result(states)
        return tf.convert_to_tensor(result if key is None else result[key])

    def _states(self) -> list[Any]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def _before(self, state: Any) -> tf.Tensor:
        """Return the state of a replica whose rows count for nothing: it is never the first one."""
        return tf.zeros(state.shape, tf.float64)


def _is_of_keras(metric: keras.Metric) -> bool:
    made_by = function_of(metric) or type(metric)
    return str(made_by.__module__).startswith("keras.")


def _by_rows(update: Any) -> Any:
    """Return an update of a metric in which a number stands for the rows of its replica.

    One device counts a number, such as a loss, once for each batch. So do all replicas together.
    """

    def updated(values: Any, sample_weight: Any = None) -> Any:
        rows = current_rows()
        if rows is not None and sample_weight is None and tf.convert_to_tensor(values).shape == ():
            sample_weight = rows.weight(tf.float64) / rows.num_replicas
        return update(values, sample_weight=sample_weight)

    return updated


def check_same(fingerprint: tf.Tensor, num_devices: int) -> tf.Operation:
    """Return what fails where replicas were given parts of different batches."""
    total = summed(fingerprint)
    return tf.debugging.assert_equal(total, fingerprint * num_devices, OTHER_BATCHES)


def _is_distributed(variable: Any) -> bool:
    """Whether TensorFlow itself adds up a metric's states of all replicas when they are read."""
    return isinstance(variable.value, tf.distribute.DistributedValues)


def _is_number(value: Any) -> bool:
    dtype = tf.convert_to_tensor(value).dtype
    return bool(dtype.is_floating or dtype.is_integer)


def _with_inner(metrics: Sequence[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    for metric in metrics:
        inner = [each for each in getattr(metric, "metrics", ()) or () if each is not None]
        for each in (metric, *_with_inner(inner)):
            found[id(each)] = each
    return list(found.values())
