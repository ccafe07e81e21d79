"""Whether a process runs near its GPUs, by what the kernel tells. Imports no TensorFlow.

Memory that is pinned for copies lies on the NUMA node of the CPU that asked for it. Where that is
not the GPU's node, each copy also crosses the link between the nodes.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

SYS = Path("/sys")


def advice(bus_ids: Iterable[str], cores: Collection[int], root: Path = SYS) -> str:
    """Return a line for a process that runs on none of the CPUs of a GPU's node; else "".

    Args:
        bus_ids: PCI addresses of the GPUs that the process uses, such as "0000:3b:00.0".
        cores: CPUs that the process may run on.
        root: Where sysfs is.
    """
    cpus_of = _cpus_of_nodes(root)
    far: dict[int, list[str]] = {}
    for bus_id in bus_ids:
        node = _node_of(bus_id, root)
        cpus = cpus_of.get(node, set())
        # A node of memory alone has none, nor has one that is not known.
        if cpus and cpus.isdisjoint(cores):
            far.setdefault(node, []).append(bus_id)
    if len(cpus_of) < 2 or not far:
        return ""
    where = "; ".join(
        f"GPU {', '.join(ids)} is on NUMA node {node}" for node, ids in sorted(far.items())
    )
    nodes = ",".join(map(str, sorted(far)))
    return (
        f"Large-model support: {where}, and this process runs on none of its CPUs, so that copies "
        f"cross from node to node. Start it there: numactl --cpunodebind={nodes} "
        f"--membind={nodes}, or with srun --gpu-bind=closest, or Open MPI's mpirun --map-by numa "
        "--bind-to numa."
    )


def _node_of(bus_id: str, root: Path) -> int:
    """Return the node of a PCI device; -1, as the kernel, where it is not known."""
    # nvidia-smi writes eight digits of the domain, and capitals.
    domain, _, rest = bus_id.strip().lower().partition(":")
    path = root / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node"
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1


def _cpus_of_nodes(root: Path) -> dict[int, set[int]]:
    found = {}
    for path in sorted((root / "devices/system/node").glob("node[0-9]*/cpulist")):
        try:
            found[int(path.parent.name.removeprefix("node"))] = _numbers(path.read_text())
        except (OSError, ValueError):
            continue
    return found


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list of the kernel's, such as "0-3,8"."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
