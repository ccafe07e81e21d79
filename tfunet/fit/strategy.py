"""What Keras's trainer takes for its strategy: it runs steps on the replicas of a backend."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.fit.replica import as_one_device, computing, summed
from tfunet.fit.shares import Rows, Share, joined_batches, part_of, share_of, shared_out
from tfunet.fit.split import SplitSamples
from tfunet.fit.summed_logs import Device, Results, SummedLogs, check_same
from tfunet.learning.averaging import Averaging


@final
@dataclass(frozen=True)
class LogsStep:
    """A step of training or evaluation, which returns logs: the trainer's predictions are none."""

    step: Callable[[Any], Any]


@final
@dataclass(frozen=True)
class Predict:
    """The trainer's function that predicts, which gets a list of batches."""

    strategy: "Strategy"

    def __call__(self, batches: Sequence[Any]) -> Any:
        outputs = [self.strategy.run(self.strategy.model.predict_step, (each,)) for each in batches]
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)


@final
@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Runs the steps of a model's trainer, which calls the methods below.

    Args:
        joined: Batches in a row of which a global batch is made.
        split: Cuts samples over devices; None where each has whole ones.
    """

    backend: Backend
    topology: Topology
    model: keras.Model
    joined: int = 1
    split: SplitSamples | None = None

    @property
    def _local(self) -> range:
        """The replicas of this process: devices, or groups of devices that share samples."""
        return self.topology.local_replicas if self.split is None else self.split.local_groups

    @property
    def _num_replicas(self) -> int:
        return self.topology.num_replicas if self.split is None else self.split.mesh.groups

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
        return shared_out(dataset, self._local, self._num_replicas)

    def run(self, step: Any, args: tuple[Any] = (None,)) -> Any:
        """Run a step on all replicas; what it returns is the same in all processes."""
        (given,) = args
        local, share = self._local, given
        if not isinstance(given, Share):
            batch = tf.nest.map_structure(
                lambda part: part if part is None else tf.convert_to_tensor(part), given
            )
            share = share_of(batch, local, self._num_replicas)
        begin, _ = self._rows(local.start, share).taken
        results = Results()
        averaging = Averaging(average=self.backend.average)

        def replica() -> Any:
            device = self._device()
            rows = self._rows(self._replica_of(device), share)
            data = share.data
            if len(local) > 1:
                first, last = rows.taken
                with tf.device("CPU:0"):  # So that each device fetches only its own rows.
                    data = part_of(data, first - begin, last - begin)
            # The whole step waits for its batch: where the data end, it has changed nothing.
            with computing(rows), tf.control_dependencies([share.fingerprint]):
                if self.split is not None:
                    data = self.split.own_part(self.model, data)
                if isinstance(step, LogsStep):
                    summed_logs = SummedLogs(self.model, rows, results, device)
                    with averaging.held() if summed_logs.come_first else nullcontext():
                        return self._logs(step, data, share.fingerprint, summed_logs)
                with tf.control_dependencies([check_same(share.fingerprint, device.count)]):
                    return tf.nest.map_structure(
                        lambda own: self._gathered(own, rows, device, share.fingerprint),
                        step(data),
                    )

        with averaging.traced(), as_one_device(), results.noting(self.model):
            outputs = self.backend.run(replica)
        return tf.nest.map_structure(lambda value: value[0], outputs)

    def _logs(
        self, step: LogsStep, data: Any, fingerprint: tf.Tensor, summed_logs: SummedLogs
    ) -> Any:
        summed_logs.begin()
        if self.split is None:
            return summed_logs.end(step.step(data), fingerprint)
        network = self.split.network(self.model)
        with network.traced_step():
            logs = step.step(data)
        network.check_calls()
        return summed_logs.end(logs, fingerprint)

    def _rows(self, replica: int, share: Share) -> Rows:
        return Rows(
            index=replica,
            num_replicas=self._num_replicas,
            num_rows=share.num_rows,
            num_devices=self.topology.num_replicas // self._num_replicas,
        )

    def _replica_of(self, device: Device) -> int:
        return device.index if self.split is None else self.split.mesh.group_of(device.index)

    def _device(self) -> Device:
        """Return which device is being traced."""
        local, count = self.topology.local_replicas, self.topology.num_replicas
        if len(local) == 1:
            return Device(index=local.start, count=count)
        context = tf.distribute.get_replica_context()
        index = int(tf.get_static_value(context.replica_id_in_sync_group))
        return Device(index=index, count=count)

    def _gathered(self, own: Any, rows: Rows, device: Device, fingerprint: tf.Tensor) -> tf.Tensor:
        """Return the rows of all replicas of what each predicts for its own."""
        value = tf.convert_to_tensor(own)
        if not value.dtype.is_floating and not value.dtype.is_integer and value.dtype != tf.bool:
            raise ValueError(
                f"predict gives {value.dtype.name}, which replicas cannot exchange. Let the model "
                "return numbers, or predict on one device."
            )
        is_counted = True
        if self.split is not None:
            network = self.split.network(self.model)
            value = network.whole_output(value, network.group())
            is_counted = self.split.mesh.is_first(device.index)
        # Backends add up these types only, exactly: all but one device have zeros.
        wide = tf.cast(value, tf.float32 if value.dtype.size < 4 else value.dtype)
        before = tf.cast(rows.begin, tf.int32)
        after = tf.cast(rows.num_rows - rows.begin - rows.count, tf.int32)
        ends = tf.concat([[[before, after]], tf.zeros((value.shape.rank - 1, 2), tf.int32)], 0)
        counted = wide[: rows.count]
        if not is_counted:
            # Zeros of which TensorFlow does not know: it would run an exchange of constants while
            # it optimizes the graph, and leave out what makes values that nobody reads.
            counted = tf.where(fingerprint < 0, counted, tf.zeros_like(counted))
        filled = tf.pad(counted, ends)
        return tf.cast(summed(filled), value.dtype)
