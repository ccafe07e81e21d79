"""Several replicas in one process, over tf.distribute.MirroredStrategy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import tensorflow as tf

from tf_native import replicas
from tfunet.backend import Launch, Topology
from tfunet.config.words import check_known

CROSS_DEVICE = {
    "auto": None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduce_to_one": tf.distribute.ReductionToOneDevice,
}


@final
class MirroredBackend(replicas.StrategyBackend):
    """Replicas on the GPUs of one machine, or on logical CPUs where there are none.

    Args:
        launch: The place of this process in the run.
        collective: auto, nccl, hierarchical_copy or reduce_to_one.
        bytes_per_pack: Gradients are packed to about this size for an all-reduce. With 0
            TensorFlow decides.
    """

    name = "mirrored"

    def __init__(self, launch: Launch, collective: str = "auto", bytes_per_pack: int = 0) -> None:
        if launch.process_count != 1:
            raise ValueError(
                f"The backend 'mirrored' runs in one process, got {launch.process_count} "
                "processes. Choose multiworker or horovod."
            )
        check_known("collective", collective, CROSS_DEVICE)
        super().__init__(launch, replicas.communication_options("auto", bytes_per_pack))
        self._collective = CROSS_DEVICE[collective]

    def start(self) -> Topology:
        devices = replicas.take_devices(self._launch)
        make = replicas.unscaled(tf.distribute.MirroredStrategy)
        self._strategy = make(devices, cross_device_ops=self._collective and self._collective())
        return Topology(
            process_index=0,
            process_count=1,
            num_replicas=len(devices),
            local_replicas=self._launch.local_replicas,
        )

    def exchange(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        # TensorFlow calls `_of_all` once, when every replica has come here. Then an edge of the
        # graph leads from one device to the other: no collective operation that could hang.
        context = tf.distribute.get_replica_context()
        parcels = context.merge_call(_of_all, args=(_Parcel(sent),))
        me = replicas.own_index()
        return {other: tf.identity(parcels[other].sent[me]) for other in received}

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def stop(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class _Parcel:
    """What a replica sends to others; TensorFlow does not look into it."""

    sent: Mapping[int, tf.Tensor]


def _of_all(strategy: tf.distribute.Strategy, parcels: Any) -> tuple[_Parcel, ...]:
    return strategy.experimental_local_results(parcels)
