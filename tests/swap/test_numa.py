"""A process that runs far from its GPU is told so; folders stand in for sysfs."""

import os

import pytest

from tfunet.swap import budget, numa

NEAR, FAR = "0000:3b:00.0", "0000:d8:00.0"
TWO = {0: "0-3,8-11", 1: "4-7,12-15"}


def sysfs(root, cpus, gpus):
    """Write what Linux tells of nodes, node to its CPUs, and of PCI devices, address to node."""
    for node, text in cpus.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")
    # As in sysfs, beside the nodes.
    (root / "devices/system/node").mkdir(parents=True, exist_ok=True)
    (root / "devices/system/node/online").write_text("0-1\n")
    for bus_id, node in gpus.items():
        folder = root / "bus/pci/devices" / bus_id
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


@pytest.mark.parametrize("bus_id", [FAR, "00000000:D8:00.0"])  # As nvidia-smi writes it.
def test_a_process_on_none_of_the_cpus_of_its_gpus_node_is_told(bus_id, tmp_path):
    root = sysfs(tmp_path, TWO, {NEAR: 0, FAR: 1})
    assert numa.advice([bus_id], [0, 1, 8], root) == (
        f"Large-model support: GPU {bus_id} is on NUMA node 1, and this process runs on none of "
        "its CPUs, so that copies cross from node to node. Start it there: numactl "
        "--cpunodebind=1 --membind=1, or with srun --gpu-bind=closest, or Open MPI's mpirun "
        "--map-by numa --bind-to numa."
    )


@pytest.mark.parametrize(
    ("cpus", "gpus", "cores"),
    [
        (TWO, {FAR: 1}, [4, 5]),
        (TWO, {FAR: 1}, [0, 12]),  # One of the node's is enough: its system may move it there.
        (TWO, {FAR: -1}, [0]),  # Of a machine that does not tell.
        (TWO, {}, [0]),
        (TWO, {FAR: 2}, [0]),  # Of a node that is not online.
        ({**TWO, 2: ""}, {FAR: 2}, [0]),  # Of a node of memory alone.
        ({0: "0-3"}, {FAR: 0}, [7]),
        ({}, {FAR: 0}, [0]),
    ],
)
def test_elsewhere_nothing_is_said(cpus, gpus, cores, tmp_path):
    assert numa.advice([FAR], cores, sysfs(tmp_path, cpus, gpus)) == ""


def test_gpus_of_several_nodes_are_named_by_node(tmp_path):
    root = sysfs(tmp_path, {**TWO, 2: "16-19"}, {NEAR: 0, FAR: 1, "0000:5e:00.0": 0})
    line = numa.advice([NEAR, FAR, "0000:5e:00.0"], [16], root)
    assert f"GPU {NEAR}, 0000:5e:00.0 is on NUMA node 0; GPU {FAR} is on NUMA node 1" in line
    assert "numactl --cpunodebind=0,1 --membind=0,1" in line


def test_this_machine_can_be_read():
    cores = os.sched_getaffinity(0)
    assert numa.advice(budget.gpu_bus_ids(), cores) == numa.advice([], cores) == ""


def test_addresses_are_read_from_what_tensorflow_says_of_devices():
    told = (
        "device: 0, name: Tesla V100-SXM2-16GB, pci bus id: 0000:3b:00.0, compute capability: 7.0"
    )
    # Two logical devices of one GPU, and a CPU.
    assert budget.bus_ids([told, told, ""]) == ["0000:3b:00.0"]
