"""The machine on which a plan is made, as nvidia-smi and the run describe it."""

import pytest

from tfunet.config.amount import MIB
from tfunet.config.run import RunConfig
from tfunet.performance.devices import DEVICES
from tfunet.plan import here


def listed(monkeypatch, *names):
    rows = [{"name": name, "memory_total": "81559 MiB"} for name in names]
    monkeypatch.setattr(here, "gpus", lambda: rows)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-pcie5"),
        ("Tesla V100-SXM2-16GB", "v100-pcie3"),
        ("NVIDIA A100-SXM4-80GB", "a100-pcie4"),
    ],
)
def test_gpus_are_known_by_their_names(monkeypatch, name, known):
    listed(monkeypatch, name, name)
    machine = here.this_machine(RunConfig())
    assert (machine.devices, machine.device) == (2, DEVICES[known])
    assert machine.memory_bytes == 81559 * MIB


def test_a_limit_of_the_run_or_the_user_comes_first(monkeypatch):
    listed(monkeypatch, "NVIDIA H100 80GB HBM3")
    assert here.this_machine(RunConfig(gpu_memory="16MiB")).memory_bytes == 16 * MIB
    assert here.this_machine(RunConfig(gpu_memory="16MiB"), 8 * MIB).memory_bytes == 8 * MIB


def test_an_unknown_gpu_is_refused_with_those_that_are_known(monkeypatch):
    listed(monkeypatch, "NVIDIA T4")
    with pytest.raises(ValueError, match=r"Nothing is known of the GPU 'NVIDIA T4'.*h100-pcie5"):
        here.this_machine(RunConfig())


def test_devices_may_share_cores_where_the_run_says_so(monkeypatch):
    monkeypatch.setattr(here, "gpus", list)
    monkeypatch.setattr(here, "usable_cores", lambda: [0, 1])
    shared = here.this_machine(RunConfig(share_cores=True), num_devices=4)
    assert (shared.devices, shared.cores) == (4, 2)
    assert here.this_machine(RunConfig(), num_devices=4).devices == 2


def test_without_gpus_cores_compute(monkeypatch):
    monkeypatch.setattr(here, "gpus", list)
    machine = here.this_machine(RunConfig(cpu_memory="64MiB"))
    assert machine.is_cpu
    assert machine.device_bytes("multiworker", 1) == 64 * MIB
    assert set(here.usable_backends()) <= {"mirrored", "multiworker", "horovod"}
