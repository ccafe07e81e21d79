"""Several replicas in one process, over tf.distribute.MirroredStrategy."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf

from tf_native import replicas
from tfunet.backend import Launch, Topology
from tfunet.config.refs import check_known

CROSS_DEVICE = {
    "auto": None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduce_to_one": tf.distribute.ReductionToOneDevice,
}


@final
class MirroredBackend:
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
        self._launch = launch
        self._collective = CROSS_DEVICE[collective]
        self._options = replicas.communication_options("auto", bytes_per_pack)

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

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        return replicas.feed(pipeline, self._launch.local_replicas)

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        return replicas.run(self._strategy, step, arguments, self._launch.local_replicas)

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return replicas.average(gradients, self._options)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def profile(self, folder: Path) -> AbstractContextManager[Any]:
        return nullcontext()

    def stop(self) -> None:
        pass
