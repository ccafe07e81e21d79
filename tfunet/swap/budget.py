"""How much device memory training may use."""

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfunet.cores import usable_cores
from tfunet.swap import numa
from tfunet.swap.amount import parse
from tfunet.swap.arena import ALIGNMENT, FIRST_REGION_BYTES

MIB = 2**20
# For so many there is a place apart.
SCALARS = 2**11
_BETWEEN_SCALARS: list[tf.Tensor] = []

BUS_ID = re.compile(r"pci bus id: ([0-9a-fA-F:.]+)")

# The peak before what `uncounted` left out.
_kept = {"peak": 0}


def in_bytes(budget: str | float) -> int:
    """Return the bytes that a budget allows on each device of this process.

    Raises ValueError where it depends on a limit that the device does not have.
    """
    wanted = parse(budget)
    if isinstance(wanted, int):
        return wanted
    limit = device_bytes()
    if limit is None:
        raise ValueError(
            f"swap budget {budget!r} depends on the device's memory, and a CPU has no limit of its "
            "own. Give an amount such as '4GiB', or cap TensorFlow's allocator with "
            "TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB."
        )
    return limit if wanted is None else int(limit * wanted)


def device_bytes() -> int | None:
    """Return the memory that TensorFlow may use on a device; None on a CPU without a cap."""
    limits = [one.memory_limit for one in _local_devices() if one.device_type == "GPU"]
    if limits:
        return int(min(limits))
    capped = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    return int(limit) * 2**20 if capped and limit.isdigit() else None


def cpu_cap() -> int | None:
    """Return the cap of a CPU's allocator; None on a GPU, without one, and where the machine has
    less memory than that."""
    limit = device_bytes()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_none = limit is None or limit > memory or tf.config.list_logical_devices("GPU")
    return None if is_none else limit


def used_bytes() -> tuple[int, int] | None:
    """Return current and peak bytes of the first device's allocator; None where it keeps none."""
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    try:
        found = tf.config.experimental.get_memory_info(device)
    except (ValueError, tf.errors.InvalidArgumentError):
        return None
    # An allocator that keeps no account reports zeros.
    peak = max(int(found["peak"]), _kept["peak"])
    return (int(found["current"]), peak) if found["peak"] else None


def join_regions() -> int:
    """Have TensorFlow's capped allocator of a CPU take what is left of its memory in one piece.

    It takes memory in regions, each twice the size of the one before, in which it is then stuck: a
    tensor lies in one of them. Returns the bytes that it had taken before; 0 on a GPU, whose
    memory is one region. Only the first call in a process does anything.
    """
    cap = cpu_cap()
    return 0 if cap is None else _join_regions(cap)


@functools.cache
def _join_regions(limit: int) -> int:
    # Scalars, which may stay for ever, lie in gaps of their own: anywhere else they would part what
    # is free into pieces.
    with tf.device("CPU:0"):
        small = [tf.raw_ops.Empty(shape=[ALIGNMENT], dtype=tf.uint8) for _ in range(2 * SCALARS)]
    _BETWEEN_SCALARS.extend(small[::2])
    del small
    used = used_bytes()
    taken, region = 0, FIRST_REGION_BYTES
    while taken < (1 if used is None else used[1]):
        taken, region = taken + region, 2 * region
    while taken < limit:
        # What does not fit TensorFlow tries for 10 seconds; then another region was there.
        with contextlib.suppress(tf.errors.ResourceExhaustedError), tf.device("CPU:0"):
            tf.raw_ops.Empty(shape=[(limit - taken) // MIB, MIB], dtype=tf.uint8)
            break
        taken, region = taken + region, 2 * region
    return min(taken, limit)


def free_bytes() -> int | None:
    """Return what the device's allocator can still hand out; None where it has no limit."""
    limit, used = device_bytes(), used_bytes()
    return None if limit is None else limit - (used[0] if used is not None else 0)


def forget_peak() -> None:
    """Count the peak of `used_bytes` anew, as far as the allocator can."""
    _kept["peak"] = 0
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
        tf.config.experimental.reset_memory_stats(device)


def far_line() -> str:
    """Return advice for a process that runs far from a GPU of its own; see `tfunet.swap.numa`."""
    return numa.advice(gpu_bus_ids(), usable_cores())


def gpu_bus_ids() -> list[str]:
    """Return the PCI addresses of the GPUs that this process uses, as TensorFlow writes them."""
    return bus_ids(one.physical_device_desc for one in _local_devices())


def bus_ids(descriptions: Iterable[str]) -> list[str]:
    """Return the PCI addresses in what TensorFlow says of devices, each once."""
    found = (BUS_ID.search(one) for one in descriptions)
    return list(dict.fromkeys(one[1] for one in found if one is not None))


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Leave what is done here out of the peak of `used_bytes`, as far as the allocator can."""
    before = used_bytes()
    try:
        yield
    finally:
        if before is not None:
            forget_peak()
            _kept["peak"] = before[1]


def _local_devices() -> list[Any]:
    if not tf.config.list_physical_devices("GPU"):
        return []
    from tensorflow.python.client import device_lib
    from tensorflow.python.eager import context

    # With another choice of GPUs than this process has made, TensorFlow would refuse.
    return list(device_lib.list_local_devices(context.context().config))
