"""What the training loop asks of a backend, and the table of backends. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tfunet.config.refs import expand

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from tfunet.config.placement_keys import PlacementKeys
    from tfunet.config.run import RunConfig


# What `Backend.exchange` is called with and returns.
Exchange = Callable[
    ["Mapping[int, tf.Tensor]", "Mapping[int, Sequence[int]]", "tf.DType"], "dict[int, tf.Tensor]"
]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the supervisor must know of a backend before it starts the processes of a run.

    The supervisor does not import backends, since that would load TensorFlow.

    Args:
        reference: 'package.module:Class'.
        one_process: Whether a single process has all replicas. Otherwise each replica has a
            process, unless the run says how many there are.
        one_replica: Whether there can be only one replica.
        is_open: Whether it listens on all network interfaces, and obeys anybody who connects.
        library: The package that it needs besides TensorFlow, if any.
        exchanges_in_pairs: Whether two devices can exchange while others do not, as stages of split
            samples do.
    """

    reference: str
    one_process: bool = False
    one_replica: bool = False
    is_open: bool = False
    exchanges_in_pairs: bool = False
    library: str = ""


FACTS = {
    "single": Facts(
        reference="tfunet.single_device:SingleDevice", one_process=True, one_replica=True
    ),
    "mirrored": Facts(reference="tf_native.mirrored:MirroredBackend", one_process=True),
    "multiworker": Facts(
        reference="tf_native.multiworker:MultiWorkerBackend",
        is_open=True,
        exchanges_in_pairs=True,
    ),
    "horovod": Facts(
        reference="hvd.backend:HorovodBackend",
        library="horovod",
        exchanges_in_pairs=True,
    ),
}
BACKENDS = {name: facts.reference for name, facts in FACTS.items()}


def facts_of(backend: str) -> Facts:
    """Return the facts of a backend by its name; a user's own has the defaults."""
    return FACTS.get(backend, Facts(reference=backend))


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place of a process in its run.

    Args:
        process_index: Index of this process, from 0. Process 0 is the chief.
        process_count: Number of processes.
        num_replicas: Number of replicas, one on each device, over all processes. Where samples are
            split, or the network is in stages, several devices share a sample.
        addresses: "host:port" of every process, in order. The ports are free at the start.
        is_profiled: Whether `profile` will be called.
        pairs: The pairs of replicas that exchange while others do not, in stages of split samples;
            none in other runs.
    """

    process_index: int = 0
    process_count: int = 1
    num_replicas: int = 1
    addresses: tuple[str, ...] = field(default=("localhost:0",))
    is_profiled: bool = False
    pairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.process_index < self.process_count:
            raise ValueError(
                f"process_index must lie in 0..{self.process_count - 1}, got {self.process_index}."
            )
        check_shares(self.num_replicas, self.process_count)
        if len(self.addresses) != self.process_count:
            raise ValueError(
                f"{self.process_count} processes need as many addresses; got {self.addresses}."
            )

    @property
    def local_replicas(self) -> range:
        """The replicas of this process."""
        share = self.num_replicas // self.process_count
        return range(self.process_index * share, (self.process_index + 1) * share)

    @property
    def place_on_host(self) -> tuple[int, int]:
        """Index of this process among the processes of its host, and their number."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        host = hosts[self.process_index]
        return hosts[: self.process_index].count(host), hosts.count(host)


def check_shares(num_replicas: int, process_count: int) -> None:
    """Raise ValueError if processes cannot have as many replicas each."""
    if num_replicas % process_count:
        raise ValueError(
            f"num_replicas={num_replicas} cannot be shared equally by process_count="
            f"{process_count}. Choose a multiple of it."
        )


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The place of a process in its run, as its backend knows it after the start."""

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

    The training loop calls `start` first and `stop` last, also after an error. All other code is
    the same for every backend.
    """

    name: str

    def start(self) -> Topology:
        """Take the devices and connect to the other processes."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which the model and the optimizer are created."""

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        """Return this process's batches for `run`.

        `pipeline(local_replicas)` yields the batches of the local replicas in turn, step after
        step. It is a function so that nothing batches or shards its samples again.
        """

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Run `step` once on each local replica, inside a tf.function.

        Returns the outputs of `step`, each stacked along a leading axis of local replicas.
        """

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the means over all replicas. Called inside `step`, on every replica."""

    def exchange(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        """Send a tensor to each replica of `sent`; return what the replicas of `received` send.

        Called inside `step`, on every replica, in the same order on all; some have nothing to
        send or to receive. `received` has the shapes, and all tensors are of type `dtype`. Only
        runs with `split`, `stages` or `zero` need this method. With the first two together only
        two that exchange make the same calls in one order (`Facts.exchanges_in_pairs`).
        """

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a float64 array over all processes. Serves as a barrier too."""

    def profile(self, folder: Path) -> AbstractContextManager[Any]:
        """Return a context in which the backend writes its own profile, if it has one.

        `folder` belongs to this process alone. Only the chief calls this, in profiled runs.
        """

    def stop(self) -> None:
        """Disconnect from the other processes and free the devices."""


def check_backend(name: str, backend: Any) -> None:
    """Raise ValueError for an object that lacks methods of a backend."""
    # One that cannot exchange trains whole samples.
    methods = [key for key in vars(Backend) if not key.startswith("_") and key != "exchange"]
    missing = [key for key in methods if not callable(getattr(backend, key, None))]
    if missing:
        raise ValueError(
            f"The backend {name!r} is a {type(backend).__name__} without {', '.join(missing)}. A "
            "backend has the methods of tfunet.backend.Backend."
        )


def num_processes(keys: PlacementKeys) -> int:
    """Return the number of processes of a run.

    Raises ValueError for an unknown backend, and for more replicas or processes than it can have.
    """
    expand("backend", keys.backend, BACKENDS)
    facts = facts_of(keys.backend)
    if facts.one_replica and keys.num_replicas > 1:
        others = ", ".join(name for name, other in FACTS.items() if not other.one_replica)
        raise ValueError(
            f"The backend {keys.backend!r} trains one replica, got num_replicas="
            f"{keys.num_replicas}. Leave out num_replicas, or choose another backend: {others}."
        )
    if facts.one_replica and keys.stages > 1:
        others = ", ".join(name for name, other in FACTS.items() if not other.one_replica)
        raise ValueError(
            f"stages={keys.stages} needs a device for each stage, and the backend "
            f"{keys.backend!r} has one. Leave out stages, or choose another backend: {others}."
        )
    if facts.one_process and keys.stages > 1 and keys.num_replicas > 1:
        others = ", ".join(name for name, other in FACTS.items() if not other.one_process)
        raise ValueError(
            f"stages={keys.stages} with num_replicas={keys.num_replicas} needs a process for each "
            f"stage, and the backend {keys.backend!r} has one process. Leave out num_replicas, or "
            f"choose another backend: {others}."
        )
    is_split = keys.num_devices > keys.num_replicas * keys.stages
    if keys.stages > 1 and is_split and not facts.exchanges_in_pairs:
        able = ", ".join(name for name, other in FACTS.items() if other.exchanges_in_pairs)
        raise ValueError(
            f"stages={keys.stages} with split={list(keys.split)} needs devices that exchange in "
            "pairs, since stages exchange borders at different times, and all devices of the "
            f"backend {keys.backend!r} meet in every exchange. Choose {able}, or leave out stages "
            "or split."
        )
    if facts.one_replica and keys.num_devices > 1:
        others = ", ".join(name for name, other in FACTS.items() if not other.one_replica)
        raise ValueError(
            f"The backend {keys.backend!r} has one device, and split={list(keys.split)} needs "
            f"{keys.num_devices}. Leave out split, or choose another backend: {others}."
        )
    if not facts.one_process:
        if keys.stages > 1 and keys.processes not in (None, keys.num_devices):
            raise ValueError(
                f"stages={keys.stages} with num_replicas={keys.num_replicas} needs a process for "
                f"each of {keys.num_devices} devices, got processes={keys.processes}. Leave out "
                "processes."
            )
        return keys.processes or keys.num_devices
    if keys.processes not in (None, 1):
        raise ValueError(
            f"The backend {keys.backend!r} runs in one process, got processes={keys.processes}. "
            "Leave out processes, or choose another backend."
        )
    return 1


# Keras callbacks that read all weights, or do so where this option is given.
READ_ALL_WEIGHTS = {
    "ModelCheckpoint": None,
    "OrbaxCheckpoint": None,
    "SwapEMAWeights": None,
    "EarlyStopping": "restore_best_weights",
    "TensorBoard": "histogram_freq",
}


def check_callbacks(config: RunConfig) -> None:
    """Raise ValueError for a callback that reads all weights, where a process has one stage's."""
    if config.stages == 1 or num_processes(config) == 1:
        return
    for table in config.callbacks:
        name = table.get("name")
        option = READ_ALL_WEIGHTS.get(str(name), "")
        if option == "" or (option is not None and not table.get(option)):
            continue
        what = f"the callback {name}" + (f" with {option}" if option else "")
        raise ValueError(
            f"stages={config.stages} cannot be combined with {what}: it reads all weights, and "
            f"each process of the backend {config.backend!r} has those of its stage. Leave it out: "
            "the run keeps its last model and a checkpoint anyway."
        )
