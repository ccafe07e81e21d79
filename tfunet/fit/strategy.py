"""What Keras's trainer takes for its strategy: it runs steps on the replicas of a backend."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.fit.replica import as_one_device, computing, summed
from tfunet.fit.shares import Rows, Share, joined_batches, part_of, share_of, shared_out
from tfunet.fit.summed_logs import Results, SummedLogs, check_same
from tfunet.learning.averaging import Averaging


@final
@dataclass(frozen=True)
class LogsStep:
    """A step of training or evaluation, which returns logs: the trainer's predictions are none."""

    step: Callable[[Any], Any]


@final
@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Runs the steps of a model's trainer, which calls the methods below.

    Args:
        joined: Batches in a row of which a global batch is made.
    """

    backend: Backend
    topology: Topology
    model: keras.Model
    joined: int = 1

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which variables of models are made."""
        return self.backend.scope()

    def experimental_distribute_dataset(self, dataset: Any) -> tf.data.Dataset:
        """Return the shares of this process of a data set of global batches."""
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"fit was given a {type(dataset).__name__}, which a strategy of tf.distribute has "
                "shared out. Give it the data set itself: tfunet.distribute() shares it out."
            )
        if self.joined > 1:
            dataset = joined_batches(dataset, self.joined)
        return shared_out(dataset, self.topology.local_replicas, self.topology.num_replicas)

    def run(self, step: Any, args: tuple[Any] = (None,)) -> Any:
        """Run a step on all replicas; what it returns is the same in all processes."""
        topology, (given,) = self.topology, args
        local = topology.local_replicas
        share = given
        if not isinstance(given, Share):
            batch = tf.nest.map_structure(
                lambda part: part if part is None else tf.convert_to_tensor(part), given
            )
            share = share_of(batch, local, topology.num_replicas)
        begin, _ = self._rows(local.start, share).taken
        results = Results()

        def replica() -> Any:
            rows = self._rows(self._index(), share)
            data = share.data
            if len(local) > 1:
                first, last = rows.taken
                with tf.device("CPU:0"):  # So that each device fetches only its own rows.
                    data = part_of(data, first - begin, last - begin)
            # The whole step waits for its batch: where the data end, it has changed nothing.
            with computing(rows), tf.control_dependencies([share.fingerprint]):
                if isinstance(step, LogsStep):
                    return self._logs(step, data, rows, share.fingerprint, results)
                with tf.control_dependencies([check_same(share.fingerprint, rows.num_replicas)]):
                    return tf.nest.map_structure(
                        lambda rows_of: _gathered(rows_of, rows), step(data)
                    )

        averaging = Averaging(average=self.backend.average)
        with averaging.traced(), as_one_device(), results.noting(self.model):
            outputs = self.backend.run(replica)
        return tf.nest.map_structure(lambda value: value[0], outputs)

    def _logs(
        self, step: LogsStep, data: Any, rows: Rows, fingerprint: tf.Tensor, results: Results
    ) -> Any:
        summed_logs = SummedLogs(self.model, rows, results)
        summed_logs.begin()
        return summed_logs.end(step.step(data), fingerprint)

    def _rows(self, index: int, share: Share) -> Rows:
        return Rows(index=index, num_replicas=self.topology.num_replicas, num_rows=share.num_rows)

    def _index(self) -> int:
        """Return which replica is being traced."""
        local = self.topology.local_replicas
        if len(local) == 1:
            return local.start
        context = tf.distribute.get_replica_context()
        return int(tf.get_static_value(context.replica_id_in_sync_group))


def _gathered(own: Any, rows: Rows) -> tf.Tensor:
    """Return the rows of all replicas of what each predicts for its own."""
    value = tf.convert_to_tensor(own)
    if not value.dtype.is_floating and not value.dtype.is_integer and value.dtype != tf.bool:
        raise ValueError(
            f"predict gives {value.dtype.name}, which replicas cannot exchange. Let the model "
            "return numbers, or predict on one device."
        )
    # Backends add up these types only, exactly: all but one replica have zeros.
    wide = tf.cast(value, tf.float32 if value.dtype.size < 4 else value.dtype)
    before = tf.cast(rows.begin, tf.int32)
    after = tf.cast(rows.num_rows - rows.begin - rows.count, tf.int32)
    ends = tf.concat([[[before, after]], tf.zeros((value.shape.rank - 1, 2), tf.int32)], 0)
    filled = tf.pad(wide[: rows.count], ends)
    return tf.cast(summed(filled), value.dtype)
