"""Room for a process's swapped tensors, within limits: host memory, and a disk beyond it."""

import weakref
from dataclasses import replace
from typing import final

import tensorflow as tf

from tfunet.config.amount import MIB
from tfunet.files.atomic import WriteError
from tfunet.graph.step import Trace
from tfunet.swap.plan.placement import Tiers
from tfunet.swap.plan.plan import Plan
from tfunet.swap.storage.disk import DiskFile
from tfunet.swap.storage.host import HostMemory, NumpyMemory, Tier, function_of, key_of
from tfunet.swap.storage.limits import Limits
from tfunet.swap.storage.tiers import DiskTier, HostAndDisk
from tfunet.timing.stamps import Note


@final
class Room:
    """Holds swapped tensors while a model trains, for replicas of this process that share the
    limits equally. For `note` see `tfunet.swap.storage.host.NumpyMemory`.
    """

    def __init__(
        self, limits: Limits, *, on_gpu: bool, num_replicas: int, note: Note | None
    ) -> None:
        self.host: Tier = HostMemory() if on_gpu else NumpyMemory(note)
        self._limits = limits
        self._num_replicas = num_replicas
        self._file = None if limits.folder is None else DiskFile(limits.folder)
        self._disk = None
        if self._file is not None:
            self._disk = DiskTier(self._file, on_gpu=on_gpu, note=note)
        # (host bytes, disk bytes) that steps hold, by graph and device. A step traced anew replaces
        # the one of another graph; in one graph several can be under way (accumulation).
        self._taken: weakref.WeakKeyDictionary[tf.Graph, dict[str, tuple[int, int]]]
        self._taken = weakref.WeakKeyDictionary()

    def left(self, graph: tf.Graph, device: str) -> Tiers:
        """Return the room of a step that is being traced, without the speed of the disk."""
        host, disk = self._taken.get(graph, {}).get(device, (0, 0))
        return Tiers(
            host_bytes=self._share(self._limits.host_bytes, host),
            disk_bytes=0 if self._file is None else self._share(self._limits.disk_bytes, disk),
        )

    def timed(self, tiers: Tiers) -> Tiers:
        """Return the tiers with the speed of the disk, if any; WriteError where it is full."""
        if self._file is None:
            return tiers
        out, back = self._file.speed()
        return replace(tiers, disk_out_bytes_per_second=out, disk_in_bytes_per_second=back)

    def tier(self, plan: Plan, trace: Trace, graph: tf.Graph, device: str) -> Tier:
        """Return the tier for the swapped tensors of a plan, and reserve the disk for them.

        Raises ValueError where the plan needs a disk and none was given, or more than the limits,
        and WriteError where the disk is too full.
        """
        if plan.on_disk and self._file is None:
            raise ValueError(
                f"The plan has {len(plan.on_disk)} tensors on disk: give disk, a folder, too."
            )
        left = self.left(graph, device)
        _check_limit("of host memory", "host", plan.host_bytes, left.host_bytes)
        _check_limit("on disk", "disk_size", plan.disk_bytes, left.disk_bytes)
        taken = self._taken.setdefault(graph, {})
        host, disk = taken.get(device, (0, 0))
        taken[device] = host + plan.host_bytes, disk + plan.disk_bytes
        tier: Tier = self.host
        if plan.on_disk and self._file is not None and self._disk is not None:
            self._file.reserve(_sizes(plan, trace, graph), part=function_of(graph))
            tier = HostAndDisk(self.host, self._disk, plan.on_disk)
        return tier

    def explained(self) -> WriteError | None:
        """Return the error of the disk in the middle of a step; None where there was none."""
        return None if self._file is None else self._file.explained()

    def close(self) -> None:
        """Free the disk."""
        if self._file is not None:
            self._file.close()

    def _share(self, limit: int | None, taken: int) -> int | None:
        return None if limit is None else max(0, limit // self._num_replicas - taken)


def _sizes(plan: Plan, trace: Trace, graph: tf.Graph) -> dict[str, int]:
    # Where the trace has a batch of unknown size, the plan still knows the largest.
    sizes = {tensor.name: tensor.num_bytes for tensor in trace.tensors}
    return {
        key_of(graph, name): max(sizes.get(name, 0), plan.tensor_bytes.get(name, 0))
        for name in plan.on_disk
    }


def _check_limit(what: str, name: str, num_bytes: int, allowed: int | None) -> None:
    if allowed is not None and num_bytes > allowed:
        raise ValueError(
            f"The plan takes {num_bytes / MIB:,.1f} MiB {what}, and {name} leaves "
            f"{allowed / MIB:,.1f} MiB to this replica. Raise {name}, or leave plan out to have "
            "one made within it."
        )


def local_replicas(model: tf.Module) -> int:
    """Return how many replicas of a model this process has."""
    with model.distribute_strategy.scope():
        if not tf.distribute.has_strategy():
            return 1
        return len(tf.distribute.get_strategy().extended.worker_devices)
