"""One replica in each of many processes, over Horovod's core operations.

Horovod's own Keras layer does not synchronise with Keras 3, and says nothing; only its core
operations are used here.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

import horovod.tensorflow as horovod
import numpy as np
import psutil
import tensorflow as tf
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from tfunet.backend import Launch, Topology

CONTROLLERS = ("gloo", "mpi")
COMPRESSIONS = {"none": horovod.Compression.none, "fp16": horovod.Compression.fp16}
RENDEZVOUS_SECONDS = 60.0


@final
class HorovodBackend:
    """Processes on one or more machines, which meet over Gloo or MPI.

    Args:
        launch: What this process is told of the run.
        compression: none, or fp16 for gradients on the wire.
        fusion_threshold_bytes: Gradients are fused to at most this size for one all-reduce.
        cycle_time_ms: Milliseconds for which Horovod collects gradients before it reduces them.
        adasum: Combine gradients by Adasum (Maleki et al. 2020) instead of their mean.
        controller: gloo, or mpi where mpirun or srun --mpi started the processes.
    """

    name = "horovod"

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
                f"Horovod has one replica a process, got {launch.num_replicas} replicas in "
                f"{launch.process_count} processes. Leave 'processes' out."
            )
        if compression not in COMPRESSIONS:
            raise ValueError(
                f"Unknown compression {compression!r}. Known: {', '.join(COMPRESSIONS)}."
            )
        if controller not in CONTROLLERS:
            raise ValueError(f"Unknown controller {controller!r}. Known: {', '.join(CONTROLLERS)}.")
        if controller == "mpi" and not horovod.mpi_built():
            raise ValueError(
                "This Horovod was built without MPI. Install one (Debian: libopenmpi-dev), then "
                "type: make horovod. Or use controller = 'gloo'."
            )
        if fusion_threshold_bytes < 0 or cycle_time_ms <= 0:
            raise ValueError(
                "fusion_threshold_bytes must not be negative and cycle_time_ms must be positive, "
                f"got {fusion_threshold_bytes} and {cycle_time_ms}."
            )
        if adasum and launch.num_replicas & (launch.num_replicas - 1):
            raise ValueError(f"Adasum needs a power of two replicas, got {launch.num_replicas}.")
        self._launch = launch
        self._controller = controller
        self._compression = COMPRESSIONS[compression]
        self._op = horovod.Adasum if adasum else horovod.Average
        self._tunables = {
            "HOROVOD_FUSION_THRESHOLD": str(fusion_threshold_bytes),
            "HOROVOD_CYCLE_TIME": str(cycle_time_ms),
        }
        self._server: RendezvousHTTPServer | None = None

    def start(self) -> Topology:
        launch = self._launch
        slots = slots_of(launch.addresses)
        own = slots[launch.process_index]
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            mine = gpus[own.local_rank if len(gpus) >= own.local_size else 0]
            tf.config.set_visible_devices(mine, "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
        os.environ.update(self._tunables)
        if self._controller == "gloo":
            self._meet_over_gloo(slots)
        else:
            os.environ.update(HOROVOD_CONTROLLER="mpi", HOROVOD_CPU_OPERATIONS="mpi")
        if launch.is_profiled:
            os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # or it cannot be started later
        horovod.init()
        if (horovod.rank(), horovod.size()) != (launch.process_index, launch.process_count):
            raise ValueError(
                f"{self._controller} says that this is process {horovod.rank()} of "
                f"{horovod.size()}, and what started it, {launch.process_index} of "
                f"{launch.process_count}. With controller = 'mpi', start it by mpirun, or in a "
                'study by srun = ["--mpi=pmix"] in [slurm].'
            )
        return Topology(
            process_index=horovod.rank(),
            process_count=horovod.size(),
            num_replicas=horovod.size(),
            local_replicas=range(horovod.rank(), horovod.rank() + 1),
        )

    def _meet_over_gloo(self, slots: Sequence[SlotInfo]) -> None:
        addresses, own = self._launch.addresses, slots[self._launch.process_index]
        _check_own_name(slots, socket.gethostname(), own.hostname)
        host, port = addresses[0].rsplit(":", 1)
        if own.rank == 0:
            self._server = _serve_rendezvous(host, int(port), slots)
        _await_port(host, int(port))
        os.environ.update(_gloo_environment(own, host, port, addresses))

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        return pipeline(self._launch.local_replicas)

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        with _HorovodReplica(tf.distribute.get_strategy(), 0):
            outputs = step(*arguments)
        return tf.nest.map_structure(lambda value: value[None], outputs)

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(
            horovod.grouped_allreduce(list(gradients), op=self._op, compression=self._compression)
        )

    def sum(self, values: np.ndarray) -> np.ndarray:
        return horovod.allreduce(tf.constant(values), op=horovod.Sum, name="tfunet.sum").numpy()

    @contextlib.contextmanager
    def profile(self, folder: Path) -> Iterator[None]:
        # Process 0 coordinates, and writes for all.
        horovod.start_timeline(str(folder / "horovod.json"))
        try:
            yield
        finally:
            horovod.stop_timeline()

    def stop(self) -> None:
        horovod.shutdown()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _HorovodReplica(tf.distribute.ReplicaContext):
    """Makes synchronised batch normalisation, and all else that asks TensorFlow, use Horovod."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        mean = reduce_op in (tf.distribute.ReduceOp.MEAN, "MEAN", "mean")
        op = horovod.Average if mean else horovod.Sum
        return tf.nest.map_structure(lambda one: horovod.allreduce(one, op=op), value)


def slots_of(addresses: Sequence[str]) -> list[SlotInfo]:
    """Return Horovod's ranks for "host:port" addresses: rank i is address i.

    Local ranks count the processes of a host; cross ranks count the hosts that have such a local
    rank.
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
    own: SlotInfo, host: str, port: str, addresses: Sequence[str]
) -> dict[str, str]:
    environment = {
        "HOROVOD_HOSTNAME": own.hostname,
        "HOROVOD_RANK": str(own.rank),
        "HOROVOD_SIZE": str(own.size),
        "HOROVOD_LOCAL_RANK": str(own.local_rank),
        "HOROVOD_LOCAL_SIZE": str(own.local_size),
        "HOROVOD_CROSS_RANK": str(own.cross_rank),
        "HOROVOD_CROSS_SIZE": str(own.cross_size),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(host),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    interface = _interface_of(addresses[own.rank].rsplit(":", 1)[0])
    if interface:
        environment["HOROVOD_GLOO_IFACE"] = interface
    return environment


def _interface_of(host: str) -> str:
    """Return the network interface that has the address of `host`, or an empty string."""
    address = socket.gethostbyname(host)
    for interface, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return interface
    # All of 127/8 is loopback, also the entries that are not listed.
    return "lo" if address.startswith("127.") else ""


def _check_own_name(slots: Sequence[SlotInfo], name: str, address: str) -> None:
    """Raise ValueError where Horovod would tell other hosts a loopback address of this one.

    HOROVOD_GLOO_IFACE is not enough: Horovod 0.28 forgets it for its second set of connections
    (GlooContext::InitializeForProcessSet), and there looks up the host's own name.
    """
    if len({slot.hostname for slot in slots}) == 1:
        return
    try:
        found = socket.gethostbyname(name)
    except OSError:
        found = "unknown"
    if found == "unknown" or found.startswith("127."):
        raise ValueError(
            f"Horovod looks up this host's own name, and {name} is {found}, where other hosts "
            f"cannot reach it. Let it be {address}, as in /etc/hosts: {address} {name}"
        )


def _serve_rendezvous(host: str, port: int, slots: Sequence[SlotInfo]) -> RendezvousHTTPServer:
    server = RendezvousHTTPServer((host, port), RendezvousHandler, 0)
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _await_port(host: str, port: int) -> None:
    for _ in _attempts(RENDEZVOUS_SECONDS):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
    raise ConnectionError(
        f"The chief did not open {host}:{port} within {RENDEZVOUS_SECONDS:.0f} s. See its log."
    )


def _attempts(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
