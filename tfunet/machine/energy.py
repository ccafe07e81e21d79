"""Joules from the counters that a machine has: CPU packages and NVIDIA GPUs. No TensorFlow.

CPU packages are read as the kernel documents it (https://docs.kernel.org/power/powercap/
powercap.html), GPUs by nvmlDeviceGetTotalEnergyConsumption of NVIDIA's NVML (Volta and later).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from tfunet.backend import Backend, Topology

POWERCAP_VARIABLE = "TFUNET_POWERCAP"
POWERCAP = "/sys/class/powercap"
# Only packages: zones of other names are parts of them (core, dram), or hold them (psys).
PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
NVML = "libnvidia-ml.so.1"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
# A counter of 32 bits at 15 microjoules starts again after 2 minutes at 500 W.
READ_SECONDS = 20.0
# Of a run that begins.
NOTHING_YET = {"joules": 0.0}


@dataclass(frozen=True, kw_only=True)
class Counter:
    """A counter of energy that grows, and starts again at 0 after `range_joules`.

    Args:
        name: "package-0", "GPU 0".
        is_package: Whether it is of a CPU package; else of a GPU.
        read: Returns joules; raises OSError where it cannot be read.
    """

    name: str
    is_package: bool
    read: Callable[[], float]
    range_joules: float


def powercap_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the kernel's power zones, or the one that takes its place."""
    return Path(environment.get(POWERCAP_VARIABLE, POWERCAP))


def counters(*, with_gpus: bool) -> list[Counter]:
    """Return the counters of this machine that can be read."""
    found = package_counters(powercap_root()) + (gpu_counters(load_nvml()) if with_gpus else [])
    return [one for one in found if is_readable(one)]


def package_counters(root: Path) -> list[Counter]:
    """Return a counter for each CPU package in a powercap folder, readable or not."""
    found = []
    for zone in sorted(root.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            # Both are in microjoules.
            range_joules = float((zone / "max_energy_range_uj").read_text()) / 1e6
        except (OSError, ValueError):
            continue
        if PACKAGE.fullmatch(name):
            read = _reader(zone / "energy_uj")
            found.append(Counter(name=name, is_package=True, read=read, range_joules=range_joules))
    return found


def load_nvml() -> Any:
    """Return NVIDIA's management library; None where there is none."""
    try:
        return ctypes.CDLL(NVML)
    except OSError:
        return None


def gpu_counters(nvml: Any) -> list[Counter]:
    """Return a counter for each GPU that NVML shows, readable or not; CUDA_VISIBLE_DEVICES hides
    none from it."""
    count = ctypes.c_uint()
    needs = ("nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", ENERGY)
    # A library of an old driver, or a stub to link with, lacks some.
    if nvml is None or not all(hasattr(nvml, one) for one in needs):
        return []
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
            name = f"GPU {index}"
            read = _gpu_reader(nvml, device, name)
            # Millijoules in 64 bits.
            limit = 2.0**64 / 1000
            found.append(Counter(name=name, is_package=False, read=read, range_joules=limit))
    return found


def is_readable(counter: Counter) -> bool:
    """Return whether a counter tells a number."""
    try:
        counter.read()
    except OSError:
        return False
    return True


def spent(before: float, after: float, range_joules: float) -> float:
    """Return the joules between two readings less than one turn of the counter apart."""
    return after - before if after >= before else after - before + range_joules


@final
class Meter:
    """Sums what counters spend while it lives: in a thread, since they start again at 0 often."""

    def __init__(self, chosen: Sequence[Counter], *, read_seconds: float = READ_SECONDS) -> None:
        self._counters = tuple(chosen)
        self._lock = threading.Lock()
        self._joules: float | None = 0.0 if chosen else None
        self._last: list[float] = []
        self._read()
        self._closed = threading.Event()
        if chosen:
            threading.Thread(target=self._watch, args=(read_seconds,), daemon=True).start()

    def joules(self) -> float | None:
        """Return what was spent until now; None once a counter cannot be read, and without any."""
        self._read()
        return self._joules

    def close(self) -> None:
        """Read no more by itself."""
        self._closed.set()

    def _watch(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            self._read()

    def _read(self) -> None:
        with self._lock:
            if self._joules is None:
                return
            try:
                now = [one.read() for one in self._counters]
            except OSError:
                self._joules = None
                return
            for one, before, after in zip(self._counters, self._last or now, now, strict=True):
                self._joules += spent(before, after, one.range_joules)
            self._last = now


@final
class RunEnergy:
    """The energy of a run over all its hosts, of each of which one process reads the counters.

    Made, and asked, by all processes together.

    Args:
        before: What `so_far` returned when the run that goes on here was saved; None if its
            record does not tell.
        with_gpus: Whether the run uses GPUs; then all of a host's count.
    """

    def __init__(
        self,
        backend: Backend,
        topology: Topology,
        *,
        before: Mapping[str, float] | None,
        with_gpus: bool,
    ) -> None:
        self._backend = backend
        self._before = before
        import numpy as np  # The doctor reads counters without it.

        machines = np.zeros(topology.process_count)
        machines[topology.process_index] = machine_number()
        machines = backend.sum(machines)
        self._counts = is_first_of_machine(machines.tolist(), topology.process_index)
        chosen = counters(with_gpus=with_gpus) if self._counts else []
        num_packages = sum(one.is_package for one in chosen)
        self._numbers = [float(num_packages), float(len(chosen) - num_packages)]
        self._meter = Meter(chosen)

    def so_far(self) -> dict[str, float] | None:
        """Return the run's joules until now, and of how many CPU packages and GPUs they are.

        None where a host has no counter that can be read.
        """
        import numpy as np

        own = self._meter.joules()
        is_blind = self._counts and own is None
        values = np.array([float(is_blind), own or 0.0, *self._numbers])
        num_blind, joules, packages, gpus = self._backend.sum(values).tolist()
        if num_blind or self._before is None:
            return None
        return {"joules": self._before["joules"] + joules, "packages": packages, "gpus": gpus}

    def close(self) -> None:
        """Read no more by itself."""
        self._meter.close()


def is_first_of_machine(machines: Sequence[float], process_index: int) -> bool:
    """Return whether no process with a lower index is on the same machine."""
    return machines[process_index] not in machines[:process_index]


def machine_number() -> int:
    """Return a number below 2**48 that the processes on one machine share, in containers too."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = socket.gethostname()
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])


def _reader(path: Path) -> Callable[[], float]:
    def read() -> float:
        try:
            return float(path.read_text()) / 1e6
        except ValueError as error:
            raise OSError(f"{path} holds no number: {error}") from error

    return read


def _gpu_reader(nvml: Any, device: ctypes.c_void_p, name: str) -> Callable[[], float]:
    def read() -> float:
        millijoules = ctypes.c_ulonglong()
        code = nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules))
        if code:
            raise OSError(f"{name} tells no energy: NVML's error {code}")
        return millijoules.value / 1000

    return read
