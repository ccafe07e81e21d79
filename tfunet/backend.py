"""The seam between the loop and a way of training on many devices. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tfunet.config.refs import expand

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from tfunet.config.run import RunConfig

BACKENDS = {
    "single": "tfunet.single:SingleDevice",
    "mirrored": "tf_native.mirrored:MirroredBackend",
    "multiworker": "tf_native.multiworker:MultiWorkerBackend",
    "horovod": "hvd.backend:HorovodBackend",
}
# Read by the supervisor, which must know how many processes to start without importing any of
# them; a backend that is not listed gets one process for each replica.
ONE_PROCESS = ("single", "mirrored")
ONE_REPLICA = ("single",)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a process is told of the run that it is part of.

    Args:
        process_index: This process among all, from 0; process 0 is the chief.
        process_count: Processes of the run.
        num_replicas: Replicas over all processes.
        addresses: "host:port" of every process, in order; the ports are free at the start.
        is_profiled: Whether `profile` will be called.
    """

    process_index: int = 0
    process_count: int = 1
    num_replicas: int = 1
    addresses: tuple[str, ...] = field(default=("localhost:0",))
    is_profiled: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.process_index < self.process_count:
            raise ValueError(
                f"process_index must lie in 0..{self.process_count - 1}, got {self.process_index}."
            )
        if self.num_replicas % self.process_count:
            raise ValueError(
                f"num_replicas={self.num_replicas} cannot be shared by process_count="
                f"{self.process_count} equally. Choose a multiple."
            )
        if len(self.addresses) != self.process_count:
            raise ValueError(
                f"{self.process_count} processes need as many addresses, got {self.addresses}."
            )

    @property
    def local_replicas(self) -> range:
        """The replicas of this process."""
        share = self.num_replicas // self.process_count
        return range(self.process_index * share, (self.process_index + 1) * share)

    @property
    def place_on_host(self) -> tuple[int, int]:
        """Index of this process among those on its host, and how many those are."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        own = hosts[self.process_index]
        return hosts[: self.process_index].count(own), hosts.count(own)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where this process stands once its backend has started."""

    process_index: int
    process_count: int
    num_replicas: int
    local_replicas: range

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run's files."""
        return self.process_index == 0


class Backend(Protocol):
    """One way of training on many devices: `Class(launch, **options)`.

    The loop calls `start` first and `stop` last, also after an error. Everything else is the
    same code for every backend.
    """

    name: str

    def start(self) -> Topology:
        """Take the devices and meet the other processes."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizer are made."""

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        """Return this process's batches for `run`.

        `pipeline(local_replicas)` yields one batch for each local replica in turn, then the
        next step's. It is a function so that nothing re-batches or re-shards it.
        """

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Run `step` once on each local replica, inside a tf.function.

        Returns its structure of tensors with a leading axis of local replicas.
        """

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the mean over all replicas; called inside `step`, on every replica."""

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over processes of a float64 array; also the barrier."""

    def profile(self, folder: Path) -> AbstractContextManager[Any]:
        """Return a context in which the backend writes a profile of its own, if it has one.

        `folder` is this process's alone. Called by the chief, and only where the run is profiled.
        """

    def stop(self) -> None:
        """Leave the others and free the devices."""


def num_processes(config: RunConfig) -> int:
    """Return how many processes a run has; raises ValueError where the backend has no such run."""
    expand("backend", config.backend, BACKENDS)
    if config.backend in ONE_REPLICA and config.num_replicas > 1:
        raise ValueError(
            f"The backend {config.backend!r} trains one replica, got num_replicas="
            f"{config.num_replicas}. Leave it out, or choose mirrored, multiworker or horovod."
        )
    if config.backend in ONE_PROCESS:
        if config.processes not in (None, 1):
            raise ValueError(
                f"The backend {config.backend!r} runs in one process, got processes="
                f"{config.processes}. Leave it out, or choose another backend."
            )
        return 1
    return config.processes or config.num_replicas
