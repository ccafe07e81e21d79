"""One replica in each of many processes, over Horovod's core operations.

Horovod's own Keras layer is not used: with Keras 3 it does not synchronise, and reports no error.
"""

import contextlib
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import horovod.tensorflow as horovod
import numpy as np
import psutil
import tensorflow as tf
from horovod.runner.common.util.hosts import SlotInfo

from hvd.rendezvous import Rendezvous
from tfunet.backend import Launch, Topology
from tfunet.config.words import check_known

CONTROLLERS = ("gloo", "mpi")
COMPRESSIONS = {"none": horovod.Compression.none, "fp16": horovod.Compression.fp16}
# How much later than the first a process may come.
RENDEZVOUS_SECONDS = 60.0
# Fields of a SlotInfo that Horovod reads from the environment.
SLOT_FIELDS = ["hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]


@final
class HorovodBackend:
    """Processes on one or more machines, which connect over Gloo or MPI.

    Args:
        launch: The place of this process in the run.
        compression: none, or fp16 to send gradients as 16-bit numbers.
        fusion_threshold_bytes: Gradients are fused to at most this size for an all-reduce.
        cycle_time_ms: Milliseconds for which Horovod collects gradients before it reduces them.
        adasum: Combine gradients by Adasum (Maleki et al. 2020) instead of averaging them.
        controller: gloo, or mpi if mpirun or srun --mpi started the processes.
    """

    name = "horovod"
    # See `exchange_of`: on CPUs of one host, what its processes exchange need not go through it.
    shares_memory = True

    def __init__(
        self,
        launch: Launch,
        compression: str = "none",
        fusion_threshold_bytes: int = 128 * 1024 * 1024,
        cycle_time_ms: float = 1.0,
        adasum: bool = False,
        controller: str = "gloo",
    ) -> None:
        if launch.num_replicas != launch.process_count:
            raise ValueError(
                f"Horovod has one replica per process, got {launch.num_replicas} replicas in "
                f"{launch.process_count} processes. Leave out processes."
            )
        check_known("compression", compression, COMPRESSIONS)
        check_known("controller", controller, CONTROLLERS)
        if controller == "mpi" and not horovod.mpi_built():
            raise ValueError(
                "This Horovod was built without MPI. Install MPI (Debian: libopenmpi-dev), then "
                "type: make horovod. Or use controller = 'gloo'."
            )
        if fusion_threshold_bytes < 0 or cycle_time_ms <= 0:
            raise ValueError(
                "fusion_threshold_bytes must not be negative and cycle_time_ms must be positive, "
                f"got {fusion_threshold_bytes} and {cycle_time_ms}."
            )
        if adasum and launch.num_replicas & (launch.num_replicas - 1):
            raise ValueError(
                f"adasum needs num_replicas to be a power of two, got {launch.num_replicas}."
            )
        self._launch = launch
        self._controller = controller
        self._compression = COMPRESSIONS[compression]
        self._op = horovod.Adasum if adasum else horovod.Average
        self._tunables = {
            "HOROVOD_FUSION_THRESHOLD": str(fusion_threshold_bytes),
            "HOROVOD_CYCLE_TIME": str(cycle_time_ms),
        }
        self._rendezvous: Rendezvous | None = None
        self._sets = {pair: horovod.ProcessSet(pair) for pair in launch.pairs}
        self._named: Counter[str] = Counter()

    def start(self) -> Topology:
        launch = self._launch
        slots = slots_of(launch.addresses)
        slot = slots[launch.process_index]
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            gpu = gpus[slot.local_rank if len(gpus) >= slot.local_size else 0]
            tf.config.set_visible_devices(gpu, "GPU")
            if tf.config.get_logical_device_configuration(gpu) is None:  # It has no cap.
                tf.config.experimental.set_memory_growth(gpu, True)
        self._zero = tf.Variable(0.0, trainable=False)
        os.environ.update(self._tunables)
        if self._controller == "gloo":
            self._meet_over_gloo(slots)
        else:
            os.environ.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
        if launch.is_profiled:
            os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # So that it can be started later.
        horovod.init(process_sets=list(self._sets.values()))
        self._close_rendezvous()
        if (horovod.rank(), horovod.size()) != (launch.process_index, launch.process_count):
            raise ValueError(
                f"This is process {launch.process_index} of {launch.process_count}, but "
                f"{self._controller} reports process {horovod.rank()} of {horovod.size()}. With "
                "controller = 'mpi', start the run with mpirun, or give a study srun = "
                '["--mpi=pmix"] in [slurm].'
            )
        return Topology(
            process_index=horovod.rank(),
            process_count=horovod.size(),
            num_replicas=horovod.size(),
            local_replicas=range(horovod.rank(), horovod.rank() + 1),
        )

    def _meet_over_gloo(self, slots: Sequence[SlotInfo]) -> None:
        addresses, slot = self._launch.addresses, slots[self._launch.process_index]
        _check_host_name(slots, socket.gethostname(), slot.hostname)
        host, port = addresses[0].rsplit(":", 1)
        if slot.rank == 0:
            self._rendezvous = Rendezvous(host, int(port), slots)
        _await_port(host, int(port))
        os.environ.update(_gloo_environment(slot, host, port, addresses))

    def _close_rendezvous(self) -> None:
        """Close the chief's store when all processes are connected: nobody needs it any more."""
        if self._controller == "gloo":
            self.sum(np.zeros(1))  # A barrier.
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        return pipeline(self._launch.local_replicas)

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        with _HorovodReplica(tf.distribute.get_strategy(), 0, self._name):
            outputs = step(*arguments)
        return tf.nest.map_structure(lambda value: value[None], outputs)

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(
            horovod.grouped_allreduce(
                list(gradients),
                op=self._op,
                compression=self._compression,
                name=self._name("gradients"),
            )
        )

    def _name(self, *kind: object) -> str:
        """Return a name for the next operation of a kind, the same in all that take part.

        Horovod pairs operations by name. All processes trace those of a kind in one order. Names
        that follow from tensors are not the same where samples are split: some devices add up more.
        """
        name = "-".join(["tfunet", *map(str, kind)])
        self._named[name] += 1
        return f"{name}-no{self._named[name]}"

    def exchange(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        me = self._launch.process_index
        if not self._sets:
            # One operation for all pairs of processes.
            everyone = range(self._launch.num_replicas)
            return self._exchange_among(
                tuple(everyone), horovod.global_process_set, sent, received, dtype
            )
        came: dict[int, tf.Tensor] = {}
        for other in sorted({*sent, *received}):
            pair = (min(me, other), max(me, other))
            came |= self._exchange_among(
                pair,
                self._sets[pair],
                {other: sent[other]} if other in sent else {},
                {other: received[other]} if other in received else {},
                dtype,
            )
        return came

    def _exchange_among(
        self,
        members: tuple[int, ...],
        process_set: horovod.ProcessSet,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        """Exchange in one operation, in which all members take part."""
        me = self._launch.process_index
        # TensorFlow runs an operation whose inputs are all constant while it optimizes the graph,
        # and it finds out that what is multiplied by zero is one. There it would wait for the
        # others for ever. So a number that no optimizer knows goes to itself.
        given = {
            **{other: tf.reshape(value, [-1]) for other, value in sent.items()},
            me: tf.cast(self._zero, dtype)[tf.newaxis],
        }
        came, _ = horovod.alltoall(
            tf.concat([given[member] for member in members if member in given], 0),
            splits=tf.constant(
                [given[member].shape[0] if member in given else 0 for member in members],
                tf.int32,
            ),
            name=self._name("exchange", *members),
            process_set=process_set,
        )
        shapes = {
            member: [1] if member == me else received[member]
            for member in members
            if member in {*received, me}
        }
        lengths = [math.prod(shape) for shape in shapes.values()]
        # A check has a state: with it TensorFlow keeps the operation where nothing is received.
        tf.debugging.assert_equal(tf.size(came), sum(lengths))
        parts = tf.split(came, lengths)
        return {
            other: tf.reshape(part, shape)
            for (other, shape), part in zip(shapes.items(), parts, strict=True)
            if other != me
        }

    def sum(self, values: np.ndarray) -> np.ndarray:
        return horovod.allreduce(tf.constant(values), op=horovod.Sum, name="tfunet.sum").numpy()

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        # Process 0 coordinates, and writes the timeline of all processes.
        path = folder / "horovod.json"
        path.unlink(missing_ok=True)  # Horovod would follow a link.
        horovod.start_timeline(str(path))
        try:
            yield
        finally:
            horovod.stop_timeline()

    def stop(self) -> None:
        horovod.shutdown()


class _HorovodReplica(tf.distribute.ReplicaContext):
    """Makes all-reduces of TensorFlow use Horovod, as in synchronised batch normalisation."""

    def __init__(self, strategy: Any, number: int, name: Callable[[str], str]) -> None:
        super().__init__(strategy, number)
        self._operation = name

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        mean = reduce_op in (tf.distribute.ReduceOp.MEAN, "MEAN", "mean")
        op = horovod.Average if mean else horovod.Sum

        def reduced(tensor: Any) -> Any:
            return horovod.allreduce(tensor, op=op, name=self._operation("all_reduce"))

        differentiable = tf.custom_gradient(lambda tensor: (reduced(tensor), reduced))
        return tf.nest.map_structure(differentiable, value)


def slots_of(addresses: Sequence[str]) -> list[SlotInfo]:
    """Return Horovod's ranks for "host:port" addresses: rank i has address i.

    A local rank numbers the processes of a host. A cross rank numbers the processes with the same
    local rank over all hosts.
    """
    hosts = [address.rsplit(":", 1)[0] for address in addresses]
    local_ranks = [hosts[:index].count(host) for index, host in enumerate(hosts)]
    return [
        SlotInfo(
            hostname=host,
            rank=index,
            local_rank=local_ranks[index],
            cross_rank=local_ranks[:index].count(local_ranks[index]),
            size=len(hosts),
            local_size=hosts.count(host),
            cross_size=local_ranks.count(local_ranks[index]),
        )
        for index, host in enumerate(hosts)
    ]


def _gloo_environment(
    slot: SlotInfo, host: str, port: str, addresses: Sequence[str]
) -> dict[str, str]:
    environment = {
        **{f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in SLOT_FIELDS},
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(host),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        # By default 30 seconds.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": os.environ.get(
            "HOROVOD_GLOO_TIMEOUT_SECONDS", f"{RENDEZVOUS_SECONDS:.0f}"
        ),
    }
    interface = _interface_of(addresses[slot.rank].rsplit(":", 1)[0])
    if interface:
        environment["HOROVOD_GLOO_IFACE"] = interface
    return environment


def _interface_of(host: str) -> str:
    """Return the network interface with the address of `host`, or an empty string."""
    address = socket.gethostbyname(host)
    for interface, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return interface
    # All addresses in 127/8 are loopback, even if none of them is listed.
    return "lo" if address.startswith("127.") else ""


def _check_host_name(slots: Sequence[SlotInfo], name: str, address: str) -> None:
    """Raise ValueError if Horovod would end for a host without an address, or give other hosts a
    loopback address of this host.

    HOROVOD_GLOO_IFACE does not prevent it: Horovod 0.28 ignores it for its second set of
    connections (GlooContext::InitializeForProcessSet), and looks up the host's name instead.
    """
    try:
        resolved = socket.gethostbyname(name)
    except OSError:
        resolved = "unknown"
    if len({slot.hostname for slot in slots}) == 1:
        if resolved == "unknown":
            raise ValueError(
                f"Horovod looks up the name of this host, and {name} has no address. Give it one, "
                f"with this line in /etc/hosts: 127.0.0.1 {name}"
            )
        return
    if resolved == "unknown" or resolved.startswith("127."):
        raise ValueError(
            f"Other hosts cannot reach this one: Horovod looks up its name, and {name} is "
            f"{resolved}. Make it {address}, with this line in /etc/hosts: {address} {name}"
        )


def _await_port(host: str, port: int) -> None:
    end = time.monotonic() + RENDEZVOUS_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.05)
    raise ConnectionError(
        f"The chief did not open {host}:{port} within {RENDEZVOUS_SECONDS:.0f} s. See its log."
    )
