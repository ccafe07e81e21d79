"""Energy from the counters of CPU packages and NVIDIA GPUs, in joules. No TensorFlow.

CPU packages are read from the kernel's powercap folder (https://docs.kernel.org/power/powercap/
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
# Only packages: other zones are parts of them (core, dram) or contain them (psys).
PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
NVML = "libnvidia-ml.so.1"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
# A 32-bit counter of 15 microjoules starts again after 2 minutes at 500 W.
READ_SECONDS = 20.0
# The energy of a run that begins.
NOTHING_YET = {"joules": 0.0}


@dataclass(frozen=True, kw_only=True)
class Counter:
    """An energy counter of a CPU package or a GPU, which starts again at 0 after `range_joules`.

    `read` returns joules, and raises OSError where it cannot be read.
    """

    name: str
    is_package: bool
    read: Callable[[], float]
    range_joules: float


def powercap_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the kernel's power zones, or the one that TFUNET_POWERCAP names."""
    return Path(environment.get(POWERCAP_VARIABLE, POWERCAP))


def counters(*, with_gpus: bool) -> list[Counter]:
    """Return the counters of this machine that can be read."""
    gpus = gpu_counters(load_nvml()) if with_gpus else []
    return [counter for counter in package_counters(powercap_root()) + gpus if is_readable(counter)]


def package_counters(root: Path) -> list[Counter]:
    """Return a counter for each CPU package in a powercap folder, readable or not."""
    packages = []
    for zone in sorted(root.glob("intel-rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            # Both are in microjoules.
            range_joules = float((zone / "max_energy_range_uj").read_text()) / 1e6
        except (OSError, ValueError):
            continue
        if PACKAGE.fullmatch(name):
            read = _reader(zone / "energy_uj")
            packages.append(
                Counter(name=name, is_package=True, read=read, range_joules=range_joules)
            )
    return packages


def load_nvml() -> Any:
    """Return NVIDIA's management library; None if it is not installed."""
    try:
        return ctypes.CDLL(NVML)
    except OSError:
        return None


def gpu_counters(nvml: Any) -> list[Counter]:
    """Return a counter for each GPU of NVML, readable or not. CUDA_VISIBLE_DEVICES hides none."""
    count = ctypes.c_uint()
    needs = ("nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", ENERGY)
    # An old driver's library, or a stub for linking, lacks some functions.
    if nvml is None or not all(hasattr(nvml, name) for name in needs):
        return []
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    gpus = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) == 0:
            name = f"GPU {index}"
            read = _gpu_reader(nvml, device, name)
            # Millijoules in 64 bits.
            limit = 2.0**64 / 1000
            gpus.append(Counter(name=name, is_package=False, read=read, range_joules=limit))
    return gpus


def is_readable(counter: Counter) -> bool:
    """Return whether a counter can be read."""
    try:
        counter.read()
    except OSError:
        return False
    return True


def spent(before: float, after: float, range_joules: float) -> float:
    """Return the joules between two readings, of a counter that started again at most once."""
    return after - before if after >= before else after - before + range_joules


@final
class Meter:
    """Sums the energy of counters. A thread reads them, because they start again at 0 often."""

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
        """Return the joules until now; None without counters, or once one cannot be read."""
        self._read()
        return self._joules

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()

    def _watch(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            self._read()

    def _read(self) -> None:
        with self._lock:
            if self._joules is None:
                return
            try:
                now = [counter.read() for counter in self._counters]
            except OSError:
                self._joules = None
                return
            for counter, before, after in zip(self._counters, self._last or now, now, strict=True):
                self._joules += spent(before, after, counter.range_joules)
            self._last = now


@final
class RunEnergy:
    """The energy of a run over all its hosts; on each host one process reads the counters.

    All processes create it, and call `so_far`, together.

    Args:
        before: The result of `so_far` when the resumed run was saved; None if its record has none.
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
        num_packages = sum(counter.is_package for counter in chosen)
        self._numbers = [float(num_packages), float(len(chosen) - num_packages)]
        self._meter = Meter(chosen)

    def so_far(self) -> dict[str, float] | None:
        """Return the run's joules until now, and the number of CPU packages and GPUs counted.

        None if a host has no counter that can be read.
        """
        import numpy as np

        joules_here = self._meter.joules()
        is_blind = self._counts and joules_here is None
        values = np.array([float(is_blind), joules_here or 0.0, *self._numbers])
        num_blind, joules, packages, gpus = self._backend.sum(values).tolist()
        if num_blind or self._before is None:
            return None
        return {"joules": self._before["joules"] + joules, "packages": packages, "gpus": gpus}

    def close(self) -> None:
        """Stop the thread of the meter."""
        self._meter.close()


def is_first_of_machine(machines: Sequence[float], process_index: int) -> bool:
    """Return whether no process with a lower index is on the same machine."""
    return machines[process_index] not in machines[:process_index]


def machine_number() -> int:
    """Return a number below 2**48 that all processes of a machine share, in containers too."""
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
            raise OSError(f"The energy of {name} cannot be read: NVML returns error {code}")
        return millijoules.value / 1000

    return read
