"""Joules are counted once a host, over counters that start again, where all can be read."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from powercap_folder import RANGE, Powercap

from tfunet.backend import Topology
from tfunet.machine import energy
from tfunet.machine.doctor import energy_check
from tfunet.machine.energy import (
    NOTHING_YET,
    Counter,
    Meter,
    RunEnergy,
    counters,
    gpu_counters,
    is_first_of_machine,
    is_readable,
    machine_number,
    package_counters,
    powercap_root,
    spent,
)


@pytest.fixture
def powercap(tmp_path):
    return Powercap(tmp_path / "sys")


def test_only_packages_are_counted(powercap):
    found = package_counters(powercap.root)
    assert [counter.name for counter in found] == ["package-0", "package-1-die-0"]
    powercap.set("intel-rapl:1", 2_500_000)
    assert [counter.read() for counter in found] == [0.001, 2.5]
    assert found[0].range_joules == pytest.approx(262_143.32885)
    assert all(counter.is_package for counter in found)


def test_without_powercap_there_is_no_counter(tmp_path):
    assert package_counters(tmp_path / "none") == []
    assert powercap_root({}).as_posix() == "/sys/class/powercap"


@pytest.mark.parametrize("content", ["", "many\n"])
def test_a_counter_without_a_number_is_not_readable(powercap, content):
    powercap.file("intel-rapl:0").write_text(content)
    assert [is_readable(counter) for counter in package_counters(powercap.root)] == [False, True]


def test_a_zone_without_its_range_is_no_counter(powercap):
    (powercap.root / "intel-rapl:0/max_energy_range_uj").write_text("\n")
    assert [counter.name for counter in package_counters(powercap.root)] == ["package-1-die-0"]


@pytest.mark.parametrize(
    ("before", "after", "joules"), [(5.0, 7.5, 2.5), (5.0, 5.0, 0.0), (99.0, 1.0, 2.0)]
)
def test_a_counter_that_starts_again_loses_nothing(before, after, joules):
    assert spent(before, after, 100.0) == joules


def meter_of(powercap, **options):
    return Meter(
        [counter for counter in package_counters(powercap.root) if is_readable(counter)], **options
    )


def test_a_meter_sums_packages_and_turns(powercap):
    powercap.set("intel-rapl:0", RANGE - 3e6)
    meter = meter_of(powercap)
    assert meter.joules() == 0.0
    powercap.set("intel-rapl:0", 2e6)
    powercap.set("intel-rapl:1", 1e6 + 1000)
    powercap.set("intel-rapl:0:0", 9e9)
    assert meter.joules() == pytest.approx(6.0)
    assert meter.joules() == pytest.approx(6.0)
    meter.close()


def test_a_meter_reads_by_itself_and_sees_every_turn():
    now, reads = [0.0], []

    def read():
        reads.append(now[0])
        return now[0]

    counter = Counter(name="package-0", is_package=True, read=read, range_joules=100.0)
    meter = Meter([counter], read_seconds=0.01)
    # Two turns and a half: a reading at the end alone would find half of one.
    for turn in range(6):
        now[0] = 50.0 * (turn % 2)
        # One may have begun before.
        enough = len(reads) + 2
        deadline = time.monotonic() + 60
        while len(reads) < enough and time.monotonic() < deadline:
            time.sleep(0.005)
    assert meter.joules() == 250.0
    meter.close()


def test_a_counter_that_is_closed_on_the_way_leaves_no_number(powercap):
    meter = meter_of(powercap)
    powercap.close("intel-rapl:1")
    assert meter.joules() is None
    assert Meter([]).joules() is None


FIRST_DEVICE = 0x7FFF_0000_0000


def nvml(init=0):
    """Speaks as NVIDIA's library does; the second of three GPUs is too old to count."""

    def count(found):
        found._obj.value = 3
        return 0

    def handle(index, device):
        device._obj.value = FIRST_DEVICE + index.value
        return 0

    def energy_of(device, found):
        index = device.value - FIRST_DEVICE
        found._obj.value = 5_000_000_000_250 * (index + 1)
        return 3 if index == 1 else 0

    return SimpleNamespace(
        nvmlInit_v2=lambda: init,
        nvmlDeviceGetCount_v2=count,
        nvmlDeviceGetHandleByIndex_v2=handle,
        nvmlDeviceGetTotalEnergyConsumption=energy_of,
    )


def test_gpus_tell_millijoules():
    found = gpu_counters(nvml())
    assert [counter.name for counter in found if is_readable(counter)] == ["GPU 0", "GPU 2"]
    assert found[0].read() == 5_000_000_000.25
    assert not any(counter.is_package for counter in found)


def test_without_nvml_there_is_no_gpu():
    assert gpu_counters(None) == []
    # NVML_ERROR_DRIVER_NOT_LOADED
    assert gpu_counters(nvml(init=9)) == []


def test_gpus_are_counted_only_for_a_run_that_uses_them(powercap, monkeypatch):
    monkeypatch.setenv("TFUNET_POWERCAP", str(powercap.root))
    monkeypatch.setattr(energy, "load_nvml", nvml)
    packages = ["package-0", "package-1-die-0"]
    assert [counter.name for counter in counters(with_gpus=False)] == packages
    assert [counter.name for counter in counters(with_gpus=True)] == [*packages, "GPU 0", "GPU 2"]


class Together:
    """The sum over threads that stand for processes; `hosts` is where each of them runs."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.barrier = threading.Barrier(len(hosts), timeout=60)
        self.values = [None] * len(hosts)

    def each(self, function):
        """Return what `function(backend, topology)` returns in every process."""
        found = ["it failed"] * len(self.hosts)

        def work(index):
            backend = SimpleNamespace(sum=lambda values: self.sum(index, values))
            count = len(self.hosts)
            topology = Topology(
                process_index=index,
                process_count=count,
                num_replicas=count,
                local_replicas=range(index, index + 1),
            )
            found[index] = function(backend, topology)

        threads = [
            threading.Thread(target=work, args=(index,), name=host)
            for index, host in enumerate(self.hosts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def sum(self, index, values):
        self.values[index] = values
        self.barrier.wait()
        total = np.sum(self.values, axis=0)
        self.barrier.wait()
        return total


@pytest.mark.parametrize(
    ("hosts", "joules", "packages"),
    [
        (["a"], 3.0, 2),
        (["a", "a"], 3.0, 2),
        (["a", "a", "b", "b"], 6.0, 4),
        (["b", "a", "b", "a"], 6.0, 4),
        # One host cannot be read: half of the energy is no energy.
        (["a", "blind"], None, None),
        (["blind"], None, None),
    ],
)
def test_one_process_a_host_counts(powercap, monkeypatch, hosts, joules, packages):
    def here():
        return threading.current_thread().name

    monkeypatch.setattr(energy, "machine_number", lambda: sum(here().encode()))
    monkeypatch.setattr(
        energy,
        "counters",
        lambda with_gpus: [] if here() == "blind" else package_counters(powercap.root),
    )
    together = Together(hosts)
    spending = threading.Barrier(len(hosts), timeout=60)

    def process(backend, topology):
        run_energy = RunEnergy(backend, topology, before=NOTHING_YET, with_gpus=False)
        if spending.wait() == 0:
            powercap.set("intel-rapl:0", 1000 + 1e6)
            powercap.set("intel-rapl:1", 1000 + 2e6)
        spending.wait()
        found = run_energy.so_far()
        run_energy.close()
        return found

    expected = None
    if joules is not None:
        expected = {"joules": pytest.approx(joules), "packages": packages, "gpus": 0}
    assert together.each(process) == [expected] * len(hosts)


def test_a_run_whose_checkpoint_does_not_tell_has_no_number(powercap, monkeypatch):
    monkeypatch.setenv("TFUNET_POWERCAP", str(powercap.root))
    for before, told in ((None, None), (NOTHING_YET, 0.0), ({"joules": 7.0}, 7.0)):
        (found,) = Together(["a"]).each(
            lambda backend, topology, before=before: RunEnergy(
                backend, topology, before=before, with_gpus=False
            ).so_far()
        )
        assert (found and found["joules"]) == told


def test_processes_of_a_machine_share_its_number():
    assert machine_number() == machine_number() < 2**48
    assert [is_first_of_machine([7.0, 9.0, 7.0], replica) for replica in range(3)] == [
        True,
        True,
        False,
    ]


def test_the_doctor_says_what_can_be_read_and_what_to_type(powercap):
    row = energy_check(powercap.root, nvml())
    assert (row.status, row.remedy) == ("ok", "")
    assert row.detail == "package-0, package-1-die-0, GPU 0, GPU 2 can be read"
    powercap.close("intel-rapl:0")
    powercap.close("intel-rapl:1")
    row = energy_check(powercap.root, None)
    assert row.status == "missing"
    assert row.detail == "only root may read package-0, package-1-die-0; runs record no energy"
    assert row.remedy.startswith(f"sudo chmod a+r {powercap.root}/intel-rapl:*/energy_uj")
    assert "GPU 0, GPU 2 can be read, only root" in energy_check(powercap.root, nvml()).detail
    row = energy_check(powercap.root / "none", None)
    assert (row.status, row.remedy) == ("missing", "")
