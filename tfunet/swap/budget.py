"""How much device memory training may use."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfunet.swap.amount import parse

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

    return list(device_lib.list_local_devices())
