"""The backend for one replica in one process: the reference for all others."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.backend import Launch, Topology


@final
class SingleDevice:
    """One replica on the first GPU, or on the CPU where there is none."""

    name = "single"

    def __init__(self, launch: Launch) -> None:
        if launch.num_replicas != 1:
            raise ValueError(
                f"The backend 'single' trains one replica, got num_replicas="
                f"{launch.num_replicas}. Choose mirrored, multiworker or horovod."
            )

    def start(self) -> Topology:
        return Topology(process_index=0, process_count=1, num_replicas=1, local_replicas=range(1))

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        return pipeline(range(1))

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        return tf.nest.map_structure(lambda value: value[None], step(*arguments))

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(gradients)

    def sum(self, values: np.ndarray) -> np.ndarray:
        return values

    def profile(self, folder: Path) -> AbstractContextManager[Any]:
        return nullcontext()

    def stop(self) -> None:
        pass
