"""One or more replicas in each of many processes, over MultiWorkerMirroredStrategy."""

import json
import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import collective_ops

from tf_native import replicas
from tfunet.backend import Launch, Topology

# Keys of the pairs of devices that exchange tensors; TensorFlow counts its own from 1.
FIRST_PAIR_KEY = 1_000_000


def tf_config(launch: Launch) -> str:
    """Return TF_CONFIG for this process, with the addresses of all processes in order."""
    return json.dumps(
        {
            "cluster": {"worker": list(launch.addresses)},
            "task": {"type": "worker", "index": launch.process_index},
        }
    )


@final
class MultiWorkerBackend(replicas.StrategyBackend):
    """Processes on one or more machines.

    Args:
        launch: The place of this process in the run.
        collective: auto, ring or nccl.
        bytes_per_pack: Gradients are packed to about this size for an all-reduce. With 0
            TensorFlow decides.
    """

    name = "multiworker"
    # See `exchange_of`: on CPUs of one host, what its processes exchange need not go through it.
    shares_memory = True

    def __init__(self, launch: Launch, collective: str = "auto", bytes_per_pack: int = 0) -> None:
        super().__init__(launch, replicas.communication_options(collective, bytes_per_pack))
        self._collective = collective
        # How often a replica has traced an exchange with another: both trace the same ones, in one
        # order. Stages of split samples have more of them with some than with others.
        self._exchanges: Counter[tuple[int, int]] = Counter()

    def start(self) -> Topology:
        num_gpus = len(tf.config.list_physical_devices("GPU"))
        is_alone = "TFUNET_LAUNCH" in os.environ
        replicas.check_collective(self._collective, self._launch, num_gpus, is_alone=is_alone)
        devices = replicas.take_devices(self._launch)
        if len(devices) > 1 and not tf.config.get_visible_devices("GPU"):
            raise ValueError(
                "MultiWorkerMirroredStrategy trains one replica per process on CPUs, but each "
                f"process here would have {len(devices)}. Leave out processes, or choose the "
                "backend mirrored or horovod."
            )
        os.environ["TF_CONFIG"] = tf_config(self._launch)
        make = replicas.unscaled(tf.distribute.MultiWorkerMirroredStrategy)
        handler = signal.getsignal(signal.SIGTERM)
        self._strategy = make(communication_options=self._options)
        # TensorFlow's coordination service replaces the handler of SIGTERM with its own.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        return Topology(
            process_index=self._launch.process_index,
            process_count=self._launch.process_count,
            num_replicas=self._launch.num_replicas,
            local_replicas=self._launch.local_replicas,
        )

    def exchange(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        local = self._launch.local_replicas
        # A stage computes as if it were alone, with the index 0.
        me = local.start if len(local) == 1 else replicas.own_index()
        # Each pair gathers what goes both ways, filled up to one length. Broadcasts in both
        # directions would send no more than is needed, and never end (seen with 2.16).
        came = {}
        for other in sorted({*sent, *received}):
            self._exchanges[me, other] += 1
            wanted = math.prod(received[other]) if other in received else 0
            if other in sent:
                given = tf.reshape(sent[other], [-1])
                length = max(given.shape[0], wanted)
                filled = tf.pad(given, [(0, length - given.shape[0])])[tf.newaxis]
            else:
                length = wanted
                # TensorFlow would keep zeros for as long as the graph lives.
                filled = tf.raw_ops.Empty(shape=[1, length], dtype=dtype, init=True)
            pair = min(me, other) * self._launch.num_replicas + max(me, other)
            both = collective_ops.all_gather_v2(
                filled,
                group_size=2,
                group_key=FIRST_PAIR_KEY + pair,
                instance_key=self._exchanges[me, other],
            )
            if wanted:
                # A copy: a view would hold both for as long as a stage keeps what it received.
                theirs = tf.gather(tf.ensure_shape(both, [2, length]), int(me < other))
                came[other] = tf.reshape(theirs[:wanted], received[other])
        return came

    def sum(self, values: np.ndarray) -> np.ndarray:
        first = self._launch.local_replicas.start

        def share(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
            # Only the first replica of a process contributes its values.
            is_first = context.replica_id_in_sync_group == first
            return tf.constant(values if is_first else np.zeros_like(values))

        shares = self._strategy.experimental_distribute_values_from_function(share)
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None).numpy()

    def stop(self) -> None:
        os.environ.pop("TF_CONFIG", None)
