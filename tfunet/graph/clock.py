"""Times parts of a graph by a clock that the graph itself reads."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

REPEATS = 5
# What takes as long is steadier, and timed twice.
LONG_SECONDS = 1.0
# The clock is read so often with nothing in between, to know what reading it takes.
NOTHINGS = 7


class Clock:
    """A clock that is read in the middle of a graph.

    It does without `tf.timestamp`, which op determinism refuses and which does not wait for a GPU.
    """

    def __init__(self) -> None:
        self._readings: list[float] = []
        self._names: list[str] = []
        self._graph: Any = None

    def time(
        self,
        name: str,
        after: Sequence[tf.Operation],
        part: Callable[[], tf.Tensor | tf.Operation],
    ) -> tf.Operation:
        """Return the op that reads the clock at the end of a part; another reads it at the start.

        Args:
            part: Makes ops under the control edges that are there when it is called. If it returns
                a tensor, a number of the tensor is read, so that a GPU is done with it.
        """
        with tf.control_dependencies([self._look(after)]):
            made = part()
        self._names.append(name)
        if isinstance(made, tf.Operation):
            return self._look([made])
        return self._look([made.op], made)

    def warm(self, seen: tf.Tensor) -> tf.Operation:
        """Time nothing a few times, for `seconds` to subtract; return the last reading."""
        previous: list[tf.Operation] = []
        # The first readings of a call take longer; the median leaves them out.
        for _ in range(NOTHINGS):
            self._names.append("")
            previous = [self._look([self._look(previous)], seen)]
        return previous[0]

    def read(self, after: Sequence[tf.Operation], tensors: Sequence[tf.Tensor]) -> tf.Operation:
        """Return an op that reads a number of each tensor after other ops."""
        return self._call(lambda *_: np.zeros(()), after, tensors)

    def seconds(
        self,
        run: Callable[[], Any],
        *,
        counts: Mapping[str, float] | None = None,
        watched: Any = None,
    ) -> dict[str, float]:
        """Return what each part took in a few runs.

        The sum of all parts, each as often as it counts, is that of the fastest run: what slowed
        the others down was something else. The medians of the parts divide it among them.

        Args:
            counts: How often each part counts; once by default.
            watched: Context of one more run, which is not timed.
        """
        runs: list[list[float]] = []
        run()  # Traces and compiles.
        if watched is not None:
            with watched:
                run()
        since = time.perf_counter()
        while len(runs) < (REPEATS if time.perf_counter() - since < LONG_SECONDS else 2):
            self._readings.clear()
            run()
            begins, ends = self._readings[::2], self._readings[1::2]
            runs.append([end - begin for begin, end in zip(begins, ends, strict=True)])
        nothing = statistics.median(
            [
                seconds
                for run_seconds in runs
                for name, seconds in zip(self._names, run_seconds, strict=True)
                if not name
            ]
            or [0.0]
        )
        weights = [(counts or {}).get(name, 1) if name else 0 for name in self._names]
        net = [[max(seconds - nothing, 0.0) for seconds in run_seconds] for run_seconds in runs]
        medians = [statistics.median(part) for part in zip(*net, strict=True)]
        fastest = min(_weighted(weights, run_seconds) for run_seconds in net)
        share = fastest / (_weighted(weights, medians) or 1.0)
        named = zip(self._names, medians, strict=True)
        return {name: share * median for name, median in named if name}

    def _look(self, after: Sequence[tf.Operation], seen: tf.Tensor | None = None) -> tf.Operation:
        return self._call(self._now, after, [] if seen is None else [seen])

    def _call(
        self,
        function: Callable[..., np.ndarray],
        after: Sequence[tf.Operation],
        tensors: Sequence[tf.Tensor],
    ) -> tf.Operation:
        graph = tf.compat.v1.get_default_graph()
        if graph is not self._graph:
            self._graph = graph
            with tf.control_dependencies(None), tf.device("CPU:0"):
                self._flat, self._first, self._one = (tf.constant([value]) for value in (-1, 0, 1))
        with tf.control_dependencies(after):
            flat = [tf.raw_ops.Reshape(tensor=tensor, shape=self._flat) for tensor in tensors]
            numbers = [
                tf.raw_ops.Slice(input=tensor, begin=self._first, size=self._one) for tensor in flat
            ]
            with tf.device("CPU:0"):
                return tf.numpy_function(function, numbers, tf.float64, name="look").op

    def _now(self, *_: np.ndarray) -> np.ndarray:
        self._readings.append(time.perf_counter())
        return np.zeros(())


def _weighted(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True))
