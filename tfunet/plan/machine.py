"""Machines to plan for: their devices, and what messages between them take. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple, final

import numpy as np

from tfunet.backend import facts_of
from tfunet.config.amount import GB, GIB
from tfunet.config.words import near_match
from tfunet.performance.devices import DEVICES, Device, known_device


class Interconnect(NamedTuple):
    """The network between the hosts of a cluster, for one host, in each direction."""

    bytes_per_second: float
    seconds: float
    source: str


MICRO = 1e-6
# Rates are those of the wire: an average of large tensors reaches WIRE_SHARE of it.
INTERCONNECTS = {
    "edr": Interconnect(12.5 * GB, 2 * MICRO, "InfiniBand EDR, 100 Gbit/s"),
    "2xedr": Interconnect(25 * GB, 2 * MICRO, "two InfiniBand EDR adapters, as in Summit"),
    "hdr": Interconnect(25 * GB, 2 * MICRO, "InfiniBand HDR, 200 Gbit/s"),
    "ndr": Interconnect(50 * GB, 2 * MICRO, "InfiniBand NDR, 400 Gbit/s"),
    "opa": Interconnect(12.5 * GB, 2 * MICRO, "Omni-Path, 100 Gbit/s"),
    "slingshot": Interconnect(25 * GB, 2 * MICRO, "HPE Slingshot 11, 200 Gbit/s"),
    "10gbe": Interconnect(1.25 * GB, 30 * MICRO, "Ethernet, 10 Gbit/s"),
    "25gbe": Interconnect(3.125 * GB, 20 * MICRO, "Ethernet, 25 Gbit/s"),
    "100gbe": Interconnect(12.5 * GB, 10 * MICRO, "Ethernet, 100 Gbit/s"),
}
WIRE_SHARE = 0.8
# Between two devices of a host.
HOP_SECONDS = 10 * MICRO
# Before its bytes move, an average or exchange waits for all devices to agree: with Horovod until
# its thread wakes, which it does every millisecond, and has asked all processes.
AGREEING = {"mirrored": 100 * MICRO, "multiworker": 500 * MICRO, "horovod": 2000 * MICRO}
OTHERS_AGREEING = 500 * MICRO
# A host whose cores are not given.
CORES = 32
# Where nothing was measured: a core in convolutions and in moving bytes, how much faster so many
# cores are, how long an op takes to start, and what messages between its processes take.
CORE = Device(
    memory_bytes=4 * GIB,
    flops_per_second=60e9,
    half_flops_per_second=60e9,
    bytes_per_second=8 * GB,
    link_bytes_per_second=4 * GB,
    source="estimate of one CPU core",
)
CORES_POWER = 0.65
CORE_WIRE = Interconnect(0.6 * GB, 0.0, "estimate of processes that share cores")
CORE_AGREEING = {"mirrored": 600 * MICRO, "multiworker": 1000 * MICRO, "horovod": 2000 * MICRO}
# How much longer cores take while all of them compute.
BUSY = 1.05


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """Seconds of messages of so many bytes, as measured; between and beyond them straight lines."""

    num_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def __call__(self, num_bytes: float) -> float:
        """Return the seconds of a message."""
        if num_bytes <= self.num_bytes[-1] or len(self.num_bytes) == 1:
            return float(np.interp(num_bytes, self.num_bytes, self.seconds))
        rate = (self.seconds[-1] - self.seconds[-2]) / (self.num_bytes[-1] - self.num_bytes[-2])
        return self.seconds[-1] + max(rate, 0.0) * (num_bytes - self.num_bytes[-1])

    def faster(self, times: float) -> "Curve":
        """Return the curve where bytes move so many times as fast; the beginning takes as long."""
        first = self.seconds[0]
        return Curve(
            num_bytes=self.num_bytes,
            seconds=tuple(first + (one - first) / times for one in self.seconds),
        )


@final
@dataclass(frozen=True, kw_only=True)
class Machine:
    """Hosts with equal devices.

    Args:
        name: As the user wrote it.
        device: One device; of a host whose cores compute, one core.
        devices: Devices of a host: its cores, or more that share them.
        memory_bytes: What a device has; of a host whose cores compute, the host.
        limit_bytes: What a device may use of it, if not all.
        is_cpu: Whether the cores of a host compute, which its devices share out.
        cores: Cores of a host, which prepare samples, too.
        cores_each: Cores on which a device computes at most; 0 for its share of all.
        across: The network between hosts.
        devices_per_bus: Devices that share the link to their host.
        averages, exchanges: By backend, as measured with two devices; others are estimated.
        busy: How much longer cores take while all of them compute.
        estimates: What was estimated, in words.
    """

    name: str
    device: Device
    devices: int
    memory_bytes: int
    limit_bytes: int | None = None
    hosts: int = 1
    is_cpu: bool = False
    cores: int = CORES
    cores_each: int = 0
    across: Interconnect = INTERCONNECTS["edr"]
    devices_per_bus: int = 1
    averages: Mapping[str, Curve] = field(default_factory=dict)
    exchanges: Mapping[str, Curve] = field(default_factory=dict)
    busy: float = BUSY
    estimates: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return self.hosts * self.devices

    def shares_pool(self, backend: str, count: int) -> bool:
        """Whether `count` devices are one process, whose threads all cores run in turns."""
        return self.is_cpu and count > 1 and facts_of(backend).one_process

    def device_bytes(self, backend: str, count: int) -> int:
        """Return the memory of each of `count` devices in use."""
        in_use = min(count, self.devices)
        share = self.memory_bytes // (in_use if self.is_cpu else 1)
        if self.limit_bytes is None:
            return share
        # The limit is that of a process.
        limit = self.limit_bytes // (in_use if self.shares_pool(backend, count) else 1)
        return min(limit, share)

    def device_cores(self, backend: str, count: int) -> int:
        """Return the cores on which each of `count` devices computes; 0 if cores do not compute."""
        if not self.is_cpu:
            return 0
        in_use, most = min(count, self.devices), self.cores_each or self.cores
        if self.shares_pool(backend, count):
            return min(self.cores, most * in_use)
        return max(1, min(self.cores // in_use, most))

    def crowd(self, count: int) -> float:
        """Return how many of `count` devices share a core; 1 where each has one of its own."""
        return max(1.0, min(count, self.devices) / self.cores) if self.is_cpu else 1.0

    def slowdown(self, backend: str, count: int) -> float:
        """Return how much longer a device computes while `count` of them do."""
        in_use = min(count, self.devices)
        if self.shares_pool(backend, count):
            return float(in_use)
        if not self.is_cpu or self.cores == 1:
            return self.crowd(count)
        at_work = min(in_use, self.cores)
        return self.crowd(count) * (1.0 + (self.busy - 1.0) * (at_work - 1) / (self.cores - 1))

    def average_seconds(self, num_bytes: float, count: int, backend: str) -> float:
        """Return how long `count` devices take for the average of gradients of so many bytes.

        A ring: each device sends 2 (n - 1) / n of the bytes; a host's devices share its network.
        """
        if count == 1:
            return 0.0
        share = 2 * (count - 1) / count
        if backend in self.averages:
            return self.averages[backend](num_bytes) * share * self.crowd(count)
        rate, hop = self._wire(count)
        return self._agreeing(backend) + share * num_bytes / rate + 2 * (count - 1) * hop

    def exchange_seconds(self, num_bytes: float, count: int, backend: str) -> float:
        """Return how long a device takes to send so many bytes to its neighbours among `count`."""
        if backend in self.exchanges:
            return self.exchanges[backend](num_bytes) * self.crowd(count)
        rate, hop = self._wire(count)
        return self._agreeing(backend) + num_bytes / rate + hop

    def copy_rate(self) -> float:
        """Return the bytes a second between a device and its host, in each direction, while all
        devices on its bus copy."""
        return self.device.link_bytes_per_second / self.devices_per_bus

    def copies_seconds(self, num_bytes: float, count: int, other: float, hidden: float) -> float:
        """Return how much longer the steps of `count` devices are for copies to the host and back.

        Devices on a bus wait for each other in each direction, as often as their copies meet: the
        mean value analysis of a closed queueing network (Reiser and Lavenberg 1980).

        Args:
            num_bytes: What goes each way in a step.
            other: Seconds of the step without copies.
            hidden: Of them, those of each way behind which copies hide.
        """
        alone = num_bytes / self.device.link_bytes_per_second
        longer, waiting = 0.0, 0.0
        for sharing in range(1, min(self.devices_per_bus, count) + 1):
            seconds = alone * (1 + waiting)
            longer = 2 * max(0.0, seconds - hidden)
            waiting = sharing * seconds / (other + longer) if other + longer else 0.0
        return longer

    def _agreeing(self, backend: str) -> float:
        table = CORE_AGREEING if self.is_cpu else AGREEING
        return table.get(backend, OTHERS_AGREEING)

    def _wire(self, count: int) -> tuple[float, float]:
        """Return bytes a second, and seconds to begin, between neighbours among `count` devices."""
        if count > self.devices:
            return self.across.bytes_per_second * WIRE_SHARE, self.across.seconds + HOP_SECONDS
        if self.is_cpu:
            return CORE_WIRE.bytes_per_second, CORE_WIRE.seconds
        device = self.device
        rate = device.peer_bytes_per_second or device.link_bytes_per_second
        return rate * WIRE_SHARE, HOP_SECONDS


FORM = re.compile(
    r"(?:(?P<hosts>\d+)\s*(?:nodes?|hosts?)\s*x\s*)?(?P<devices>\d+)\s*(?:x\s*)?(?P<device>[\w-]+)"
    r"(?:\s*,\s*(?P<net>[\w-]+))?(?:\s*,\s*(?P<bus>\d+) (?:to|on) a bus)?"
)
EXAMPLE = '"4 nodes x 6 v100-nvlink2, edr"'


def described(text: str, limit_bytes: int | None = None) -> Machine:
    """Return the machine that a text describes, such as "4 nodes x 6 v100-nvlink2, edr".

    "2 v100-pcie3" is one node, and ", 2 to a bus" says that so many devices share the link to their
    host. Raises ValueError, with the form and what is known, for a text that is not understood.
    """
    match = FORM.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(
            f"The cluster {text!r} is not understood. Write it as {EXAMPLE}: nodes, devices of a "
            f"node, network. Devices: {', '.join(DEVICES)}. Networks: {', '.join(INTERCONNECTS)}."
        )
    hosts, devices = int(match["hosts"] or 1), int(match["devices"])
    if min(hosts, devices) < 1:
        raise ValueError(f"The cluster {text!r} has no device. Write it as {EXAMPLE}.")
    network = match["net"]
    if network is not None and network not in INTERCONNECTS:
        raise ValueError(
            f"Unknown network {network!r}.{near_match(network, INTERCONNECTS)} Known: "
            f"{', '.join(INTERCONNECTS)}."
        )
    name = known_device(match["device"])
    device = DEVICES[name]
    estimates = ["time of each op, from data sheets", "time to agree on an average or exchange"]
    if hosts > 1 and network is None:
        estimates.append("network: edr, since none was given")
    return Machine(
        name=text.strip(),
        device=device,
        devices=devices,
        hosts=hosts,
        # One may plan for a variant of the device with more memory.
        memory_bytes=limit_bytes or device.memory_bytes,
        across=INTERCONNECTS[network or "edr"],
        devices_per_bus=int(match["bus"] or 1),
        estimates=(*estimates, f"{CORES} cores a node to prepare samples"),
    )


def of_cores(
    cores: int,
    memory_bytes: int,
    *,
    limit_bytes: int | None = None,
    devices: int | None = None,
    cores_each: int = 0,
    core: Device = CORE,
    averages: Mapping[str, Curve] | None = None,
    exchanges: Mapping[str, Curve] | None = None,
    busy: float | None = None,
    backends: Sequence[str] = (),
) -> Machine:
    """Return a host whose cores compute, or `devices` that share them; what was not measured is
    estimated."""
    estimates = []
    if core is CORE:
        estimates.append("time of each op on a core")
    if missing := [name for name in backends if name not in (averages or {})]:
        estimates.append(f"averages and exchanges of {', '.join(missing)}")
    if busy is None:
        estimates.append("what computing cores cost each other")
    return Machine(
        name=f"this machine, {cores} CPU cores",
        device=core,
        devices=devices or cores,
        cores=cores,
        cores_each=cores_each,
        memory_bytes=memory_bytes,
        limit_bytes=limit_bytes,
        is_cpu=True,
        averages=averages or {},
        exchanges=exchanges or {},
        busy=BUSY if busy is None else busy,
        estimates=tuple(estimates),
    )


def speedup(cores: int) -> float:
    """Return how much faster so many cores of one process are than one."""
    return float(cores**CORES_POWER)


def hosts_of(machine: Machine, count: int) -> int:
    """Return how many hosts `count` devices take."""
    return ceil(count / machine.devices)
